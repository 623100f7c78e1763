"""
Dialects of HTTP APIs, and the requests that ask them.

    mode               path                              chosen where none is configured
    messages           …/v1/messages                     host api.anthropic.com, a path that ends
                                                         in /anthropic
    responses          …/responses                       the back end of Codex; GPT-5 on OpenAI's
                                                         own host
    generate_content   …/models/M:streamGenerateContent  google-http; Google's own host
    chat_completions   …/chat/completions                everything else

Each kind of HTTP backend is a row of `HTTP_KINDS`. `openai-http` is every server that offers
OpenAI's API; the URL may say that it is another one. `hermes-api` speaks chat completions, with
events of its own about the tools that it runs; older versions know only `/api/chat`.
"""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult, quote, urlsplit

import msgspec
from msgspec import Struct

from fallbackd.backends import chat_completions, generate_content, messages, responses
from fallbackd.backends.chat_completions import HermesChatParser
from fallbackd.backends.http_answers import RULES, HttpParser
from fallbackd.backends.lines import cost, count, fields
from fallbackd.backends.signatures import ANTHROPIC, GOOGLE, OPENAI, OPENROUTER
from fallbackd.backends.spec import ApiMode, BackendKind, Endpoint, NotConfigured, Options
from fallbackd.classify.rules import Rule
from fallbackd.core.protocol import (
    CREDENTIAL,
    CredentialRef,
    HttpRequest,
    Observation,
    Tls,
    Usage,
    Work,
)

EMBEDS = frozenset({"embeddings", "embedContent", "batchEmbedContents"})
"""The actions that ask for them, by `passage.Passage.side`."""


def same_vectors(one: str, other: str) -> bool:
    """
    Check whether two names are of one model, whose vectors can be compared. A vendor before the
    name says nothing, and what follows it may be another edition.
    """
    return _family(one) == _family(other)


def _family(model: str) -> str:
    return model.lower().rpartition("/")[2].removesuffix(":latest")


class EmbeddingsParser(HttpParser):
    """The numbers, or their bytes in base64, are not read: they have to be there."""

    def read_event(self, name: str, event: dict[str, Any]) -> list[Observation]:
        return []

    def read_whole(self, value: dict[str, Any]) -> None:
        found = value.get("data", value.get("embeddings"))
        items = [value] if "embedding" in value else found
        if not isinstance(items, list):
            return
        self.answered = self.has_ended = True
        self.has_other = bool(items) and all(_has_vector(fields(one)) for one in items)
        used = fields(value.get("usage"))
        google = fields(value.get("usageMetadata"))
        tokens = count(used.get("prompt_tokens")) or count(used.get("total_tokens"))
        self.usage = Usage(
            input_tokens=tokens or count(google.get("promptTokenCount")),
            cost_usd=cost(used),
        )


def _has_vector(item: dict[str, Any]) -> bool:
    found = item.get("embedding", item.get("values"))
    return bool(found.get("values") if isinstance(found, dict) else found)


MODES: Mapping[str, ApiMode] = {
    "chat_completions": "chat_completions",
    "responses": "responses",
    "messages": "messages",
    "generate_content": "generate_content",
    "hermes_chat": "hermes_chat",
    # as Hermes names them
    "codex_responses": "responses",
    "anthropic_messages": "messages",
}
"""Values of `api_mode`."""

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
"""Keys by host, where no credential is configured. A key goes to no other host."""

KEYS = tuple(name for names in KEYS_BY_HOST.values() for name in names)
"""Variables that kinds want to know of the environment: which of them are set."""

CODEX_ORIGINATOR = "codex_cli_rs"

READ_TIMEOUT_S = 3600.0
"""Silence is judged by the limits of the attempt; this only ends a call without a watcher."""

_ENDS_WITH: Mapping[ApiMode, tuple[bytes, ...]] = {
    "chat_completions": chat_completions.ENDS_WITH,
    "responses": responses.ENDS_WITH,
    "messages": messages.ENDS_WITH,
    "generate_content": (),
    "hermes_chat": (),
}


def mode_of(endpoint: Endpoint, options: Options) -> ApiMode:
    """The configured mode; else what the path says; else the kind's; else by host and model."""
    if options.api_mode is not None:
        return MODES.get(options.api_mode, "chat_completions")
    parts = urlsplit(options.base_url or endpoint.base_url)
    return _mode_of_path(parts) or endpoint.mode or _mode_of_host(parts, options.model)


def _mode_of_path(parts: SplitResult) -> ApiMode | None:
    path = parts.path.rstrip("/").lower()
    if path.endswith("/api/chat"):
        return "hermes_chat"
    if path.endswith(("/chat/completions", "/openai")):
        return "chat_completions"
    if path.endswith("/responses") or _is_codex(parts):
        return "responses"
    if path.endswith(("/anthropic", "/anthropic/v1", "/messages")):
        return "messages"
    return "generate_content" if path.endswith("generatecontent") else None


