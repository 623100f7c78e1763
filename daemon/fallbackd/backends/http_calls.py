"""
Which dialect an HTTP API speaks, and the request that asks it.

    mode               path                   chosen where none is configured
    messages           …/v1/messages          host api.anthropic.com, a path that ends in /anthropic
    responses          …/responses            the back end of Codex
    chat_completions   …/chat/completions     everything else
"""

from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import SplitResult, urlsplit

import msgspec
from msgspec import Struct

from fallbackd.backends import chat_completions, messages, responses
from fallbackd.backends.http_answers import HttpParser
from fallbackd.backends.spec import Options
from fallbackd.core.exchange import CREDENTIAL, CredentialRef, HttpRequest, Tls, Work

ApiMode = Literal["chat_completions", "responses", "messages", "hermes_chat"]

MODES: Mapping[str, ApiMode] = {
    "chat_completions": "chat_completions",
    "responses": "responses",
    "messages": "messages",
    "hermes_chat": "hermes_chat",
    # as Hermes names them
    "codex_responses": "responses",
    "anthropic_messages": "messages",
}
"""What `api_mode` may say."""

MODES_BY_PROVIDER: Mapping[str, ApiMode] = {
    "anthropic": "messages",
    "openai-codex": "responses",
    "codex": "responses",
}

KEYS_BY_HOST: Mapping[str, tuple[str, ...]] = {
    "api.anthropic.com": ("ANTHROPIC_API_KEY",),
    "api.openai.com": ("OPENAI_API_KEY",),
    "generativelanguage.googleapis.com": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    "openrouter.ai": ("OPENROUTER_API_KEY",),
}
"""Who gets which key where no credential is configured. A key goes to no other host."""

KEYS = tuple(name for names in KEYS_BY_HOST.values() for name in names)
"""What kinds want to know of the environment: which of them are set."""

READ_TIMEOUT_S = 3600.0
"""Silence is judged by the limits of the attempt; this only ends what nobody watches."""

_ENDS_WITH: Mapping[ApiMode, tuple[bytes, ...]] = {
    "chat_completions": chat_completions.ENDS_WITH,
    "responses": responses.ENDS_WITH,
    "messages": messages.ENDS_WITH,
    "hermes_chat": (),
}


class Endpoint(Struct, frozen=True, kw_only=True):
    """What a kind knows of its API."""

    base_url: str
    """Where nothing is configured."""
    mode: ApiMode | None = None
    """None: chosen by the URL."""
    model: str | None = None
    keys: tuple[str, ...] = ()
    """Variables that hold a key for this kind on any host; sent if one is set."""
    vendors: tuple[str, ...] = ()
    """Words for whoever is at `base_url`, in lower case, besides its host."""


def mode_of(endpoint: Endpoint, options: Options) -> ApiMode:
    """The configured mode; else the kind's; else what the URL says."""
    if options.api_mode is not None:
        return MODES.get(options.api_mode, "chat_completions")
    if endpoint.mode is not None:
        return endpoint.mode
    return mode_of_url(options.base_url or endpoint.base_url)


def mode_of_url(url: str) -> ApiMode:
    parts = urlsplit(url)
    path = parts.path.rstrip("/").lower()
    if path.endswith("/api/chat"):
        return "hermes_chat"
    if path.endswith(("/chat/completions", "/responses")):
        return "responses" if path.endswith("/responses") else "chat_completions"
    if parts.hostname == "api.anthropic.com" or path.endswith(
        ("/anthropic", "/anthropic/v1", "/messages")
    ):
        return "messages"
    return "responses" if _is_codex(parts) else "chat_completions"


def parser_of(mode: ApiMode) -> HttpParser:
    match mode:
        case "responses":
            return responses.ResponsesParser()
        case "messages":
            return messages.MessagesParser()
        case _:
            return chat_completions.ChatParser()


def ask(endpoint: Endpoint, work: Work, options: Options) -> HttpRequest:
    """The request of one prompt."""
    mode = mode_of(endpoint, options)
    parts = urlsplit(options.base_url or endpoint.base_url)
    model = work.model or options.model or endpoint.model
    request = request_to(endpoint, work.credential, work.inherited, options, mode=mode)
    return msgspec.structs.replace(
        request,
        method="POST",
        url=_url(parts, mode),
        headers={
            "content-type": "application/json",
            "accept": "text/event-stream, application/json",
            **request.headers,
        },
        body=msgspec.json.encode(_body(mode, parts, model, work, options)),
        ends_with=_ENDS_WITH[mode],
    )


