"""A request of a caller that is passed on, and its answer as it arrives."""

from collections.abc import Callable
from typing import Any, Protocol

from fallbackd.core.protocol import Exit, HttpRequest, HttpResponse

TakePiece = Callable[[bytes], bool]
"""Takes one piece of a body at once, and says whether it wants the next one."""


class PassedOn(Protocol):
    async def head(self) -> HttpResponse | None:
        """Send it. None: there is no answer; `exit` says why. Never raises for the other side."""
        ...

    async def read(self) -> bytes | None:
        """The next piece of the body; None: it is over, and `exit` says how. After `head`."""
        ...

    async def flow(self, take: TakePiece) -> bool:
        """
        Hand each piece of the body to `take` as it arrives, and what is left at the end.

        Returns:
            False: `take` wants no more for now. True: it is over, and `exit` says how.
        """
        ...

    @property
    def exit(self) -> Exit:
        """The end of the exchange. Only after `head` or `read` gave None."""
        ...

    @property
    def stated(self) -> Any:
        """The error that its provider stated inside of it, where it is passed on in other words."""
        ...

    def masked(self, data: bytes) -> bytes:
        """
        An error that came with status 200, asterisks in the place of the secrets of the request:
        what `read` and `flow` give of such an answer is as it came. Of any other status it is so.
        """
        ...

    async def aclose(self) -> None:
        """Drop the connection where the answer is not over. Idempotent, not to be cancelled."""
        ...


class PassOn(Protocol):
    async def __call__(self, request: HttpRequest) -> PassedOn: ...
