"""
How a line shows what it is: an error by its opening, a service's words to a person, or prose.
"""

import re

from fallbackd.classify.error_lines import Line
from fallbackd.classify.rules import Found

_STATUS = re.compile(
    r"\b(?:HTTP(?:/\d(?:\.\d)?)?[ :]*(?:error |status |code ){0,3}"
    r"|status(?:[ _-]?code)?[\"']?\s{0,3}[:= ]\s{0,3}[\"']?"
    r"|(?:error|api error|code|failed|upstream|cloudflare|responded with|response|exception"
    r"|unexpected status|\w{1,60}(?:error|exception))"
    r"[: (\"'=\[]{1,4}(?:code: |status |HTTP )?|last status: |\[)"
    r"(?P<a>[1-5]\d\d)\b(?!\s*(?:ms|s\b|MB|tokens|\.\d|,\d|%))"
    r"|^\W{0,4}(?P<b>[45]\d\d)(?=\s+[A-Z{\"\[<a-z]|:|$|\s*status code)"
    r"|\b(?P<c>[45]\d\d) (?:Too Many Requests|Unauthorized|Forbidden|Bad Gateway|Bad Request"
    r"|Service Unavailable|Internal Server Error|Gateway Time-?out|Payment Required|Not Found)",
    re.I,
)
MAX_OPENING_CHARS = 300
STATUS_LINE = re.compile(
    r"(?:HTTP[/ ]?[\d.]*[ :]*[45]\d\d\b|HTTP (?:response )?error"
    r"|status(?:[ _-]?code)?[:= ]+[45]\d\d\b"
    r"|\[?[45]\d\d\]?:?\s+"
    r"(?:[A-Z_]{6,}\b|[A-Z][\w']+(?:\s+[A-Z]\w+){0,6}\s*(?:[.:]?$|: )|\{|\"|<|[A-Z][\w']+.*[.!]$"
    r"|Insufficient|status code|No |The |You|This |Too |Invalid|Model|Request|Rate))",
    re.I,
)
_ERROR_OPENING = re.compile(
    r"\[?(?:fatal|error|err|critical)\]?\s*[:\]!]|\[?(?:fatal|error|critical)\]?\s+(?=[\[({]"
    r"|\w+ error)"
    r"|(?:fatal )?error(?! (?:handling|budget|reporting|logging|messages|codes|rates?)\b)[: (\]]"
    r"|error$"
    r"|[\w.]{0,120}(?:error|exception)(?:\s*[\[(][^\])]{0,80}[\])])?\s*(?:[:(]|$)"
    r"|(?-i:[\w.]{0,120}Timeout)\s*[:(]"
    r"|(?:Object )?\{(?!.{0,60}\"type\":\s*\"(?:item\.|user|assistant|tool|message)).{0,200}?"
    r"\b(?:error|retryMessage|api_error_status)\b\"?\s*:\s*(?!null|false|\"\")[\"{\d]"
    # `OAuth error: …`, `sub-agent error: …`; side calls of a program are not its failure.
    r"|\[?(?:[\w/.'-]{1,40} ){1,4}(?:error|exception)(?: \d{3})?\]? ?[:(]|\S{1,80} {1,20}(?:error"
    r"|fatal) +\S"
    r"|[\w-]{1,60} : |(?=[A-Z0-9_]*(?:ERROR|FAIL))[A-Z0-9_]{6,60}: |\w{1,60}: (?:fatal )?error\b"
    r"|unhandled ?(?:promise ?)?(?:rejection|exception|error)|uncaught |panic\b|caused by:|cause: "
    r"|api (?:error|request failed|call failed)\b|request (?:failed|error)|(?:reason|error message"
    r"|message|details?): |ran into this error|(?:an )?(?:unexpected "
    r"|internal ){0,2}error (?:has )?occurred"
    r"|unexpected error|reqwest::|socket\.timeout: |messages\.\d+|UND_ERR_|net::ERR_|stream id \d"
    r"|http2: "
    r"|error (?:when|while|from|code|msg|running|reading|(?!handling|reporting|logging)\w+ing)\b"
    r"|unexpected status"
    r"|(?:execution|model call|completion|generation|prompt|query|turn|session|run|agent|login"
    r"|authentication|connection|handshake|stream|summar\w+|compaction) failed"
    r"|exceeded retry limit|agent terminated|llm (?:provider|request|call)"
    r"|failed(?: after \d+ (?:attempts|retries))?[:.] |failed (?:to|with|while|after) "
    r"|(?:[\w./-]{1,40} ){1,7}failed(?: (?:with|while|after)\b|[:.] | \(|$)"
    r"|stream (?:disconnected|error)|reconnecting\.\.\.|attempt \d+ failed|internal error"
    r"|provider (?:api )?(?:returned|error)|upstream |retrying(?: (?:after|in|\d)|:)|retry \d"
    r"|falling back from|unsuccessful |server error|bad request|received (?:error|fatal)"
    r"|dial tcp|(?:get|post) \\?\"https?://|\[errno|(?-i:(?:[a-z_]\w{0,40}\.){1,6}[A-Z]\w{1,60}): "
    r"|(?:fehler|erreur|errore|erro|エラー|错误|خطأ|ошибка) ?[::]"
    r"|[✕✖✗❌⚠×]|\[api error|last error",
    re.I,
)