def _mode_of_host(parts: SplitResult, model: str | None) -> ApiMode:
    if parts.hostname == "api.anthropic.com":
        return "messages"
    if parts.hostname == "generativelanguage.googleapis.com":
        return "generate_content"
    # OpenAI offers what is new of these models in its responses only.
    is_gpt_5 = (model or "").lower().rpartition("/")[2].startswith("gpt-5")
    return "responses" if parts.hostname == "api.openai.com" and is_gpt_5 else "chat_completions"


def parser_of(mode: ApiMode, side: str = "") -> HttpParser:
    """
    Args:
        side: See `passage.Passage`.
    """
    if side in EMBEDS:
        return EmbeddingsParser()
    match mode:
        case "responses":
            return responses.ResponsesParser()
        case "messages":
            return messages.MessagesParser()
        case "generate_content":
            return generate_content.GenerateContentParser()
        case _:
            return chat_completions.ChatParser()


def ask(endpoint: Endpoint, work: Work, options: Options) -> HttpRequest:
    """
    The request of one prompt.

    Raises:
        NotConfigured: No model, no address, or a key that would leave in the clear.
    """
    model = work.model or options.model or endpoint.model
    options = msgspec.structs.replace(options, model=model)
    mode = mode_of(endpoint, options)
    parts = urlsplit(options.base_url or endpoint.base_url)
    request = request_to(endpoint, work.credential, work.inherited, options, mode=mode)
    if mode == "hermes_chat" and endpoint.is_hermes:
        has_key = request.credential is not None
        body = chat_completions.hermes_body(prompt=work.prompt)
        request = msgspec.structs.replace(
            request, secret_fields={"key": CREDENTIAL} if has_key else {}, secret_headers={}
        )
    else:
        body = _body(mode, parts, work, options)
    return msgspec.structs.replace(
        request,
        method="POST",
        url=url_of(parts, mode, model),
        headers={
            "content-type": "application/json",
            "accept": "text/event-stream, application/json",
            **request.headers,
        },
        body=msgspec.json.encode(body),
        ends_with=_ENDS_WITH[mode],
    )


def ask_models(endpoint: Endpoint, work: Work, options: Options) -> HttpRequest:
    """The list of models, which costs nothing and needs the same key."""
    mode = mode_of(endpoint, options)
    parts = urlsplit(options.base_url or endpoint.base_url)
    path = _base_path(parts)
    if mode == "generate_content":
        path = _GENERATE.sub("", path) or "/v1beta"
    elif not path or (mode == "messages" and not path.endswith("/v1")):
        path += "/v1"
    # Google lists fifty at a time where nothing is said.
    query = "pageSize=1000" if mode == "generate_content" else parts.query
    request = request_to(endpoint, work.credential, work.inherited, options, mode=mode)
    return msgspec.structs.replace(
        request, url=parts._replace(path=path + "/models", query=query, fragment="").geturl()
    )


def _base_path(parts: SplitResult) -> str:
    path = parts.path.rstrip("/")
    for ending in ("/chat/completions", "/responses", "/messages", "/api/chat"):
        path = path.removesuffix(ending)
    return path


def url_beside(parts: SplitResult, name: str) -> str:
    """Another path of OpenAI's API, at the same address."""
    path = f"{_base_path(parts) or '/v1'}/{name}"
    return parts._replace(path=path, fragment="").geturl()


def read_models(body: bytes) -> tuple[str, ...] | None:
    """The ids of a list of models, in the two shapes that vendors use; None: it is none."""
    try:
        found = msgspec.json.decode(body, type=_Models)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    names: list[str]
    if found.data is not None:
        names = [one.id for one in found.data]
    elif found.models is not None:
        names = [one.name for one in found.models]
    else:
        return None
    return tuple(name.removeprefix("models/") for name in names)


class _Model(Struct):
    id: str


class _GoogleModel(Struct):
    name: str


class _Models(Struct):
    data: list[_Model] | None = None
    models: list[_GoogleModel] | None = None
    """Models as Google's own API lists them."""


def _headers(parts: SplitResult, options: Options, mode: ApiMode) -> dict[str, str]:
    headers = {"user-agent": "fallbackd"}
    if _is_codex(parts):
        # Its edge rejects clients that do not name one of the vendor's own programs.
        headers["originator"] = CODEX_ORIGINATOR
    if mode == "messages":
        headers["anthropic-version"] = messages.VERSION
    return headers | {name.lower(): text for name, text in options.headers.items()}


def _secret_headers(mode: ApiMode, host: str) -> dict[str, str]:
    bearer = {"authorization": f"Bearer {CREDENTIAL}"}
    match mode:
        case "messages" if host == "api.anthropic.com":
            return {"x-api-key": CREDENTIAL}
        case "messages":  # some vendors that offer this API read only the one, some only the other
            return {"x-api-key": CREDENTIAL, **bearer}
        case "generate_content":
            return {"x-goog-api-key": CREDENTIAL}
        case _:
            return bearer


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
        raise NotConfigured(options.lacks)  # a key goes only where it was meant to
    parts = urlsplit(options.base_url or endpoint.base_url)
    host = parts.hostname or ""
    reference = credential or _default_key(endpoint, inherited, host)
    if reference is not None and is_open(parts.geturl(), options):
        raise NotConfigured(why_open(parts.geturl()))
    return HttpRequest(
        method="GET",
        url=parts.geturl(),
        headers=_headers(parts, options, mode),
        secret_headers={} if reference is None else _secret_headers(mode, host),
        credential=reference,
        connect_timeout_s=options.connect_timeout_s or 10.0,
        read_timeout_s=options.read_timeout_s or READ_TIMEOUT_S,
        tls=_tls(options),
        own_listener=endpoint.is_hermes,
    )


