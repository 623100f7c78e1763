"""
What the answers of all HTTP APIs have in common: one body of JSON, or a stream of events.

A dialect overrides `read_event` (one JSON object of the stream) and `read_whole` (the body where
the server did not stream), and notes there what it finds: `texts`, `usage`, `finish`, `has_ended`.
An answer counts only when the vendor's own sign says that it is complete. Whatever else comes
(an error inside of a stream with status 200, a page of HTML, a redirect) is evidence.
"""

import re
from typing import Any, assert_never

import msgspec

from fallbackd.backends.lines import fields, read_object, without_process, words
from fallbackd.backends.sse import Event, EventReader
from fallbackd.core.exchange import (
    Chunk,
    Evidence,
    Exit,
    GivenUp,
    HttpResponse,
    NoAnswer,
    NotStarted,
    Observation,
    Outcome,
    Output,
    Phase,
    ProcessExit,
    ProviderAnswered,
    Reply,
    Usage,
)
from fallbackd.core.failures import Reason
from fallbackd.core.rules import Rule

MAX_WHOLE_BYTES = 32 * 1024 * 1024
MAX_ERROR_BYTES = 256 * 1024

_CUT_AT_LENGTH = frozenset({"length", "max_tokens", "max_output_tokens"})
_FILTERED = frozenset(
    {"content_filter", "refusal", "safety", "sensitive", "blocklist", "prohibited_content"}
)
_BROKEN_OFF = frozenset({"error", "network_error", "failed", "cancelled"})
_CONTEXT = "model_context_window_exceeded"

RULES = (
    Rule(id="http-cut-off", reason=Reason.NETWORK, codes=("truncated_response",)),
    Rule(id="http-malformed", reason=Reason.SERVER_ERROR, codes=("malformed_response",)),
    # Not a fault of the provider: another one may write longer answers, so one hop is tried.
    Rule(
        id="http-output-limit",
        reason=Reason.FORMAT_ERROR,
        detail="output_limit",
        codes=("output_limit",),
    ),
    Rule(id="http-filtered", reason=Reason.CONTENT_POLICY, codes=("filtered_answer",)),
    Rule(id="http-context", reason=Reason.CONTEXT_OVERFLOW, codes=(_CONTEXT,)),
    Rule(
        id="http-redirect", reason=Reason.NOT_CONFIGURED, detail="redirect", codes=("redirected",)
    ),
    Rule(id="http-page", reason=Reason.NOT_CONFIGURED, detail="no_api", codes=("page_of_html",)),
    Rule(
        id="http-url",
        reason=Reason.NOT_CONFIGURED,
        detail="base_url",
        codes=("invalidurl", "unsupportedprotocol"),
    ),
    Rule(
        id="http-header",
        reason=Reason.NOT_CONFIGURED,
        detail="header",
        codes=("localprotocolerror", "unicodeencodeerror"),
    ),
    # A proxy of the environment that is no URL, or a SOCKS one without the package for it.
    Rule(
        id="http-proxy",
        reason=Reason.NOT_CONFIGURED,
        detail="proxy",
        codes=("importerror", "valueerror"),
    ),
    Rule(
        id="http-tls-files", reason=Reason.NOT_CONFIGURED, detail="tls_files", codes=("tlsfiles",)
    ),
    Rule(
        id="http-tls",
        reason=Reason.TLS,
        pattern=r"WRONG_VERSION_NUMBER|UNSUPPORTED_PROTOCOL|ALERT_PROTOCOL_VERSION"
        r"|CERTIFICATE_REQUIRED|HANDSHAKE_FAILURE|UNKNOWN_CA|record layer failure"
        r"|HTTP_REQUEST\b",
        streams=("exception",),
    ),
)
"""Before those of the vendor and the common ones."""


