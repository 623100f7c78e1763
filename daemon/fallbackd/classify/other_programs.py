"""Whose failure a line speaks of: that of another program, of another service, of a side call."""

import re

_OTHERS = re.compile(
    # Services beside the model: their trouble is a tool's.
    r"api\.github\.com|raw\.githubusercontent"
    r"|(?<!docs\.)\bgithub\.com[:/](?!\S{0,200}(?:copilot|issues?/new))"
    r"|docker\.(?:io|com)|ghcr\.io|registry\.(?:npmjs|yarnpkg)|npmjs\.org|pypi\.org|pythonhosted"
    r"|crates\.io"
    r"|maven|rubygems|gitlab\.|bitbucket\.|debian\.org|ubuntu\.com|sentry\.io|datadog"
    r"|proxy\.golang|hub\.docker|(?:localhost|127\.0\.0\.1|0\.0\.0\.0|::1)\]?[:\s]+(?:port )?"
    r"(?:5432|3306|6379|27017|9200|5672|9092|1433|2181|8500|22|25|587)\b|\bport (?:5432|3306|6379"
    r"|27017)\b"
    r"|\bAssertionError\b|/tests?/|\btest_\w+\.py|\.test\.[jt]sx?\b|\.spec\.[jt]s\b"
    r"|\bdatabase\b|\b(?:postgres|mysql|redis|mongo|kafka|rabbitmq|elasticsearch)\w{0,20}\b"
    r"|when calling the (?!Invoke|Converse|Retrieve)\w{1,60} operation|\b(?:mock|stub|fixture)s?\b"
    # Words of an agent about its own work.
    r"|\bso I\b|(?-i:\bI)(?:'ve| have)? (?:\w{2,20}ed|saw|will|made|found)\b|\blet (?:me|us)\b"
    r"|\bthis (?:class|function|method|test|module)\b"
    r"|pull rate limit|toomanyrequests: ",
    re.I,
)
# Calls that a program makes beside its turn, which continues when they fail.
_SIDE_CALLS = re.compile(
    r"\b(?:telemetry|tracing|event logging|analytics|failed to export|opentelemetry|otlp|statsig)"
    r"|(?:session|chat|conversation|thread)[- ](?:title|description|name|summary)"
    r"|(?:generate|create|update) (?:\w+ ){0,2}(?:title|summary)\b|\bMCP\b|\bmcp[_ -]?server"
    r"|auto-?update|update check|check(?:ing)? for updates",
    re.I,
)
_OTHER_PROGRAMS = re.compile(
    r"(?:npm|yarn|pnpm|pip3?|git|gh|curl|wget|psql|mysql|docker|podman|kubectl|helm"
    r"|make(?:\[\d+\])?"
    r"|cargo|rustc|go|java|mvn|gradlew?|apt(?:-get)?|ssh|scp|rsync|grep|rg|sed|awk|find|cat|ls|cp"
    r"|mv|rm|pytest|jest|vitest|tsc|eslint|redis-cli|mongosh?|terraform|ansible\S*|aws|gcloud|az"
    r"|nginx|systemctl|remote|hint|FAIL|FAILED|PASS|ok|not ok|E|W|tar|unzip|ping|nslookup|dig|host"
    r"|nc|telnet|openssl|composer|bundle|gem|brew|conda|poetry|uv)(?: \w+)?(?:: |!| ERR!| error )"
    r"|tool [\w-]{1,40} (?:failed|error)|(?:shell|bash) command failed"
    # Exceptions of a program's own code say nothing of a provider.
    r"|(?:\w{1,40}\.){0,4}(?:ModuleNotFound|Key|Name|Attribute|Import|Index|Syntax|Indentation"
    r"|ZeroDivision|Recursion|Lookup|Arithmetic|Assertion)Error\b"
    r"|npm (?:ERR!|error|warn)|verbose stack|\d+ (?:verbose|silly|error|warn|info) "
    r"|Error response from daemon|Error from server|The connection to the server"
    r"|fatal: (?:unable to access|could not read|repository|not a git|authentication failed for)"
    r"|(?:psycopg\w*|sqlalchemy|redis|pymongo|django|flask|werkzeug|sqlite3|mysql|asyncpg|kafka"
    r"|celery|selenium|playwright|subprocess|AssertionError|org\.apache|java\.sql|com\.mysql"
    r"|PG::|ActiveRecord|QueryFailedError|PrismaClient|Sequelize|Mongo\w+Error)\b"
    r"|could not connect to server|ssh: |Permission denied \(publickey"
    r"|\[ERROR\] Failed to execute goal|BUILD FAILED|FAILURE: Build|error\[E\d+|error TS\d+",
    re.I,
)


def is_of_another(text: str) -> bool:
    """Signed by another program, or about another service than a model's."""
    return bool(_OTHER_PROGRAMS.match(text) or _OTHERS.search(text[:1_000]) or is_side_call(text))


def is_side_call(text: str) -> bool:
    return bool(_SIDE_CALLS.search(text[:1_000]))