def is_loopback(host: str) -> bool:
    return _LOOPBACK.fullmatch(host) is not None


def is_open(url: str, options: Options) -> bool:
    """Check whether a key for this address would travel unencrypted."""
    parts = urlsplit(url)
    is_clear = parts.scheme == "http" and not is_loopback(parts.hostname or "")
    return is_clear and not options.insecure_http


def why_open(url: str) -> str:
    """Explain why no key leaves for there, and what to do."""
    place = urlsplit(url).netloc
    return (
        f"its key would travel to {place} unencrypted: "
        "use https:// in base_url, or set insecure_http = true"
    )


def _default_key(
    endpoint: Endpoint, inherited: Mapping[str, str], host: str
) -> CredentialRef | None:
    """The usual variable for this host, where no credential is configured."""
    # A public host rejects requests without a key: a missing one is reported before the call.
    names = KEYS_BY_HOST.get(host, ())
    names = names or tuple(name for name in endpoint.keys if inherited.get(name, "").strip())
    if not names:
        return None
    name = next((name for name in names if inherited.get(name, "").strip()), names[0])
    return CredentialRef(label=name, source="env", name=name)


def key_variables(endpoint: Endpoint, options: Options) -> tuple[tuple[str, ...], bool]:
    """Variables that may hold its key, where no credential is configured; whether it needs one."""
    host = urlsplit(options.base_url or endpoint.base_url).hostname or ""
    names = KEYS_BY_HOST.get(host, ())
    return names or endpoint.keys, bool(names)


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


def _url_to_generate(parts: SplitResult, model: str | None) -> str:
    path = parts.path.rstrip("/")
    named = _GENERATE.search(path)
    model = model or (named and named[1])
    if not model:
        raise NotConfigured("this API needs the name of a model: set the backend's model")
    path = _GENERATE.sub("", path) or "/v1beta"
    path += f"/models/{quote(model.removeprefix('models/'), safe='')}:streamGenerateContent"
    query = [one for one in parts.query.split("&") if one and not one.startswith("alt=")]
    return parts._replace(path=path, query="&".join([*query, "alt=sse"]), fragment="").geturl()


def url_of(parts: SplitResult, mode: ApiMode, model: str | None) -> str:
    path = parts.path.rstrip("/")
    match mode:
        case "generate_content":
            return _url_to_generate(parts, model)
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


def _body(mode: ApiMode, parts: SplitResult, work: Work, options: Options) -> dict[str, Any]:
    limit, model = options.max_output_tokens, options.model
    match mode:
        case "generate_content":
            return generate_content.body(
                model=model or "",
                prompt=work.prompt,
                earlier=work.earlier,
                effort=work.effort,
                max_output_tokens=limit,
            )
        case "messages":
            return messages.body(
                model=model, prompt=work.prompt, earlier=work.earlier, max_output_tokens=limit
            )
        case "responses":
            return responses.body(
                model=model,
                prompt=work.prompt,
                earlier=work.earlier,
                effort=work.effort,
                max_output_tokens=limit,
                is_codex=_is_codex(parts),
            )
        case _:
            return chat_completions.body(
                model=model,
                prompt=work.prompt,
                earlier=work.earlier,
                effort=work.effort,
                max_output_tokens=limit,
                host=parts.hostname or "",
            )


_LOOPBACK = re.compile(r"localhost|127(?:\.\d{1,3}){3}|::1", re.I)

_GENERATE = re.compile(r"/models(?:/([^/:]+)(?::(?:stream)?generatecontent)?)?$", re.I)
"""Path of Google's own API after the address of the API itself."""


def _is_codex(parts: SplitResult) -> bool:
    return parts.hostname == "chatgpt.com" and "/backend-api/codex" in parts.path


def http_kind(name: str, endpoint: Endpoint, *rules: Rule) -> BackendKind:
    """A kind made of its address and the failure signatures of the provider there."""

    def start(work: Work, options: Options) -> HttpRequest:
        return ask(endpoint, work, options)

    def models(work: Work, options: Options) -> HttpRequest:
        return ask_models(endpoint, work, options)

    def parser(options: Options) -> HttpParser:
        mode = mode_of(endpoint, options)
        if mode == "hermes_chat" and endpoint.is_hermes:
            return HermesChatParser()
        return parser_of(mode)

    return BackendKind(
        name=name,
        start=start,
        parser=parser,
        models=models,
        rules=(*RULES, *rules),
        endpoint=endpoint,
        reads_env=endpoint.keys or KEYS,
        is_plain=lambda options: mode_of(endpoint, options) == "hermes_chat",
        structured=True,
        takes_messages=lambda options: mode_of(endpoint, options) != "hermes_chat",
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
