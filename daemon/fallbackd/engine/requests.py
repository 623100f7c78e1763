"""Requests of callers and results of the engine, beside the records of core."""

from typing import Literal

from msgspec import Struct, field

from fallbackd.core.decision import Rejection
from fallbackd.core.policy import Entry
from fallbackd.core.records import Asked


class Refused(Exception):
    """A request that never becomes a delegation, or a `resolve` without a usable candidate."""

    def __init__(self, rejection: Rejection) -> None:
        super().__init__(rejection.message)
        self.rejection = rejection


class NotPermitted(Exception):
    """A path or a variable that this daemon does not allow. The message says what to do."""


class Invalid(Exception):
    """A parameter that cannot be (a NUL in argv, a directory that is gone). Says what to do."""


class Unknown(Exception):
    """No such delegation, session, backend or attempt."""


DRAINS = (
    "the daemon is draining and takes no new work until it is started again, or until"
    " `fallbackd-client undrain`"
)


class Draining(Exception):
    """No new work: the daemon drains, or its records cannot be written. Says why."""

    def __init__(self, message: str = DRAINS, *, kind: str = "draining") -> None:
        super().__init__(message)
        self.kind = kind


class NotKept(Exception):
    """Done, but not on record: a restart of the daemon undoes it. Says why, and what to do."""


class Withdrawn(Exception):
    """Nothing was begun: the request was taken back, or its caller has hung up before."""


class NewWork(Asked, frozen=True, kw_only=True):
    """The parameters of `delegate`, aliases resolved."""

    prompt: str
    chain: tuple[Entry, ...] | str | None = None
    session: str | None = None
    cwd: str | None = None
    mode: Literal["interactive", "batch"] | None = None
    wait: Literal["accepted", "settled", "finished"] = "settled"
    env: dict[str, str] = field(default_factory=dict)
    differs_from: tuple[str, ...] = ()
    """Families of models, or delegations whose author is meant."""
    parent: str | None = None
    when_available: bool = False
    """Wait until a backend is available, instead of being refused; so do the next four."""
    wait_for_s: float | None = None
    wait_until_at: float | None = None
    not_before_at: float | None = None
    not_before_s: float | None = None
    priority: int = 0

    def __repr__(self) -> str:
        return f"NewWork(<{len(self.prompt)} chars>, backend={self.backend!r})"


def mode_of(work: NewWork) -> Literal["interactive", "batch"]:
    """Mode of the work; a caller that names none and waits for first signs is interactive."""
    return work.mode or ("interactive" if work.wait == "settled" else "batch")


class LogPart(Struct, frozen=True, kw_only=True):
    """A piece of an attempt's log. Offsets are bytes; `text` is cut at whole characters."""

    attempt: str | None
    """Attempt of the log; None: the delegation has made none yet, or ended without one."""
    log_path: str | None
    text: str
    offset: int
    next_offset: int
    size_bytes: int
    ended: bool
