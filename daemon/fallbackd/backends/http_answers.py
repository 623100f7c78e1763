"""
What the answers of all HTTP APIs have in common: one body of JSON, or a stream of events.

A dialect overrides `read_event` (one JSON object of the stream) and `read_whole` (the body where
the server did not stream), and notes there what it finds: `texts`, `usage`, `finish_word`,
`has_ended`. An answer counts only when the vendor's own sign says that it is complete and every
event before that sign could be read. Whatever else comes (an error inside of a stream with status
200, a damaged event, a page of HTML, a redirect) is evidence.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, assert_never

import msgspec

from fallbackd.backends.http_endings import DONE, Shortfall, is_broken_off, shortfall
from fallbackd.backends.http_shapes import is_page, is_readable, redirected, states_error
from fallbackd.backends.lines import read_object, without_process
from fallbackd.classify.rules import Rule
from fallbackd.core.failures import Reason
from fallbackd.core.protocol import (
    AgentText,
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
from fallbackd.lib import foreign_json
from fallbackd.lib.sse import EventReader, ServerSentEvent

MAX_WHOLE_BYTES = 32 * 1024 * 1024
MAX_ERROR_BYTES = 256 * 1024
MAX_SAID_CHARS = 4000

RULES = (
    Rule(
        id="http-cut-off",
        reason=Reason.NETWORK,
        codes=("truncated_response", "answer_in_background"),
    ),
    # The provider itself says that its generation broke: another model of it may well answer.
    Rule(
        id="http-generation",
        reason=Reason.SERVER_ERROR,
        scope="model",
        codes=("broken_generation",),
    ),
    Rule(id="http-capacity", reason=Reason.OVERLOADED, codes=("no_capacity",)),
    Rule(id="http-malformed", reason=Reason.SERVER_ERROR, codes=("malformed_response",)),
    # Not a fault of the provider: another one may write longer answers, so one hop is tried.
    Rule(
        id="http-output-limit",
        reason=Reason.FORMAT_ERROR,
        detail="output_limit",
        codes=("output_limit",),
    ),
    Rule(id="http-filtered", reason=Reason.CONTENT_POLICY, codes=("filtered_answer",)),
    Rule(
        id="http-context",
        reason=Reason.CONTEXT_OVERFLOW,
        codes=("model_context_window_exceeded",),
    ),
    # It asked for a tool that nothing offered, or paused: another try may bring the answer.
    Rule(
        id="http-unfinished",
        reason=Reason.EMPTY_RESULT,
        detail="unfinished",
        codes=("unfinished_answer",),
    ),
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
        id="http-proxy-login",
        reason=Reason.LOCAL_NETWORK,
        detail="proxy_login",
        retry=False,
        codes=("proxylogin",),
    ),
    Rule(
        id="http-proxy-refused",
        reason=Reason.LOCAL_NETWORK,
        detail="proxy",
        codes=("proxyrefused", "proxyunreachable"),
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

    may_repeat_end = False
    """The vendor's sign of an end may come with each piece: the end of the body counts too."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.refusals: list[str] = []
        self.usage = Usage()
        self.finish_word = ""
        """The vendor's word for why the answer ends; empty: none came."""
        self.has_ended = False
        """The vendor's own sign of completeness was seen."""
        self._choices: dict[int, str] = {}
        """Of a caller who wants several answers at once: why each of them ends."""
        self.is_over = False
        """Nothing that still comes belongs to the answer."""
        self.has_open_call = False
        """The last that it said is a call of a tool, which nothing will answer."""
        self.sequence_number = -1
        """Of the last event, where the API counts them."""
        self.response_id = ""
        """Its name at the provider, where a later request may continue it by its name."""
        self.answered = False
        self.has_other = False
        """A piece of it that is no text has arrived: a call of a tool, a picture, sound."""
        self.has_said = False
        """A piece of it has arrived; before that it may have been opened only."""
        self.has_thought = False
        """A piece of what the model thinks has arrived."""
        self.error: Evidence | None = None
        self._events = EventReader(max_bytes=MAX_WHOLE_BYTES)
        self.read_events = 0
        """How many have come."""
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
        if seen or self.answered or self._events.lines == before:
            return seen
        return [Output()]

    def answers(self, *, opens: bool = False, thinks: bool = False) -> list[Observation]:
        """
        Note a piece of the answer: only the provider can have caused this event.

        After the first one only such pieces count as progress: comments, pings and empty pieces
        merely keep the connection open.

        Args:
            opens: It announces a piece, and says nothing of it yet.
            thinks: It is a piece of what the model thinks before it answers.
        """
        self.has_said = self.has_said or not (opens or thinks)
        self.has_thought = self.has_thought or (thinks and not opens)
        if self.answered:
            return [Output()]
        self.answered = True
        return [ProviderAnswered()]

    @property
    def is_object(self) -> bool:
        """It is one JSON object, which is all that can be asked of what no model has written."""
        return self.is_whole is True and isinstance(self._value(), dict)

    def chose(self, index: int, finish: str) -> None:
        """
        Note a piece of one choice. The answer has ended when each choice that was seen has.

        Args:
            finish: The vendor's word for its end; empty: more may come.
        """
        self._choices[index] = finish or self._choices.get(index, "")
        said = self._choices.values()
        self.has_ended = all(said)
        self.finish_word = next(filter(is_broken_off, said), finish or self.finish_word)

    def phase(self, word: str) -> list[Observation]:
        if word == self._phase:
            return []
        self._phase = word
        return [Phase(word)]

    def says(self, text: str) -> list[Observation]:
        """A piece of the answer."""
        self.texts.append(text)
        return self.wrote(text)

    def wrote(self, text: str) -> list[Observation]:
        self._phase = "writing"
        return [AgentText(text)] if text else []

    def fails(self, value: Any) -> list[Observation]:  # any JSON value: it comes from the wire
        """Note an error that the API states inside of an answer that began well."""
        if self.error is not None:
            return []
        self.error = Evidence(stream="http", body=value)
        return [GivenUp(evidence=self._given_up())]

    def _given_up(self, headers: Mapping[str, str] = MappingProxyType({})) -> Evidence:
        assert self.error is not None
        return msgspec.structs.replace(self.error, headers=headers, answered=self.answered)

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

    def _read(self, events: list[ServerSentEvent]) -> list[Observation]:
        seen: list[Observation] = []
        for event in events:
            if self.is_over:
                break
            self.read_events += 1
            seen.extend(self._read_one(event))
        return seen

    def _read_one(self, event: ServerSentEvent) -> list[Observation]:
        data = event.data.strip()
        value = read_object(data)
        if event.name == "error":
            said = data.decode("utf-8", "replace")[:MAX_SAID_CHARS]
            return self.fails(
                {"type": "error", "error": {"message": said}} if value is None else value
            )
        if event.problem:
            return self._damaged(event.problem)
        if value is not None:
            return self.read_event(event.name, value)
        if data == DONE:
            self.is_over = True
        elif data or event.name.endswith("delta"):
            return self._damaged("is neither JSON nor a word of this API")
        return []

    def _damaged(self, problem: str) -> list[Observation]:
        """An event that cannot be read may have been a piece of the text."""
        if self.error is not None:
            return []
        self.error = Evidence(
            text=f"the answer is damaged: event {self.read_events} of the stream {problem}",
            stream="http",
            code="malformed_response",
        )
        # Before the first piece it may be the plain text of a refusal: its status decides.
        return [GivenUp(evidence=self._given_up())] if self.answered else []

    def _responded(self, exit: HttpResponse) -> Outcome:
        if self.is_whole is False:
            # Half an event is the end of a stream that broke off, not damage.
            self._read([one for one in self._events.end() if is_readable(one)])
        if 300 <= exit.status < 400:
            return redirected(exit)
        if exit.status >= 400:
            return Evidence(
                stream="http",
                http_status=exit.status,
                headers=exit.headers,
                body=self._value()
                if self.error is None or self.error.body is None
                else self.error.body,
                answered=self.answered,
            )
        if self.is_whole:
            self._read_body()
        if self.error is not None:
            return self._given_up(exit.headers)
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
        elif isinstance(value, str) and not is_page(value):
            self.read_plain(value)

    def _judge(self, exit: HttpResponse) -> Outcome:
        """The end of an answer that states no error."""
        text = "".join(self.texts)
        without = "" if exit.truncated else ", without a reason for its end"
        broke_off = self._evidence(
            exit, "truncated_response", f"the answer breaks off before its end{without}"
        )
        is_certain = self.is_over or not self.may_repeat_end or is_broken_off(self.finish_word)
        if exit.truncated and (self.is_whole or not is_certain):
            return broke_off
        if self.has_ended:
            found = self._ended_badly()
            if found is not None:
                return self._evidence(exit, found.code, found.text)
            if text.strip():
                return Reply(text=text, usage=self.usage)
            return self._evidence(exit, None, "an answer without any text", empty=True)
        if not self._body and not exit.truncated:
            return self._evidence(exit, None, "an answer without a body", empty=True)
        body = bytes(self._body[:MAX_ERROR_BYTES]).decode("utf-8", "replace")
        if is_page(body):
            said = "a page of HTML instead of an API's answer: does base_url name the API?"
            return self._evidence(exit, "page_of_html", said)
        if exit.truncated or self.answered:
            return broke_off
        return self._evidence(exit, "malformed_response", "the answer is none of this API")

    def _ended_badly(self) -> Shortfall | None:
        """What the vendor says is missing of the answer."""
        refusal = "".join(self.refusals)[:500]
        has_text = bool("".join(self.texts).strip())
        return shortfall(
            self.finish_word,
            refusal=refusal if refusal and not has_text else "",
            has_open_call=self.has_open_call,
        )

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
            return foreign_json.decode(bytes(self._body))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return bytes(self._body[:MAX_ERROR_BYTES]).decode("utf-8", "replace")