class HttpParser:
    """See `spec.Parser`. A body that begins like JSON or HTML is whole, all else is a stream."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.refusals: list[str] = []
        self.usage = Usage()
        self.finish_word = ""
        """The vendor's word for why the answer ends; empty: none came."""
        self.has_ended = False
        """The vendor's own sign of completeness was seen."""
        self.answered = False
        self.error: Evidence | None = None
        self._events = EventReader()
        self._body = bytearray()
        self.is_whole: bool | None = None
        """None: not known before the first bytes."""
        self._phase = ""

    # --- for a dialect to say ---------------------------------------------------------------

    def read_event(self, name: str, event: dict[str, Any]) -> list[Observation]:
        """Read one JSON object of a stream."""
        raise NotImplementedError

    def read_whole(self, value: dict[str, Any]) -> None:
        """Read the one JSON object of an answer that was not streamed."""
        raise NotImplementedError

    def read_word(self, data: str) -> None:
        """Read an event that is no JSON, `[DONE]` say."""

    def read_plain(self, text: str) -> None:
        """Read a whole answer that is no JSON; there is no such API but the oldest."""

    # --- what they share --------------------------------------------------------------------

    def feed(self, chunk: Chunk) -> list[Observation]:
        if chunk.stream != "http" or not chunk.data:
            return []
        limit = MAX_ERROR_BYTES if self.is_whole is False else MAX_WHOLE_BYTES
        self._body += chunk.data[: max(0, limit - len(self._body))]
        if self.is_whole is None:
            begin = bytes(self._body).removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
            if not begin:
                self._body.clear()  # some gateways send blanks until they know more
                return [Output()]
            self.is_whole = begin in (b"{", b"[", b"<", b'"')
            data = bytes(self._body)
        else:
            data = chunk.data
        if self.is_whole:
            return [Output()]
        before = self._events.lines
        seen = self._read(self._events.feed(data))
        if seen or self._events.lines == before:
            return seen
        return [Output()]

    def answers(self) -> list[Observation]:
        """Note that only the provider can have caused this event."""
        if self.answered:
            return []
        self.answered = True
        return [ProviderAnswered()]

    def phase(self, word: str) -> list[Observation]:
        if word == self._phase:
            return []
        self._phase = word
        return [Phase(word)]

    def fails(self, value: Any) -> list[Observation]:  # any JSON value: it comes from the wire
        """Note an error that the API states inside of an answer that began well."""
        if self.error is not None:
            return []
        self.error = Evidence(stream="http", body=value, answered=self.answered)
        return [GivenUp(evidence=self.error)]

    def finish(self, exit: Exit) -> Outcome:
        match exit:
            case ProcessExit():
                return Evidence(text=exit.note, exit_code=exit.code, signal=exit.signal)
            case NotStarted() | NoAnswer():
                return without_process(exit, answered=self.answered)
            case HttpResponse():
                return self._responded(exit)
            case _:
                assert_never(exit)

    def _read(self, events: list[Event]) -> list[Observation]:
        seen: list[Observation] = []
        for event in events:
            value = read_object(event.data)
            if value is not None:
                seen.extend(self.read_event(event.name, value))
            else:
                self.read_word(event.data.strip())
            if value is None or not seen:
                seen.append(Output())
        return seen

    def _responded(self, exit: HttpResponse) -> Outcome:
        if self.is_whole is False:
            self._read(self._events.end())
        if 300 <= exit.status < 400:
            return _redirected(exit)
        if exit.status >= 400:
            return Evidence(
                stream="http",
                http_status=exit.status,
                headers=exit.headers,
                body=self.error.body if self.error is not None else self._value(),
                answered=self.answered,
            )
        if self.is_whole:
            self._read_body()
        if self.error is not None:
            return msgspec.structs.replace(self.error, headers=exit.headers, answered=self.answered)
        return self._judge(exit)

    def _read_body(self) -> None:
        value = self._value()
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if isinstance(value, dict):
            if states_error(value):
                self.fails(value)
            else:
                self.read_whole(value)
        elif isinstance(value, str) and not _is_page(value):
            self.read_plain(value)

    def _judge(self, exit: HttpResponse) -> Outcome:
        """The end of an answer that states no error."""
        text = "".join(self.texts)
        broke_off = self._evidence(
            exit, "truncated_response", "the answer breaks off before its end"
        )
        if self.is_whole and exit.truncated:
            return broke_off
        if self.has_ended:
            found = self._ended_badly()
            if found is not None:
                code, said = found
                return self._evidence(exit, code, said)
            if text.strip():
                return Reply(text=text, usage=self.usage)
            return self._evidence(exit, None, "an answer without any text", empty=True)
        if not self._body and not exit.truncated:
            return self._evidence(exit, None, "an answer without a body", empty=True)
        body = bytes(self._body[:MAX_ERROR_BYTES]).decode("utf-8", "replace")
        if _is_page(body):
            said = "a page of HTML instead of an API's answer: does base_url name the API?"
            return self._evidence(exit, "page_of_html", said)
        if exit.truncated or self.answered:
            return self._evidence(
                exit, "truncated_response", "the answer breaks off before its end"
            )
        return self._evidence(exit, "malformed_response", "the answer is none of this API")

    def _ended_badly(self) -> tuple[str, str] | None:
        """(code, what happened) where the vendor says that this is not the whole answer."""
        word = self.finish_word.lower().partition(":")[0].strip()
        if word in _CUT_AT_LENGTH:
            return (
                "output_limit",
                "the answer was cut off at the limit of output tokens: raise max_output_tokens",
            )
        if word in _FILTERED or (self.refusals and not "".join(self.texts).strip()):
            refusal = "".join(self.refusals)[:500]
            return "filtered_answer", f"the provider withheld the answer: {refusal or word}"
        if word == _CONTEXT:
            return _CONTEXT, "prompt and answer do not fit into the model's context"
        if word in _BROKEN_OFF:
            return "truncated_response", f"the answer broke off: {word}"
        return None

    def _evidence(
        self, exit: HttpResponse, code: str | None, text: str, *, empty: bool = False
    ) -> Evidence:
        return Evidence(
            text=text,
            stream="http",
            http_status=exit.status,
            headers=exit.headers,
            code=code,
            answered=self.answered,
            empty=empty,
        )

    def _value(self) -> Any:  # any JSON value: it comes from the wire
        try:
            return msgspec.json.decode(bytes(self._body))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return bytes(self._body[:MAX_ERROR_BYTES]).decode("utf-8", "replace")


def states_error(value: dict[str, Any]) -> bool:
    """A JSON object that says of itself that it is an error."""
    return bool(value.get("error")) or "error" in (value.get("type"), value.get("object"))


_PAGE = re.compile(r"\s{0,100}<(?:!doctype|html|head|body|title|center|h1|\?xml|!--)", re.I)


def _is_page(text: str) -> bool:
    return bool(_PAGE.match(text.removeprefix("\ufeff")))


def _redirected(exit: HttpResponse) -> Evidence:
    """A redirect is not followed: the key would go along to a place that nobody named."""
    place = words(exit.headers.get("location")).partition("?")[0][:300] or "nowhere"
    return Evidence(
        text=f"the server redirects to {place}, which is not followed: "
        "set base_url to the address of the API itself",
        stream="http",
        http_status=exit.status,
        code="redirected",
    )


def first_choice(value: dict[str, Any]) -> dict[str, Any]:
    choices = value.get("choices")
    return fields(choices[0]) if isinstance(choices, list) and choices else {}
