"""A request of a caller that is passed on, and its answer as it arrives."""

from typing import Protocol

from fallbackd.core.protocol import Exit, HttpRequest, HttpResponse


class PassedOn(Protocol):
    async def head(self) -> HttpResponse | None:
        """Send it. None: there is no answer; `exit` says why. Never raises for the other side."""
        ...

    async def read(self) -> bytes | None:
        """The next piece of the body; None: it is over, and `exit` says how. After `head`."""
        ...

    @property
    def exit(self) -> Exit:
        """How it ended. Only after `head` or `read` gave None."""
        ...

    async def aclose(self) -> None:
        """Drop the connection where the answer is not over. Idempotent."""
        ...


class PassOn(Protocol):
    async def __call__(self, request: HttpRequest) -> PassedOn: ...
