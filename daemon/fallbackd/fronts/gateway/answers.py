"""Answers to a caller: a head and its body, a refusal, an answer that broke off."""

from collections.abc import Mapping, Set
from typing import Any, Protocol

import msgspec
from msgspec import Struct, structs

from fallbackd.backends import passage
from fallbackd.backends.passage import Passage, error_body
from fallbackd.backends.spec import ApiMode
from fallbackd.core.protocol import Evidence, HttpResponse
from fallbackd.core.reasons import FINAL, Reason
from fallbackd.core.records import Verdict, VerdictWord


class AnswerHead(Struct, frozen=True, kw_only=True):
    """The head of what is sent back."""

    status: int
    headers: list[tuple[str, str]]


class ToCaller(Protocol):
    """Receiver of an answer: `begin` once, then `send`; or `write`, and `drained` after a False."""

    @property
    def takes_pieces(self) -> bool:
        """False: without its length an answer that is cut looks whole there."""
        ...

    @property
    def has_left(self) -> bool:
        """The caller has hung up."""
        ...

    def holds(self, size: int) -> bool:
        """Return whether so much of an answer may be held for it, see `room`."""
        ...

    async def begin(self, reply: AnswerHead) -> None: ...

    async def send(self, data: bytes) -> None: ...

    def write(self, data: bytes) -> bool:
        """Send at once, as `send` does. False: the caller does not keep up."""
        ...

    async def drained(self) -> None:
        """Returns when the caller has read on."""
        ...


class Refusal(Exception):
    """Nothing is passed on, or nothing more. Reported in the form of the API."""

    def __init__(self, status: int, message: str, code: str, *, retry_after: float | None = None):
        super().__init__(message)
        self.status, self.message, self.code = status, message, code
        self.retry_after_s = retry_after
        self.said: list[tuple[str, str]] = []
        """Headers of our own."""


class Aborted(Exception):
    """The answer cannot be finished: the connection is to be closed without its end."""


class NotAnswered(Struct, frozen=True, kw_only=True):
    """The failure of a backend that did not answer; its own words, where it said some."""

    evidence: Evidence
    reply: AnswerHead | None = None
    body: bytes = b""
    reason: Reason = Reason.UNKNOWN
    """Its meaning, when that has been judged."""
    unsuited: str = ""
    """Why it cannot serve this request, through no fault of its own; empty: it has failed."""
    is_translated: bool = False
    """The request was put into the words of another API, which may be what was refused."""

    @property
    def passes(self) -> bool:
        """Return whether the caller may wait for the end of it, and then be answered."""
        return self.reason.row.is_over_by_itself

    @property
    def is_refusal(self) -> bool:
        """Return whether another backend may well take what this one refused."""
        return not (self.unsuited or self.passes or self.reason in FINAL)


_STATUS: Mapping[Reason, int] = {
    Reason.AUTH: 401,
    Reason.BILLING: 402,
    Reason.CONTENT_POLICY: 400,
    Reason.CONTEXT_OVERFLOW: 400,
    Reason.FORMAT_ERROR: 400,
    Reason.MODEL_NOT_FOUND: 404,
    Reason.OVERLOADED: 503,
    Reason.PAYLOAD_TOO_LARGE: 413,
    Reason.PERMISSION: 403,
    Reason.PROVIDER_POLICY: 403,
    Reason.RATE_LIMIT: 429,
    Reason.USAGE_LIMIT: 429,
}


def to_be_told(before: NotAnswered | None, now: NotAnswered) -> NotAnswered:
    """
    Choose which of two failures goes back where nothing answers: the last one, unless the earlier
    one can be waited for, and what was refused since is a matter of a backend further down.
    """
    if before is None or (before.unsuited and not now.unsuited):
        return now
    if now.unsuited:
        return before
    is_of_fallback = (now.is_translated or before.passes) and now.reason not in FINAL
    return before if is_of_fallback and not now.passes else now


def status_of_error(failed: NotAnswered) -> int | None:
    """
    Find the status with which a backend's own words about its failure go back; None: it said none,
    or they are a redirect, which the caller would follow with its login.

    An error that came with status 200 keeps it as an event of a stream, where clients look for
    one; a body that is nothing else would be taken for the answer.
    """
    if failed.reply is None:
        return None
    if failed.reply.status >= 400:
        return failed.reply.status
    if failed.evidence.body is None or failed.evidence.answered:
        return None
    is_event = failed.body.lstrip()[:1] not in (b"{", b"[")
    return failed.reply.status if is_event else _STATUS.get(failed.reason, 502)


_OF_THE_REQUEST: Set[VerdictWord] = {"context", "protocol", "disabled", "not_configured"}
"""Verdicts that do not change while the request stays as it is."""