def ask_models(endpoint: Endpoint, work: Work, options: Options) -> HttpRequest:
    """The list of models, which costs nothing and needs the same key."""
    mode = mode_of(endpoint, options)
    parts = urlsplit(options.base_url or endpoint.base_url)
    path = parts.path.rstrip("/")
    for ending in ("/chat/completions", "/responses", "/messages", "/api/chat"):
        path = path.removesuffix(ending)
    if not path or (mode == "messages" and not path.endswith("/v1")):
        path += "/v1"
    request = request_to(endpoint, work.credential, work.inherited, options, mode=mode)
    return msgspec.structs.replace(
        request, url=parts._replace(path=path + "/models", fragment="").geturl()
    )


def read_models(body: bytes) -> tuple[str, ...] | None:
    """The ids of a list of models, in the shape that all vendors share; None: it is none."""
    try:
        found = msgspec.json.decode(body, type=_Models)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    return tuple(one.id.removeprefix("models/") for one in found.data)


class _Model(Struct):
    id: str


class _Models(Struct):
    data: list[_Model]


def request_to(
    endpoint: Endpoint,
    credential: CredentialRef | None,
    inherited: Mapping[str, str],
    options: Options,
    *,
    mode: ApiMode,
) -> HttpRequest:
    """A GET of nothing with everything that does not depend on what is asked."""
    if options.lacks is not None:
        raise ValueError(options.lacks)  # nobody gets a key who was not meant to have it
    parts = urlsplit(options.base_url or endpoint.base_url)
    host = parts.hostname or ""
    reference = credential or _default_key(endpoint, inherited, host)
    headers = {"user-agent": "fallbackd"}
    secrets: dict[str, str] = {}
    if mode == "messages":
        headers["anthropic-version"] = messages.VERSION
        if reference is not None:
            secrets["x-api-key"] = CREDENTIAL
            if host != "api.anthropic.com":
                # Some vendors that offer this API read only the one, some only the other.
                secrets["authorization"] = f"Bearer {CREDENTIAL}"
    elif reference is not None:
        secrets["authorization"] = f"Bearer {CREDENTIAL}"
    return HttpRequest(
        method="GET",
        url=parts.geturl(),
        headers={**headers, **{name.lower(): text for name, text in options.headers.items()}},
        secret_headers=secrets,
        credential=reference,
        connect_timeout_s=options.connect_timeout_s or 10.0,
        read_timeout_s=options.read_timeout_s or READ_TIMEOUT_S,
        tls=_tls(options),
    )


def _default_key(
    endpoint: Endpoint, inherited: Mapping[str, str], host: str
) -> CredentialRef | None:
    """The variable that everybody uses for this host, where no credential is configured."""
    # A public host answers nobody without a key: a missing one is said before the call.
    names = KEYS_BY_HOST.get(host, ())
    names = names or tuple(name for name in endpoint.keys if inherited.get(name, "").strip())
    if not names:
        return None
    name = next((name for name in names if inherited.get(name, "").strip()), names[0])
    return CredentialRef(label=name, source="env", name=name)


def _tls(options: Options) -> Tls | None:
    verify = options.tls_verify is not False
    if verify and not (options.tls_ca_file or options.tls_client_cert):
        return None
    return Tls(
        ca_file=options.tls_ca_file,
        client_cert=options.tls_client_cert,
        client_key=options.tls_client_key,
        verify=verify,
    )


def _url(parts: SplitResult, mode: ApiMode) -> str:
    path = parts.path.rstrip("/")
    match mode:
        case "messages":
            if not path.endswith("/messages"):
                path += "/messages" if path.endswith("/v1") else "/v1/messages"
        case "hermes_chat":
            path = path.removesuffix("/v1")
            if not path.endswith("/api/chat"):
                path += "/api/chat"
        case _:
            ending = "/responses" if mode == "responses" else "/chat/completions"
            if not path.endswith(ending):
                path = (path or "/v1") + ending
    return parts._replace(path=path, fragment="").geturl()


def _body(
    mode: ApiMode, parts: SplitResult, model: str | None, work: Work, options: Options
) -> dict[str, Any]:
    limit = options.max_output_tokens
    match mode:
        case "messages":
            return messages.body(model=model, prompt=work.prompt, max_output_tokens=limit)
        case "responses":
            return responses.body(
                model=model,
                prompt=work.prompt,
                effort=work.effort,
                max_output_tokens=limit,
                is_codex=_is_codex(parts),
            )
        case _:
            return chat_completions.body(
                model=model,
                prompt=work.prompt,
                effort=work.effort,
                max_output_tokens=limit,
                host=parts.hostname or "",
            )


def _is_codex(parts: SplitResult) -> bool:
    return parts.hostname == "chatgpt.com" and "/backend-api/codex" in parts.path
