"""What goes back to a caller: a head and its body, a refusal, an answer that broke off."""

from typing import Any, Protocol

import msgspec
from msgspec import Struct

from fallbackd.backends import passage
from fallbackd.core.protocol import Evidence, HttpResponse


class AnswerHead(Struct, frozen=True, kw_only=True):
    """The head of what is sent back."""

    status: int
    headers: list[tuple[str, str]]


class ToCaller(Protocol):
    """Where an answer goes: `begin` once, then `send`; or `write`, and `drained` after a False."""

    async def begin(self, reply: AnswerHead) -> None: ...

    async def send(self, data: bytes) -> None: ...

    def write(self, data: bytes) -> bool:
        """As `send`, at once. False: the caller does not keep up."""
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


class Aborted(Exception):
    """The answer cannot be finished: the connection is to be closed without its end."""


class NotAnswered(Struct, frozen=True, kw_only=True):
    """What a backend did instead of answering; its own words, where it said some."""

    evidence: Evidence
    reply: AnswerHead | None = None
    body: bytes = b""


def silent(limit_s: float) -> NotAnswered:
    text = f"no answer within {limit_s:g} s"
    return NotAnswered(evidence=Evidence(text=text, stream="exception", exception="ReadTimeout"))


def reply_of(head: HttpResponse) -> AnswerHead:
    return AnswerHead(status=head.status, headers=passage.returned(list(head.headers.items())))


def told(mode: Any, refusal: Refusal) -> tuple[AnswerHead, bytes]:
    """A refusal as an answer."""
    body = msgspec.json.encode(
        passage.error_body(mode, refusal.status, refusal.message, refusal.code)
    )
    headers = [("content-type", "application/json")]
    if refusal.retry_after_s is not None:
        headers.append(("retry-after", str(round(refusal.retry_after_s))))
    return AnswerHead(status=refusal.status, headers=headers), body
