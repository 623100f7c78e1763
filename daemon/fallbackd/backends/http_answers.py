"""
Common reading of answers of all HTTP APIs: one body of JSON, or a stream of events.

A dialect overrides `read_event` (one JSON object of the stream) and `read_whole` (the body where
the server did not stream), and notes there what it finds: `texts`, `usage`, `finish_word`,
`has_ended`. An answer counts only when the vendor's own sign says that it is complete and every
event before that sign could be read. Whatever else comes (an error inside of a stream with status
200, a damaged event, a page of HTML, a redirect) is evidence.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, assert_never

import msgspec
from msgspec import Struct

from fallbackd.backends.lines import count, fields, read_object, without_process, words
from fallbackd.classify.error_json import is_error
from fallbackd.classify.rules import Rule
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
from fallbackd.core.reasons import Reason
from fallbackd.lib import foreign_json
from fallbackd.lib.sse import EventReader, ServerSentEvent
from fallbackd_conversations.turns import Utterance
from fallbackd_conversations.words import whole

DONE = b"[DONE]"
"""The last event of a stream of chat completions; gateways send it behind other dialects too."""
MISMATCH = "mismatch"
"""Ours: the text that the API repeats at the end is not the one that it sent."""

IN_BACKGROUND = "in_background"
"""Ours: the answer is not there yet, or not any more, and may be asked for by its id."""


class Shortfall(Struct, frozen=True):
    code: str
    """Code for the rules of `http_answers`."""
    text: str


_OUTPUT_LIMIT = Shortfall(
    "output_limit",
    "the answer was cut off at the limit of output tokens: raise max_output_tokens",
)
_CONTEXT = Shortfall(
    "model_context_window_exceeded", "prompt and answer do not fit into the model's context"
)

_CUT_AT_LENGTH = frozenset({"length", "max_tokens", "max_output_tokens"})
_OUT_OF_CONTEXT = frozenset({"model_context_window_exceeded", "model_length"})
_FILTERED = frozenset(
    {
        "blocklist",
        "content_filter",
        "image_safety",
        "language",
        "prohibited_content",
        "recitation",
        "refusal",
        "safety",
        "sensitive",
        "spii",
    }
)
_UNFINISHED: Mapping[str, str] = {
    "function_call": "the model called a tool that was not offered",
    "malformed_function_call": "the model called a tool that was not offered",
    "pause_turn": "the model paused in the middle of its turn",
    "tool_calls": "the model called a tool that was not offered",
    "tool_use": "the model called a tool that was not offered",
    "unexpected_tool_call": "the model called a tool that was not offered",
}
_BROKEN_OFF = frozenset(
    {
        "abort",
        "cancelled",
        "error",
        "failed",
        "finish_reason_unspecified",
        "incomplete",
        "network_error",
        "other",
        "unknown",
    }
)
_VAGUE = frozenset({"finish_reason_unspecified", "incomplete", "other", "unknown"})
"""Ends that say little in the place of a provider's own word."""
_NO_CAPACITY = "insufficient_system_resource"
"""End for want of capacity."""


def is_broken_off(word: str) -> bool:
    """A word for an end that is none, such as `error`: what came before it is not an answer."""
    return _plain(word) in _BROKEN_OFF or _plain(word) == _NO_CAPACITY


def native_end(word: str, native: str) -> str:
    """
    The word that counts where an aggregator gives its own and that of the provider behind it: it
    calls a generation that broke there a `stop`.
    """
    return native if is_broken_off(native) and _plain(native) not in _VAGUE else word


def _plain(word: str) -> str:
    return word.lower().partition(":")[0].strip()


def shortfall(
    finish_word: str, *, refusal: str = "", has_open_call: bool = False
) -> Shortfall | None:
    """
    Shortfall of an answer, by the vendor's own word for its end; None: nothing.

    Args:
        refusal: The model's own words, where it refused instead of answering.
        has_open_call: The answer ends with the call of a tool, whatever the word says.
    """
    word = _plain(finish_word)
    if word in _CUT_AT_LENGTH:
        return _OUTPUT_LIMIT
    if word in _FILTERED or refusal:
        return Shortfall("filtered_answer", f"the provider withheld the answer: {refusal or word}")
    if word in _OUT_OF_CONTEXT:
        return _CONTEXT
    if word in _BROKEN_OFF:
        return Shortfall("broken_generation", f"the answer broke off: {word}")
    if word == _NO_CAPACITY:
        return Shortfall("no_capacity", f"the answer broke off: {word}")
    if word == MISMATCH:
        return Shortfall("malformed_response", "the answer is not the one that its end repeats")
    if word == IN_BACKGROUND:
        return Shortfall("answer_in_background", "the answer is made in the background")
    if word in _UNFINISHED or has_open_call:
        why = _UNFINISHED.get(word, _UNFINISHED["tool_calls"])
        return Shortfall("unfinished_answer", f"the answer is not finished: {why}")
    return None


