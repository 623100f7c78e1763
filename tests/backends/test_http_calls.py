"""Which dialect an HTTP API is asked in, where, with which key, and what is read of its models."""

import json
from typing import Any

import pytest
from msgspec import structs

from fallbackd.backends import ENDPOINTS, KINDS
from fallbackd.backends.http_calls import MODES, mode_of, read_models
from fallbackd.backends.spec import NotConfigured, Options
from fallbackd.core.protocol import CredentialRef, HttpRequest, Tls, Work

WORK = Work(prompt="say pong", prompt_path="/p", cwd="/c", scratch="/s")
CHOSEN = CredentialRef(label="work", source="file", name="~/key")


def start(kind: str, options: Options | None = None, **work: Any) -> HttpRequest:
    call = KINDS[kind].start(structs.replace(WORK, **work), options or Options())
    assert isinstance(call, HttpRequest)
    return call


def models(kind: str, options: Options | None = None) -> HttpRequest:
    ask = KINDS[kind].models
    assert ask is not None
    return ask(WORK, options or Options())


@pytest.mark.parametrize(
    ("url", "mode"),
    [
        ("https://generativelanguage.googleapis.com", "generate_content"),
        ("https://generativelanguage.googleapis.com/v1beta/", "generate_content"),
        ("https://generativelanguage.googleapis.com/v1beta/openai", "chat_completions"),
        ("https://h/v1beta/models/gemini-3-pro:generateContent", "generate_content"),
        ("https://h/v1beta/models/gemini-3-pro:streamGenerateContent", "generate_content"),
        ("https://h/v1beta/models", "chat_completions"),
        ("https://api.openai.com/v1", "chat_completions"),
        ("https://api.anthropic.com", "messages"),
        ("https://api.anthropic.com/v1/", "messages"),
        ("https://api.example.com/anthropic", "messages"),
        ("https://api.example.com/anthropic/", "messages"),
        ("https://api.example.com/Anthropic/v1", "messages"),
        ("https://api.example.com/anthropic-mirror/v1", "chat_completions"),
        ("https://anthropic.example.com/v1", "chat_completions"),
        ("https://chatgpt.com/backend-api/codex", "responses"),
        ("https://chatgpt.com/v1", "chat_completions"),
        ("https://api.example.com/v1/responses", "responses"),
        ("http://127.0.0.1:11434/v1", "chat_completions"),
        ("http://127.0.0.1:8088/api/chat", "hermes_chat"),
    ],
)
def test_the_url_says_which_dialect_is_spoken(url: str, mode: str) -> None:
    assert mode_of(ENDPOINTS["openai-http"], Options(base_url=url)) == mode


@pytest.mark.parametrize(
    ("url", "model", "mode"),
    [
        (None, "gpt-5", "responses"),
        (None, "openai/GPT-5.3-codex", "responses"),
        (None, "gpt-4.1", "chat_completions"),
        (None, "not-gpt-5", "chat_completions"),
        (None, None, "chat_completions"),
        ("https://api.openai.com/v1/chat/completions", "gpt-5", "chat_completions"),
        ("https://gateway.example/v1", "gpt-5", "chat_completions"),
    ],
)
def test_what_openai_offers_in_its_responses_only_is_asked_for_there(
    url: str | None, model: str | None, mode: str
) -> None:
    options = Options(base_url=url, model=model)
    assert mode_of(ENDPOINTS["openai-http"], options) == mode
    # The model of an attempt goes before the configured one, and decides as well.
    other = "gpt-4.1" if mode == "responses" else model
    call = start("openai-http", Options(base_url=url, model=other), model=model)
    assert call.url.endswith("/responses" if mode == "responses" else "/chat/completions")


def test_the_back_end_of_codex_is_told_which_program_asks() -> None:
    codex = Options(base_url="https://chatgpt.com/backend-api/codex")
    assert start("openai-http", codex).headers["originator"] == "codex_cli_rs"
    assert models("openai-http", codex).headers["originator"] == "codex_cli_rs"
    mine = structs.replace(codex, headers={"Originator": "my_gateway"})
    assert start("openai-http", mine).headers["originator"] == "my_gateway"
    assert "originator" not in start("openai-http").headers


LAN = "http://192.168.0.7:8000/v1"


