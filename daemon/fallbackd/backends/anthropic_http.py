"""Anthropic's messages API, from itself or from any vendor that offers it."""

from fallbackd.backends import http_calls
from fallbackd.backends.http_answers import RULES
from fallbackd.backends.http_calls import KEYS, Endpoint
from fallbackd.backends.signatures import ANTHROPIC
from fallbackd.backends.spec import BackendKind, Options, Parser
from fallbackd.core.protocol import HttpRequest, Work

ENDPOINT = Endpoint(
    base_url="https://api.anthropic.com", mode="messages", vendors=("anthropic", "claude")
)


def start(work: Work, options: Options) -> HttpRequest:
    return http_calls.ask(ENDPOINT, work, options)


def models(work: Work, options: Options) -> HttpRequest:
    return http_calls.ask_models(ENDPOINT, work, options)


def parser(options: Options) -> Parser:
    return http_calls.parser_of(http_calls.mode_of(ENDPOINT, options))


KIND = BackendKind(
    name="anthropic-http",
    start=start,
    parser=parser,
    models=models,
    rules=(*RULES, *ANTHROPIC),
    reads_env=KEYS,
    structured=True,
)