_PAGE = re.compile(r"\s{0,100}<(?:!doctype|html|head|body|title|center|h1|\?xml|!--)", re.I)


def states_error(value: dict[str, Any]) -> bool:
    """A JSON object that says of itself that it is an error."""
    names = (value.get("type"), value.get("object"))
    return bool(value.get("error")) or "error" in names or is_error(value)


def is_readable(event: ServerSentEvent) -> bool:
    """Check whether the data of an event can be read at all."""
    data = event.data.strip()
    return event.name == "error" or data == DONE or read_object(data) is not None


def is_page(text: str) -> bool:
    """Check whether a text is a page for browsers."""
    return bool(_PAGE.match(text.removeprefix("\ufeff")))


def redirected(exit: HttpResponse) -> Evidence:
    """A redirect is not followed: it would carry the key to an address that is not configured."""
    place = words(exit.headers.get("location")).partition("?")[0][:300] or "nowhere"
    return Evidence(
        text=f"the server redirects to {place}, which is not followed: "
        "set base_url to the address of the API itself",
        stream="http",
        http_status=exit.status,
        code="redirected",
    )


def numbered(choices: object) -> list[tuple[int, dict[str, Any]]]:
    """The choices or candidates of an answer, each with its index."""
    found = list(map(fields, choices)) if isinstance(choices, list) else []
    return [
        (place_of(at if one.get("index") is None else one.get("index")), one)
        for at, one in enumerate(found)
    ]


def place_of(index: object) -> int:
    """The number of a part of an answer, within the bound for what is kept of each."""
    return min(count(index), MAX_PARTS)


def first_choice(value: dict[str, Any]) -> dict[str, Any]:
    return next((one for _, one in numbered(value.get("choices"))), {})


def turns(
    earlier: Sequence[Utterance], prompt: str
) -> Iterator[tuple[Literal["user", "assistant"], str]]:
    """
    Yield the earlier turns, then the prompt. Roles alternate, as some of the APIs demand.

    Tools of other programs are text here: no request offers them.
    """
    role: Literal["user", "assistant"] = "user"
    texts: list[str] = []
    for one in (*earlier, Utterance(role="user", text=prompt)):
        text = whole(one, between="\n\n")
        if one.role != role and texts:
            yield role, "\n\n".join(texts)
            texts = []
        role = one.role
        texts.append(text)
    yield role, "\n\n".join(texts)


def as_messages(earlier: Sequence[Utterance], prompt: str) -> list[dict[str, Any]]:
    """The shape that OpenAI's chat completions and Anthropic's messages share."""
    return [{"role": role, "content": text} for role, text in turns(earlier, prompt)]


MAX_WHOLE_BYTES = 32 * 1024 * 1024
MAX_ERROR_BYTES = 256 * 1024
MAX_SAID_CHARS = 4000
MAX_REFUSAL_CHARS = 500
MAX_PARTS = 1000
"""Parts of one answer (items, choices) with a record of their own; the rest share one."""

