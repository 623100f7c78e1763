"""
The kinds that are spoken to over HTTP: one row for each, with its address, rules and keys.

`openai-http` is every server that offers OpenAI's API; the URL may say that it is another one.
`hermes-api` speaks chat completions, with events of its own about the tools that it runs; older
versions know only `/api/chat` (see `hermes_chat`).
"""

from fallbackd.backends import http_calls
from fallbackd.backends.hermes_chat import HermesChatParser
from fallbackd.backends.http_answers import RULES, HttpParser
from fallbackd.backends.http_calls import KEYS
from fallbackd.backends.signatures import ANTHROPIC, GOOGLE, OPENAI, OPENROUTER
from fallbackd.backends.spec import BackendKind, Endpoint, Options
from fallbackd.classify.rules import Rule
from fallbackd.core.protocol import HttpRequest, Work


def http_kind(name: str, endpoint: Endpoint, *rules: Rule) -> BackendKind:
    """A kind made of its address and the failure signatures of the provider there."""

    def start(work: Work, options: Options) -> HttpRequest:
        return http_calls.ask(endpoint, work, options)

    def models(work: Work, options: Options) -> HttpRequest:
        return http_calls.ask_models(endpoint, work, options)

    def parser(options: Options) -> HttpParser:
        mode = http_calls.mode_of(endpoint, options)
        if mode == "hermes_chat" and endpoint.is_hermes:
            return HermesChatParser()
        return http_calls.parser_of(mode)

    return BackendKind(
        name=name,
        start=start,
        parser=parser,
        models=models,
        rules=(*RULES, *rules),
        endpoint=endpoint,
        reads_env=endpoint.keys or KEYS,
        is_plain=lambda options: http_calls.mode_of(endpoint, options) == "hermes_chat",
        structured=True,
        takes_messages=lambda options: http_calls.mode_of(endpoint, options) != "hermes_chat",
    )


HTTP_KINDS = (
    http_kind(
        "anthropic-http",
        Endpoint(
            base_url="https://api.anthropic.com", mode="messages", vendors=("anthropic", "claude")
        ),
        *ANTHROPIC,
    ),
    http_kind(
        "google-http",
        Endpoint(
            base_url="https://generativelanguage.googleapis.com/v1beta",
            mode="generate_content",
            vendors=("gemini", "google"),
        ),
        *GOOGLE,
    ),
    http_kind(
        "hermes-api",
        Endpoint(
            base_url="http://127.0.0.1:8088",
            model="hermes",
            keys=("HERMES_API_KEY", "API_SERVER_KEY"),
            vendors=("hermes",),
            is_hermes=True,
        ),
    ),
    http_kind(
        "openai-http",
        Endpoint(base_url="https://api.openai.com/v1", vendors=("openai",)),
        *OPENAI,
        *ANTHROPIC,
    ),
    http_kind(
        "openrouter-http",
        Endpoint(base_url="https://openrouter.ai/api/v1", vendors=("openrouter",)),
        *OPENROUTER,
    ),
)