def opens_like_error(line: str) -> bool:
    return bool(_ERROR_OPENING.match(line[:MAX_OPENING_CHARS]))


def opens_error(line: Line) -> bool:
    text = line.text
    return line.has_level or opens_like_error(text) or bool(STATUS_LINE.match(text))


def status_in(line: str) -> int | None:
    found = _STATUS.search(line)
    if found is None:
        return None
    status = int(found["a"] or found["b"] or found["c"])
    return status if status >= 400 else None


TYPE_NAME = re.compile(
    r"(?:(?:\w{1,40} )?(?:[Ee]rror|[Ee]xception|[Cc]ause): )?(?:\w{1,60}\.){0,6}"
    r"(\w{1,80}(?:Error|Exception|Timeout|Exceeded)|Timeout)\b(?=\s*[:(\[]|$)"
)
TYPE_INSIDE = re.compile(r"\b([A-Z]\w{1,60}(?:Error|Exception|Timeout))(?=[:(\]] ?| -|$)")


def type_names(line: str) -> tuple[str, ...]:
    """Names of exceptions at the beginning of a line."""
    found = TYPE_NAME.match(line)
    return (found[1].lower(),) if found else ()


LEAD = re.compile(
    r"(?:sorry, |oops[,!] )?(?:you(?:'re|'ve| are| have)?|the|your|our|this)\s(?:\w+ ){0,3}"
    r"|(?-i:[A-Z])[\w.-]+ (?:\w+ ){0,2}",
    re.I,
)
"""Words before the statement itself: `Our servers are currently overloaded.`"""


def is_statement(line: str, found: Found, *, is_bare: bool) -> bool:
    """The line says this and little else: `Too many requests`, not `Timeouts are now set to …`."""
    rest, line = line[found.end() :], first_sentence(line)
    if _SHOWS_STATE.match(rest):
        return False
    if re.match(r"\w{0,12}\s*(?:[.:·∙•|,;!。，(\[{\-–—]|$)", rest) and not PROSE.search(line):
        return True
    rest = re.split(r"[.!?;,](?:\s|$)", rest, maxsplit=1)[0]
    return is_bare and len(rest.split()) <= 6 and not PROSE.search(line)


_SHOWS_STATE = re.compile(
    r"\W{0,3}(?:remaining|left|status|info|headers?|handling|policy|window|of \d|checks?)\b", re.I
)

ADDRESSED = re.compile(
    r"(?:[\w.-]{1,20}: )?(?:sorry,? |oops[,!] |unfortunately,? )?(?:there(?:'s| is"
    r"| was) an? (?:issue|problem|error)"
    r"|response |conversation |configuration |sending this message |invalid params"
    r"|requested |input (?:is|tokens?) |all instances |engine "
    r"|to use \w+ |oauth |you(?:'ve|'re)?\b|your |we(?:'re"
    r"| are) (?:sorry"
    r"|currently|experiencing)|our |please |this (?:model|request|account|organization|api|key"
    r"|feature)|the (?:model|request|requested|response|output|content|message|resource|api|server"
    r"|service|ai|provider|engine|upstream"
    r"|usage|prompt|input|account|organization|conversation|selected|current)\b|unable to |cannot "
    r"|could not |couldn't |failed to |no (?:api|valid|auth|credentials|available|endpoints|such)"
    r"|requests? (?:to|was|rate|too|timed|limit|failed))",
    re.I,
)
"""How a service speaks to the person before it."""

PROSE = re.compile(
    r"[`<>{}]|=>|->|::|\b(?:I|I'm|I've|I'll|we|we've|we'll|let me|let's|(?<!right )now|should"
    r"|would|shall"
    r"|because|whenever|instead|maps|handle[sd]?|handlers?|returns?|returned|raises?|raised|throws?"
    r"|retries|retried|fix(?:e[sd]|ing)?|adds?|added|tests?|tested|docs?|document(?:s|ed|ation)"
    r"|comes|came|means|e\.g\.|i\.e\.|functions?|class|middleware|webhook|script|config"
    r"|asked|why|wrote|said|says|answer(?:s|ed)|works|cover(?:s|ed)|pass(?:es|ed)?|still|me|my"
    r"|comparison|registry|yet"
    r"|refactor\w*|implement\w*|feature flag|commit|branch|dashboard|callers?|variable|parse[sd]?"
    r"|ETA|see also|example)\b|我|表示|如果|代码|测试|\bsrc/"
    r"|\w\.(?:py|ts|tsx|js|go|rs|md|java|rb)\b|\w\(\)",
)


_PATH = re.compile(r"(?<!\S)[~/][\w./-]{3,}")


def first_sentence(line: str) -> str:
    first = re.split(r"(?<=[.!?])\s", line[:250], maxsplit=1)[0]
    return _PATH.sub(" ", first)


def is_report(line: str, at: int) -> bool:
    """The first sentence is short, speaks to a person, and tells nothing of code."""
    first = first_sentence(line)
    return (
        at <= min(len(first), 80)
        and len(first) <= 240
        and not first.endswith(":")  # what a heading announces is shown, not said
        and ADDRESSED.match(line) is not None
        and PROSE.search(first) is None
        and not re.match(r"[^\"“]*[\"“]", first[:at])
    )
