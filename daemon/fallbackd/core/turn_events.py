"""What opencode servers that others run report of their turns, and how rescues come along."""

from typing import Literal

from msgspec import Struct

from fallbackd.core.failures import Failure
from fallbackd.core.ids import AttemptId, BackendId, SessionId
from fallbackd.core.protocol import Usage

RescueProgress = Literal[
    "resumed", "abort", "revert", "prompt", "done", "failed", "stopped", "gone"
]
"""`resumed`: another owner continues at the step on record. `stopped`: by the user."""


class TurnBegan(Struct, frozen=True, kw_only=True, tag="turn_began"):
    """A message of the user was taken by an opencode server, and a model is asked."""

    session: SessionId
    message: str
    backend: BackendId
    server: str = ""
    project: str = ""
    role: str | None = None


class TurnFailed(Struct, frozen=True, kw_only=True, tag="turn_failed"):
    """An opencode server says that the model of a turn failed, whether it tries again or not."""

    session: SessionId
    message: str
    backend: BackendId
    failure: Failure
    server: str = ""
    project: str = ""
    role: str | None = None
    wrote: bool = False
    """The turn may have changed files."""
    is_child: bool = False
    """A subagent's session: its parent waits for it."""
    can_move: bool = False
    """That parent can be made to wait for another model."""
    is_awaited: bool = False
    """A program waits for the turn, and takes its end for the answer."""
    retries_since_at: float | None = None
    """The server tries again by itself since then; null: the turn is over."""
    is_late: bool = False
    """The server itself says that this is not so any more."""
    compacts: bool = False
    """The message asks for a compaction, which is what failed."""
    continues: bool = False
    """The server began that compaction by itself, in the middle of its work."""
    has_route: bool = True
    rescue: str = ""
    """Minted by the engine, for the rescue that may follow."""
    new_message: str = ""
    luck: float = 0.5


class TurnAnswered(Struct, frozen=True, kw_only=True, tag="turn_answered"):
    session: SessionId
    message: str
    backend: BackendId


class TurnEnded(Struct, frozen=True, kw_only=True, tag="turn_ended"):
    """Nothing is under way in the session any more."""

    session: SessionId


class TurnUsed(Struct, frozen=True, kw_only=True, tag="turn_used"):
    """What one message of a model has cost, once it is complete."""

    session: SessionId
    message: str
    backend: BackendId
    usage: Usage
    at: float


class RescueAdvanced(Struct, frozen=True, kw_only=True, tag="rescue_advanced"):
    """A step of a rescue was done, or could not be."""

    session: SessionId
    rescue: str
    outcome: RescueProgress
    """The step that comes next, or how it ended."""
    detail: str = ""
    """For people: what went wrong."""
    message: str = ""
    """With `done`: under which id the next model has it, where the server chose the id."""


class RedirectAsked(Struct, frozen=True, kw_only=True, tag="redirect_asked"):
    """A message is about to be sent: is its model the one to send it to?"""

    session: SessionId
    backend: BackendId
    server: str = ""
    project: str = ""
    role: str | None = None
    lease: AttemptId | None = None