@pytest.mark.parametrize(
    ("kind", "url"),
    [
        ("openai-http", "http://api.openai.com/v1"),
        ("openai-http", LAN),
        ("anthropic-http", "http://api.anthropic.com"),
        ("google-http", "http://generativelanguage.googleapis.com"),
        ("openrouter-http", "http://openrouter.ai/api/v1"),
        ("hermes-api", "http://hermes.lan:8088"),
        ("openai-http", "http://127.0.0.1.evil.example/v1"),
    ],
)
def test_no_key_leaves_unencrypted_for_another_machine(kind: str, url: str) -> None:
    fields = {"model": "m", "base_url": url}
    for ask in (KINDS[kind].start, KINDS[kind].models):
        assert ask is not None
        with pytest.raises(NotConfigured, match="insecure_http = true"):
            ask(structs.replace(WORK, credential=CHOSEN), Options(**fields))  # type: ignore[arg-type]
        call = ask(
            structs.replace(WORK, credential=CHOSEN),
            Options(**fields, insecure_http=True),  # type: ignore[arg-type]
        )
        assert isinstance(call, HttpRequest)
        assert call.credential == CHOSEN


@pytest.mark.parametrize(
    ("url", "key"),
    [
        (LAN, None),  # a server of one's own that wants no key
        ("http://127.0.0.1:8000/v1", CHOSEN),
        ("http://localhost/v1", CHOSEN),
        ("http://[::1]:8000/v1", CHOSEN),
        ("https://api.example.com/v1", CHOSEN),
    ],
)
def test_plain_http_is_fine_without_a_key_or_on_loopback(
    url: str, key: CredentialRef | None
) -> None:
    assert start("openai-http", Options(base_url=url), credential=key).credential == key


def test_the_default_key_of_a_public_host_does_not_leave_unencrypted() -> None:
    inherited = {"OPENAI_API_KEY": "sk-0123456789"}
    options = Options(base_url="http://api.openai.com/v1")
    with pytest.raises(NotConfigured, match=r"api\.openai\.com"):
        start("openai-http", options, inherited=inherited)


GOOGLE = "https://generativelanguage.googleapis.com/v1beta"


@pytest.mark.parametrize(
    ("options", "url"),
    [
        ({"model": "gemini-3-pro"}, f"{GOOGLE}/models/gemini-3-pro:streamGenerateContent?alt=sse"),
        ({"model": "models/m"}, f"{GOOGLE}/models/m:streamGenerateContent?alt=sse"),
        ({"model": "a b/c"}, f"{GOOGLE}/models/a%20b%2Fc:streamGenerateContent?alt=sse"),
        (
            {"base_url": "https://h/v1beta/models/m1:generateContent?x=1&alt=json"},
            "https://h/v1beta/models/m1:streamGenerateContent?x=1&alt=sse",
        ),
        (
            {"base_url": "https://h/v1beta/models/m1:generateContent", "model": "m2"},
            "https://h/v1beta/models/m2:streamGenerateContent?alt=sse",
        ),
        (
            {"base_url": "https://h:1", "model": "m"},
            "https://h:1/v1beta/models/m:streamGenerateContent?alt=sse",
        ),
        (
            {"base_url": "https://h/v1/models/", "model": "m"},
            "https://h/v1/models/m:streamGenerateContent?alt=sse",
        ),
        (
            {"base_url": "https://h/v1beta/openai", "model": "m"},
            "https://h/v1beta/openai/chat/completions",
        ),
    ],
)
def test_google_is_asked_in_its_own_protocol(options: dict[str, str], url: str) -> None:
    call = start("google-http", Options(**options), credential=CHOSEN)  # type: ignore[arg-type]
    assert call.url == url
    body = json.loads(call.body)
    if ":streamGenerateContent" in url:
        assert call.secret_headers == {"x-goog-api-key": "{credential}"}
        assert body == {"contents": [{"role": "user", "parts": [{"text": "say pong"}]}]}


def test_google_cannot_be_asked_without_a_model() -> None:
    with pytest.raises(ValueError, match="model"):
        start("google-http")


@pytest.mark.parametrize(
    ("model", "effort", "thinking"),
    [
        ("gemini-2.5-pro", "low", {"thinkingBudget": 1024}),
        ("gemini-2.5-flash", "xhigh", {"thinkingBudget": 24576}),
        ("gemini-3-pro-preview", "low", {"thinkingLevel": "low"}),
        ("gemini-3.5-flash", "medium", {"thinkingLevel": "high"}),
        ("gemini-2.0-flash", "high", None),
        ("gemma-3", "high", None),
    ],
)
def test_an_effort_becomes_what_the_generation_of_the_model_knows(
    model: str, effort: str, thinking: dict[str, Any] | None
) -> None:
    call = start("google-http", Options(model=model, max_output_tokens=7), effort=effort)
    config = json.loads(call.body)["generationConfig"]
    assert config == {"maxOutputTokens": 7} | ({"thinkingConfig": thinking} if thinking else {})


