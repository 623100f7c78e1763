"""Ways out of the daemon: calls of backends, passed requests, looks, secrets, the clock."""

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Literal, Protocol

from msgspec import Struct

from fallbackd.core.protocol import (
    Call,
    Chunk,
    CredentialRef,
    Exit,
    HttpRequest,
    HttpResponse,
    Inquiry,
)

# The clock: what time it is.


class Clock(Protocol):
    def now(self) -> float:
        """Unix seconds, UTC, that advance with CLOCK_BOOTTIME (sleep of the machine included)."""
        ...

    def step(self) -> float:
        """
        Follow a wall clock that was set.

        Returns:
            Seconds by which `now` has just been shifted; 0.0 unless the wall clock differs by
            more than 60 s from what elapsed time says. The caller shifts its windows with it.
        """
        ...

    def slept(self) -> float:
        """Seconds that the machine was suspended since this was last asked; 0.0 for moments."""
        ...

    def boot_id(self) -> str: ...


# Secrets, found by reference, at the moment of their use, never kept.


KEY_NAME_BYTES = 8
"""A digest begins with as many bytes that name its key."""


class SecretProblem(Exception):
    """
    A credential cannot be used now. Its text says where and what to do, never what was found.

    Attributes:
        is_old: It is there, and has expired; else it is missing or cannot be read.
    """

    def __init__(self, text: str, *, is_old: bool = False) -> None:
        super().__init__(text)
        self.is_old = is_old


class SecretSeen(Struct, frozen=True, kw_only=True):
    """The result of a look at a credential's source."""

    problem: str | None = None
    """The reason why it cannot be used; None: it is there."""
    is_old: bool = False
    digest: bytes | None = None
    """
    Of the material, keyed. Digests that begin with different `KEY_NAME_BYTES` were made with
    different keys, and say nothing about each other. None: there is none to compare.
    """
    changed_at: float | None = None
    """Time when its source was last changed, where the source says so."""


class Secrets(Protocol):
    async def read(self, ref: CredentialRef) -> str:
        """
        The secret, for one call.

        Raises:
            SecretProblem: It is not there, or over.
        """
        ...

    async def identity(self, ref: CredentialRef) -> str:
        """
        Return what is the same wherever the same credential is used: of a login the account, since
        its tokens are renewed, else the secret itself. For keyed digests only.

        Raises:
            SecretProblem: It is not there, or over.
        """
        ...

    async def look(self, ref: CredentialRef, *, fresh: bool = False) -> SecretSeen:
        """
        See whether it is there and whether it is another one than before, without using it.

        Args:
            fresh: Ask a command again whose last answer is still good for use.
        """
        ...


# Looks at a backend that cost nothing: its version, and the list of its models.


class Fetched(Struct, frozen=True, kw_only=True):
    exit: Exit
    body: bytes = b""
    """At most a megabyte."""


class Probe(Protocol):
    async def version(self, program: str) -> str | None:
        """Return what a program says about its version, in a line; None: nothing within seconds."""
        ...

    def known_version(self, program: str) -> str | None:
        """
        Return the version without running the program: from an earlier answer, or the package that
        it is in.
        """
        ...

    async def ask(
        self, program: str, inquiry: Inquiry, environ: Mapping[str, str]
    ) -> Mapping[str, Any] | None:
        """
        Start a program, give it the lines of a question, and end it.

        Returns:
            The answer, as the program says it; None: none within seconds.
        """
        ...

    async def fetch(self, request: HttpRequest) -> Fetched:
        """One request that is never billed. Bounded in time and size; never raises for it."""
        ...


# A request of a caller that is passed on, and its answer as it arrives.


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


class Running(Protocol):
    """One call that is under way. `chunks` ends by itself, after `stop` too."""

    @property
    def pid(self) -> int | None: ...

    def chunks(self) -> AsyncIterator[Chunk]:
        """Yield what comes, in order, until the end. To be iterated once."""
        ...

    def stop(self, *, grace_s: float) -> None:
        """Ask it to end: politely, then by force after `grace_s`. Returns at once; idempotent."""
        ...

    @property
    def exit(self) -> Exit:
        """The end of the call. Only after `chunks` is exhausted."""
        ...

    @property
    def log_bytes(self) -> int:
        """Size of the log up to the last chunk that was yielded."""
        ...

    @property
    def recorded_bytes(self) -> int:
        """Size of the log when this was opened: 0, unless it was re-attached."""
        ...


class Resting(Struct, frozen=True, kw_only=True):
    """One resident, for people."""

    program: str
    cwd: str
    state: Literal["starting", "ready", "working"]
    pid: int | None
    since_at: float
    memory_bytes: int | None


class Unsent(Struct, frozen=True):
    """A call that was opened and, by its record, never sent: `attach` returns it."""


class Transport(Protocol):
    async def open(
        self, call: Call, *, attempt: str, directory: str, env: dict[str, str]
    ) -> Running:
        """
        Start `call`. Never raises for what the other side does: that is an `Exit`.

        Args:
            attempt: Its id, for logs and for the environment of children.
            directory: Private directory of the attempt (exists, 0700); the log goes there.
            env: Variables that mark the children (`FALLBACKD_DELEGATION`, …).
        """
        ...

    async def attach(self, *, attempt: str, directory: str) -> Running | Unsent | None:
        """
        Re-attach to what an earlier daemon began in `directory`: it still runs, or has ended.

        Its chunks begin with the first byte that was recorded, with the times of then.

        Returns:
            Unsent: nothing was started there, and from now on nothing will be: a record proves it.
            None: the same, as far as can be seen: there is no record of any beginning.
        """
        ...

    async def detach(self) -> None:
        """Let go of what runs, for a later daemon to take it up."""
        ...

    async def aclose(self) -> None:
        """Stop whatever the transport itself keeps alive."""
        ...