RULES = (
    Rule("http-cut-off", Reason.NETWORK, codes=("truncated_response", "answer_in_background")),
    # The provider itself says that its generation broke: another model of it may well answer.
    Rule("http-generation", Reason.SERVER_ERROR, scope="model", codes=("broken_generation",)),
    Rule("http-capacity", Reason.OVERLOADED, codes=("no_capacity",)),
    Rule("http-malformed", Reason.SERVER_ERROR, codes=("malformed_response",)),
    # Not a fault of the provider: another one may write longer answers, so one hop is tried.
    Rule("http-output-limit", Reason.FORMAT_ERROR, detail="output_limit", codes=("output_limit",)),
    Rule("http-filtered", Reason.CONTENT_POLICY, codes=("filtered_answer",)),
    Rule("http-context", Reason.CONTEXT_OVERFLOW, codes=("model_context_window_exceeded",)),
    # It asked for a tool that nothing offered, or paused: another try may bring the answer.
    Rule("http-unfinished", Reason.EMPTY_RESULT, detail="unfinished", codes=("unfinished_answer",)),
    Rule("http-redirect", Reason.NOT_CONFIGURED, detail="redirect", codes=("redirected",)),
    Rule("http-page", Reason.NOT_CONFIGURED, detail="no_api", codes=("page_of_html",)),
    Rule(
        "http-url",
        Reason.NOT_CONFIGURED,
        detail="base_url",
        codes=("invalidurl", "unsupportedprotocol"),
    ),
    Rule(
        "http-header",
        Reason.NOT_CONFIGURED,
        detail="header",
        codes=("localprotocolerror", "unicodeencodeerror"),
    ),
    # A proxy of the environment that is no URL, or a SOCKS one without the package for it.
    Rule("http-proxy", Reason.NOT_CONFIGURED, detail="proxy", codes=("importerror", "valueerror")),
    Rule(
        "http-proxy-login",
        Reason.LOCAL_NETWORK,
        detail="proxy_login",
        retry=False,
        codes=("proxylogin",),
    ),
    Rule(
        "http-proxy-refused",
        Reason.LOCAL_NETWORK,
        detail="proxy",
        codes=("proxyrefused", "proxyunreachable"),
    ),
    Rule("http-tls-files", Reason.NOT_CONFIGURED, detail="tls_files", codes=("tlsfiles",)),
    Rule(
        "http-tls",
        Reason.TLS,
        r"WRONG_VERSION_NUMBER|UNSUPPORTED_PROTOCOL|ALERT_PROTOCOL_VERSION|CERTIFICATE_REQUIRED"
        r"|HANDSHAKE_FAILURE|UNKNOWN_CA|record layer failure|HTTP_REQUEST\b",
        streams=("exception",),
    ),
)
"""Rules that go before those of the vendor and the common ones."""


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
        """Ends of several answers that one caller wants at once."""
        self.is_over = False
        """Nothing that still comes belongs to the answer."""
        self.has_open_call = False
        """The last that it said is a call of a tool, which nothing will answer."""
        self.sequence_number = -1
        """Number of the last event, where the API counts them."""
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
        """Number of events that have come."""
        self._body = bytearray()
        self.is_whole: bool | None = None
        """True for one body, False for a stream; None: not known before the first bytes."""
        self._phase = ""

    def forget(self) -> None:
        """
        Keep of what was written as much as a judgement needs: an answer that is passed on piece by
        piece may be endless.
        """
        self.texts = [one.strip()[:1] for one in self.texts if one.strip()][:1]
        refusal = "".join(self.refusals)[:MAX_REFUSAL_CHARS]
        self.refusals = [refusal] if refusal else []

    # For a dialect to say.

    def read_event(self, name: str, event: dict[str, Any]) -> list[Observation]:
        """Read one JSON object of a stream."""
        raise NotImplementedError

    def read_whole(self, value: dict[str, Any]) -> None:
        """Read the one JSON object of an answer that was not streamed."""
        raise NotImplementedError

    def read_plain(self, text: str) -> None:
        """Read a whole answer that is not JSON; only the oldest API has such."""

    # What they share.

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
        """Check that it is one JSON object, all that can be asked of an answer no model wrote."""
        return self.is_whole is True and isinstance(self._value(), dict)

    def chose(self, index: int, finish: str) -> None:
        """
        Note a piece of one choice. The answer has ended when each choice that was seen has.

        Args:
            finish: The vendor's word for its end; empty: more may come.
        """
        if not finish and index in self._choices:
            return
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
            return self._damaged("is neither JSON nor an event of this API")
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
        return self._of_rest(exit) or broke_off

    def _of_rest(self, exit: HttpResponse) -> Evidence | None:
        """The failure of an answer without its end; None: it breaks off."""
        if not self._body and not exit.truncated:
            return self._evidence(exit, None, "an answer without a body", empty=True)
        body = bytes(self._body[:MAX_ERROR_BYTES]).decode("utf-8", "replace")
        if is_page(body):
            said = "a page of HTML instead of an API's answer: does base_url name the API?"
            return self._evidence(exit, "page_of_html", said)
        if exit.truncated or self.answered:
            return None
        return self._evidence(exit, "malformed_response", "the answer is none of this API")

    def _ended_badly(self) -> Shortfall | None:
        """Shortfall of the answer by the vendor's own word."""
        refusal = "".join(self.refusals)[:MAX_REFUSAL_CHARS]
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