def test_a_configured_dialect_goes_before_kind_and_url() -> None:
    url = "https://api.example.com/anthropic"
    endpoint = ENDPOINTS["openai-http"]
    assert mode_of(endpoint, Options(base_url=url)) == "messages"
    assert mode_of(endpoint, Options(base_url=url, api_mode="chat_completions")) == (
        "chat_completions"
    )
    assert mode_of(endpoint, Options(base_url=url, api_mode="codex_responses")) == "responses"
    assert mode_of(ENDPOINTS["anthropic-http"], Options(base_url="http://x/v1")) == "messages"


@pytest.mark.parametrize(
    ("kind", "options", "url"),
    [
        ("openai-http", {}, "https://api.openai.com/v1/chat/completions"),
        ("openai-http", {"api_mode": "responses"}, "https://api.openai.com/v1/responses"),
        ("openai-http", {"base_url": "https://h:1"}, "https://h:1/v1/chat/completions"),
        ("openai-http", {"base_url": "https://h:1/api/v3/"}, "https://h:1/api/v3/chat/completions"),
        (
            "openai-http",
            {"base_url": "https://h/v1/chat/completions"},
            "https://h/v1/chat/completions",
        ),
        ("openai-http", {"base_url": "https://h/x?v=2"}, "https://h/x/chat/completions?v=2"),
        (
            "openai-http",
            {"base_url": "https://chatgpt.com/backend-api/codex"},
            "https://chatgpt.com/backend-api/codex/responses",
        ),
        ("openai-http", {"base_url": "https://h/anthropic"}, "https://h/anthropic/v1/messages"),
        ("anthropic-http", {}, "https://api.anthropic.com/v1/messages"),
        ("anthropic-http", {"base_url": "https://h/v1"}, "https://h/v1/messages"),
        ("openrouter-http", {}, "https://openrouter.ai/api/v1/chat/completions"),
    ],
)
def test_the_address_has_the_path_of_its_dialect(
    kind: str, options: dict[str, str], url: str
) -> None:
    assert start(kind, Options(**options)).url == url  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "options", "url"),
    [
        ("openai-http", {}, "https://api.openai.com/v1/models"),
        ("openai-http", {"base_url": "https://h:1"}, "https://h:1/v1/models"),
        ("openai-http", {"base_url": "https://h/v1/chat/completions"}, "https://h/v1/models"),
        ("anthropic-http", {}, "https://api.anthropic.com/v1/models"),
        ("anthropic-http", {"base_url": "https://h/anthropic"}, "https://h/anthropic/v1/models"),
        ("hermes-api", {"base_url": "https://h/api/chat"}, "https://h/v1/models"),
        ("google-http", {}, f"{GOOGLE}/models?pageSize=1000"),
        ("google-http", {"base_url": f"{GOOGLE}/openai"}, f"{GOOGLE}/openai/models"),
        (
            "google-http",
            {"base_url": "https://h/v1/models/m:generateContent"},
            "https://h/v1/models?pageSize=1000",
        ),
    ],
)
def test_the_list_of_models_is_beside_it(kind: str, options: dict[str, str], url: str) -> None:
    found = models(kind, Options(**options))  # type: ignore[arg-type]
    assert (found.method, found.url, found.body) == ("GET", url, b"")


def test_a_list_of_models_is_read_in_the_shape_that_all_vendors_share() -> None:
    body = {"object": "list", "data": [{"id": "gpt-5", "more": 1}, {"id": "models/gemini-3"}]}
    assert read_models(json.dumps(body).encode()) == ("gpt-5", "gemini-3")
    assert read_models(b'{"models": [{"name": "models/gemini-3", "x": 1}]}') == ("gemini-3",)
    assert read_models(b'{"data": []}') == ()
    for wrong in (
        b"{}",
        b"",
        b"<html>",
        b"[]",
        b'{"data": [{"name": 1}]}',
        b"\xff",
        b"[" * 100_000,
    ):
        assert read_models(wrong) is None


