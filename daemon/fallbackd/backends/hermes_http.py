"""A Hermes agent behind its API on loopback: one chat completion in the shape of OpenAI's."""

from typing import Any

import msgspec

from fallbackd.backends.lines import count, fields, without_process, words
from fallbackd.backends.spec import BackendKind, Options
from fallbackd.core.classify import Rule
from fallbackd.core.exchange import (
    Call,
    Chunk,
    Evidence,
    Exit,
    HttpRequest,
    HttpResponse,
    Observation,
    Outcome,
    Output,
    ProcessExit,
    Reply,
    Usage,
    Work,
)
from fallbackd.core.failures import Reason

DEFAULT_URL = "http://127.0.0.1:8088"
DEFAULT_MODEL = "hermes"
KEYS = ("HERMES_API_KEY", "API_SERVER_KEY")
READ_TIMEOUT_S = 900.0
"""On loopback an agent works for minutes before it answers in one piece."""

MAX_ERROR_BYTES = 256 * 1024


def start(work: Work, options: Options) -> Call:
    base = (options.base_url or DEFAULT_URL).rstrip("/")
    path = "/chat/completions" if base.endswith("/v1") else "/v1/chat/completions"
    key = next((k for k in KEYS if work.inherited.get(k)), None)
    if work.credential is not None:
        key = "credential"
    body = {
        "model": work.model or options.model or DEFAULT_MODEL,
        "messages": [{"role": "user", "content": work.prompt}],
        "stream": False,
    }
    return HttpRequest(
        method="POST",
        url=base + path,
        headers={"content-type": "application/json", **options.headers},
        secret_headers={"Authorization": f"Bearer {{{key}}}"} if key else {},
        credential=work.credential,
        body=msgspec.json.encode(body),
        read_timeout_s=READ_TIMEOUT_S,
    )


class Parser:
    def __init__(self, options: Options) -> None:
        self._body = bytearray()

    def feed(self, chunk: Chunk) -> list[Observation]:
        if chunk.stream == "http":
            self._body += chunk.data
        return [Output()]

    def finish(self, exit: Exit) -> Outcome:
        if isinstance(exit, ProcessExit):
            return Evidence(text=exit.note, exit_code=exit.code, signal=exit.signal)
        if not isinstance(exit, HttpResponse):
            return without_process(exit, answered=False)
        value = self._value()
        if 200 <= exit.status < 300 and isinstance(value, dict) and not value.get("error"):
            text = _text(value)
            if text.strip() and not exit.truncated:
                return Reply(text=text, usage=_usage(value))
            finish = words(fields(_choice(value)).get("finish_reason"))
            return Evidence(
                stream="http",
                http_status=exit.status,
                headers=exit.headers,
                code="truncated_response" if exit.truncated else finish or None,
                empty=True,
            )
        if 200 <= exit.status < 300 and not self._body:
            return Evidence(stream="http", http_status=exit.status, empty=True)
        return Evidence(
            stream="http",
            http_status=exit.status,
            headers=exit.headers,
            body=value,
            code="malformed_response" if exit.status < 400 and isinstance(value, str) else None,
        )

    def _value(self) -> Any:  # any JSON value: it comes from the wire
        try:
            return msgspec.json.decode(bytes(self._body))
        except (msgspec.DecodeError, RecursionError):
            return bytes(self._body[:MAX_ERROR_BYTES]).decode("utf-8", "replace")


def _choice(value: dict[str, Any]) -> Any:
    choices = value.get("choices")
    return choices[0] if isinstance(choices, list) and choices else None


def _text(value: dict[str, Any]) -> str:
    content = fields(fields(_choice(value)).get("message")).get("content")
    if isinstance(content, list):
        return "".join(words(fields(part).get("text")) for part in content)
    return words(content)


def _usage(value: dict[str, Any]) -> Usage:
    used = fields(value.get("usage"))
    return Usage(
        input_tokens=count(used.get("prompt_tokens")),
        output_tokens=count(used.get("completion_tokens")),
    )


RULES = (
    Rule(id="hermes-truncated", reason=Reason.NETWORK, codes=("truncated_response",)),
    Rule(id="hermes-malformed", reason=Reason.SERVER_ERROR, codes=("malformed_response",)),
)

KIND = BackendKind(
    name="hermes-api",
    start=start,
    parser=Parser,
    rules=RULES,
    reads_env=KEYS,
)
