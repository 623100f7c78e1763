"""What is kept of an opencode session besides what every session has."""

from typing import Literal

from msgspec import Struct

from fallbackd.core.ids import AttemptId, BackendId
from fallbackd.core.protocol import Usage
from fallbackd.core.turn import Turn


class Message(Struct, frozen=True, kw_only=True):
    """What is under way in an opencode session: a prompt of the user on one model."""

    id: str
    backend: BackendId
    began_at: float
    turn: Turn | None = None
    """Of what the user wrote, over all models that it was sent to."""
    running: bool = True
    answered: bool = False
    is_marked: bool = False
    """Its model was marked for it: what still comes is the same failure."""
    lease: AttemptId | None = None
    """Of the trial that this turn is."""
    compacts: bool = False
    """The message asks for a compaction of the session, not for an answer."""


RescueStep = Literal["abort", "revert", "prompt"]


class Rescue(Struct, frozen=True, kw_only=True):
    """A failed turn on its way to the next model: the lock of an opencode session."""

    id: str
    message: str
    """Of the turn that failed."""
    left: BackendId
    to: BackendId
    model: str
    """`provider/model` of `to`, as the server names it."""
    new_message: str
    """Under which the message is sent again: whether that was done can be looked up."""
    step: RescueStep = "abort"
    """The next one to do, or under way."""
    reverts: bool = True
    """False: the turn has written files, which a revert would take back."""
    role: str | None = None
    reason: str
    evidence: str = ""
    began_at: float
    """When its step began."""
    since_at: float = 0.0
    """When the rescue itself began; 0 in records of a daemon that did not keep it."""
    lease: AttemptId | None = None
    compacts: bool = False
    """A compaction failed: it is repeated, and no turn is touched."""
    continues: bool = False
    """A compaction that the server began by itself: the model continues its turn afterwards."""
    turn: Turn | None = None
    """With the move to `to`."""


class Period(Struct, frozen=True, kw_only=True):
    """A time in which a session was on one model, up to the beginning of the next one."""

    backend: BackendId
    from_at: float
    usage: Usage = Usage()