def test_the_chosen_credential_is_carried_as_the_dialect_wants_it() -> None:
    chat = start("openai-http", credential=CHOSEN)
    assert chat.credential == CHOSEN
    assert chat.secret_headers == {"authorization": "Bearer {credential}"}
    own = start("anthropic-http", credential=CHOSEN)
    assert own.secret_headers == {"x-api-key": "{credential}"}
    assert own.headers["anthropic-version"] == "2023-06-01"
    other = start("anthropic-http", Options(base_url="https://h/anthropic"), credential=CHOSEN)
    assert other.secret_headers == {
        "x-api-key": "{credential}",
        "authorization": "Bearer {credential}",
    }
    assert "anthropic-version" not in chat.headers


@pytest.mark.parametrize(
    ("kind", "base_url", "inherited", "name"),
    [
        ("openai-http", None, {}, "OPENAI_API_KEY"),
        ("anthropic-http", None, {"OPENAI_API_KEY": "x"}, "ANTHROPIC_API_KEY"),
        ("google-http", None, {"GOOGLE_API_KEY": "x"}, "GOOGLE_API_KEY"),
        ("google-http", None, {}, "GEMINI_API_KEY"),
        ("openrouter-http", None, {"OPENROUTER_API_KEY": " "}, "OPENROUTER_API_KEY"),
        ("openai-http", "https://openrouter.ai/api/v1", {}, "OPENROUTER_API_KEY"),
        ("openai-http", "https://other.example/v1", {"OPENAI_API_KEY": "x"}, None),
        ("anthropic-http", "https://other.example/anthropic", {"ANTHROPIC_API_KEY": "x"}, None),
    ],
)
def test_a_key_of_the_environment_goes_to_its_own_vendor_and_to_nobody_else(
    kind: str, base_url: str | None, inherited: dict[str, str], name: str | None
) -> None:
    found = start(kind, Options(base_url=base_url, model="m"), inherited=inherited)
    assert found.credential == (
        None if name is None else CredentialRef(label=name, source="env", name=name)
    )
    assert bool(found.secret_headers) == (name is not None)


def test_headers_tls_and_timeouts_are_the_backend_s_own() -> None:
    options = Options(
        headers={"X-Team": "blue", "User-Agent": "ours"},
        connect_timeout_s=3,
        read_timeout_s=40,
        tls_ca_file="~/ca.pem",
        tls_verify=True,
    )
    found = start("openai-http", options)
    assert found.headers["x-team"] == "blue"
    assert found.headers["user-agent"] == "ours"
    assert (found.connect_timeout_s, found.read_timeout_s) == (3, 40)
    assert found.tls == Tls(ca_file="~/ca.pem")
    assert start("openai-http").tls is None
    assert start("openai-http", Options(tls_verify=False)).tls == Tls(verify=False)


def body_of(kind: str, options: Options, **work: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(start(kind, options, **work).body)
    return found


def test_fields_that_a_server_refuses_are_not_sent_to_it() -> None:
    def chat(url: str | None) -> dict[str, Any]:
        return body_of("openai-http", Options(base_url=url, model="m", max_output_tokens=9))

    assert chat(None)["max_completion_tokens"] == 9
    assert chat("https://h/v1")["max_tokens"] == 9
    assert chat("https://h/v1")["stream_options"] == {"include_usage": True}
    assert "stream_options" not in chat("https://api.mistral.ai/v1")
    codex = body_of(
        "openai-http",
        Options(base_url="https://chatgpt.com/backend-api/codex", max_output_tokens=9),
        effort="low",
    )
    assert "max_output_tokens" not in codex
    assert codex["instructions"]
    assert (codex["store"], codex["reasoning"]) == (False, {"effort": "low"})


def test_a_server_with_one_model_is_asked_without_its_name() -> None:
    assert "model" not in body_of("openai-http", Options(base_url="https://h/v1"))
    assert body_of("anthropic-http", Options())["max_tokens"] == 8192


@pytest.mark.parametrize("kind", sorted(ENDPOINTS))
@pytest.mark.parametrize("mode", sorted(MODES))
def test_every_kind_asks_and_reads_in_every_dialect(kind: str, mode: str) -> None:
    options = Options(base_url="https://h/v1", api_mode=mode, model="m")
    request = start(kind, options, credential=CHOSEN)
    assert b"say pong" in request.body
    assert "say pong" not in repr(request)
    assert KINDS[kind].parser(options).feed is not None
