"""OpenAI's API and every server that offers it; the URL may say that it is another one."""

from fallbackd.backends import http_calls
from fallbackd.backends.http_answers import RULES
from fallbackd.backends.http_calls import KEYS, Endpoint
from fallbackd.backends.signatures import ANTHROPIC, OPENAI
from fallbackd.backends.spec import BackendKind, Options, Parser
from fallbackd.core.protocol import HttpRequest, Work

ENDPOINT = Endpoint(base_url="https://api.openai.com/v1", vendors=("openai",))


def start(work: Work, options: Options) -> HttpRequest:
    return http_calls.ask(ENDPOINT, work, options)


def models(work: Work, options: Options) -> HttpRequest:
    return http_calls.ask_models(ENDPOINT, work, options)


def parser(options: Options) -> Parser:
    return http_calls.parser_of(http_calls.mode_of(ENDPOINT, options))


KIND = BackendKind(
    name="openai-http",
    start=start,
    parser=parser,
    models=models,
    rules=(*RULES, *OPENAI, *ANTHROPIC),
    reads_env=KEYS,
    structured=True,
)