def refuse_by_rule(verdicts: Set[VerdictWord]) -> None:
    """
    Raises:
        Refusal: A rule that the caller can satisfy keeps the backends from answering.
    """
    if "consent" in verdicts:
        text = "only backends that bill each call are available: allow_metered = true in"
        text += " [gateway], or the header x-fallbackd-allow-metered: 1, lets them answer"
        raise Refusal(402, text, "consent")
    if "context" in verdicts and verdicts <= _OF_THE_REQUEST:
        text = "the prompt is longer than the context_tokens of each backend that could answer;"
        text += " shorten the conversation, or configure a backend with a larger context"
        raise Refusal(400, text, "context_length_exceeded")
    if "must_differ" in verdicts:
        text = "this role is answered by another model family than the author's (must_differ_from),"
        text += " and no such backend is available. The author is who answered last in a creative"
        text += " role of the same conversation (x-fallbackd-session); where there is none, no"
        text += " family is known to differ"
        raise Refusal(409, text, "must_differ")


NO_SUCH_CALL = frozenset({404, 405, 501})
"""Said of a call beside the generation of text, which not every provider answers."""


def unsuited(mode: ApiMode, why: str) -> NotAnswered:
    """The request cannot be put into the words of this backend."""
    reply, body = told(mode, Refusal(400, why, "invalid_body"))
    return NotAnswered(evidence=Evidence(), reply=reply, body=body, unsuited=why)


def unless_aside(failed: NotAnswered, asked: Passage) -> NotAnswered:
    """
    Return the failure unchanged but where its backend does not know a call beside the generation of
    text, or fails at one that no model answers: such calls have limits of their own.
    """
    status = failed.evidence.http_status
    if not asked.side or status is None:
        return failed
    says_nothing = not asked.generates and status not in (401, 403)
    if status not in NO_SUCH_CALL and not says_nothing:
        return failed
    return structs.replace(failed, unsuited=f"it answers {status} to {asked.side}")


_NOT_SENT = frozenset(
    {
        *("NotConfigured", "ConnectError", "ConnectTimeout", "LocalProtocolError", "InvalidURL"),
        *("UnsupportedProtocol", "UnicodeError", "UnicodeEncodeError", "ValueError", "TlsFiles"),
        *("ImportError",),
        *("ForeignListener", "ProxyLogin", "ProxyRefused", "ProxyUnreachable"),
        *("NO_SECRET", "OLD_SECRET"),
    }
)
"""Names of failures before the first byte of a request has left."""
_NOT_TAKEN = frozenset({*range(400, 500), 503, 529})
"""Statuses with which a provider says that it has not begun."""


def may_have_begun(evidence: Evidence) -> bool:
    """Return whether a backend may do what a request asked for, although it did not answer it."""
    if evidence.http_status is not None:
        return evidence.http_status not in _NOT_TAKEN
    return not {evidence.exception, evidence.code} & _NOT_SENT


def unfinished(why: str) -> Refusal:
    """Make the refusal of a request that acts, of which it is not known whether it was begun."""
    text = f"the backend did not answer ({why[:300] or 'no word'}) and may have begun what this"
    text += " request asks for (background, store or hosted tools), so that it was not sent again:"
    text += " look for its result at the provider before you repeat it"
    return Refusal(502, text, "may_have_begun")


def still_limited(awaited: Verdict, failed: NotAnswered, *, now: float) -> Refusal:
    """Make the refusal that replaces one of a backend asked instead of one that is out for now."""
    name, reason = awaited.backend, Reason(awaited.reason or "")
    wait_s = max(1.0, (awaited.until_at or now) - now)
    text = f"{name} is out of rotation: {reason.value}. The backend that was asked instead refused"
    text += f" the request: {failed.reason.value}. Try again later: fallbackd-client health"
    return Refusal(_STATUS.get(reason, 503), text, reason.value, retry_after=wait_s)


def silent(limit_s: float) -> NotAnswered:
    text = f"no answer within {round(limit_s, 1):g} s"
    return NotAnswered(evidence=Evidence(text=text, stream="exception", exception="ReadTimeout"))


def reply_of(head: HttpResponse) -> AnswerHead:
    return AnswerHead(status=head.status, headers=passage.returned(list(head.headers.items())))


def told(mode: Any, refusal: Refusal) -> tuple[AnswerHead, bytes]:
    """A refusal as an answer."""
    body = msgspec.json.encode(error_body(mode, refusal.status, refusal.message, refusal.code))
    headers = [("content-type", "application/json"), *refusal.said]
    if refusal.retry_after_s is not None:
        headers.append(("retry-after", str(round(refusal.retry_after_s))))
    return AnswerHead(status=refusal.status, headers=headers), body
