"""
Outputs of a decision: what is kept (`Change`), announced (`Note`), answered and done (`Effect`).

The store makes the changes of one `Decision` durable together.
"""

from typing import Any, Literal

from msgspec import Struct, field

from fallbackd.core.health import Health
from fallbackd.core.history import HourUse
from fallbackd.core.ids import AttemptId, BackendId, DelegationId, SessionId
from fallbackd.core.records import Delegation, Meter, Session, Verdict

# Effects that the core orders. Imperative; performed by the engine after the changes are durable.


class StartAttempt(Struct, frozen=True, kw_only=True, tag="start_attempt"):
    """Ends in exactly one `AttemptEnded`."""

    attempt: AttemptId
    delegation: DelegationId
    backend: BackendId
    model: str | None = None
    effort: str | None = None
    credential: str | None = None
    """Label of the one that makes the call; None: the backend's own login."""
    handoff: str | None = None
    """What the attempt before did, placed after the prompt; None: the prompt as it is."""
    resume: str | None = None
    """The agent's own conversation that broke off, to continue with a short prompt that says so."""
    taken_up: bool = False
    """An earlier run of the daemon has ordered it: it may run, or have ended. What was never
    started is started now."""
    was_started: bool = False
    """It is known to have been started: if no trace of it is found, its outcome is unknown."""
    rebooted: bool = False
    """Under another boot of the machine: it runs no more, and is not started again."""


class StopAttempt(Struct, frozen=True, kw_only=True, tag="stop_attempt"):
    """Its `AttemptEnded` says whether the whole tree was proven gone."""

    attempt: AttemptId
    grace_s: float


class Answer(Struct, frozen=True, kw_only=True, tag="answer"):
    """The delegation has its one answer: wake every caller that waits for it."""

    delegation: DelegationId


class AskPerson(Struct, frozen=True, kw_only=True, tag="ask_person"):
    """A question is open: callers that wait for the end receive the question first."""

    delegation: DelegationId


class GoOn(Struct, frozen=True, kw_only=True, tag="go_on"):
    """The question is answered: from now on callers wait for the end again."""

    delegation: DelegationId


class WakeAt(Struct, frozen=True, kw_only=True, tag="wake_at"):
    """Bring `Woke` at `at`. A later order for the same key replaces an earlier one."""

    at: float
    delegation: DelegationId
    attempt: AttemptId | None = None
    purpose: Literal["limits", "wait", "deadline"] = "limits"


class WakeWaiting(Struct, frozen=True, kw_only=True, tag="wake_waiting"):
    """Something that waiting delegations wait for has changed: bring each a `Woke` now."""


class OpenWindow(Struct, frozen=True, kw_only=True, tag="open_window"):
    """Let people follow the log of a delegation at a terminal."""

    delegation: DelegationId
    most: int
    """The most windows that may be open."""


class Export(Struct, frozen=True, kw_only=True, tag="export"):
    """Health has changed: copies of it outside may be written anew."""


Effect = (
    StartAttempt
    | StopAttempt
    | Answer
    | AskPerson
    | GoOn
    | WakeAt
    | WakeWaiting
    | OpenWindow
    | Export
)


class PutHealth(Struct, frozen=True, tag="put_health"):
    health: Health


class PutDelegation(Struct, frozen=True, tag="put_delegation"):
    delegation: Delegation


class PutSession(Struct, frozen=True, tag="put_session"):
    session: Session


class DropSession(Struct, frozen=True, tag="drop_session"):
    session: SessionId


class PutMeter(Struct, frozen=True, tag="put_meter"):
    meter: Meter


class PutHour(Struct, frozen=True, tag="put_hour"):
    hour: HourUse
    """One that is over."""


class PutFact(Struct, frozen=True, tag="put_fact"):
    """A word of the daemon to a later run of itself; no decision reads it."""

    key: str
    value: str


class Note(Struct, frozen=True, kw_only=True, tag="note"):
    """An event for the journal and for subscribers. The store gives it its `seq`."""

    kind: str
    at: float
    delegation: DelegationId | None = None
    session: SessionId | None = None
    backend: BackendId | None = None
    fields: dict[str, Any] = field(default_factory=dict)  # event fields, any JSON


class PutStory(Struct, frozen=True, kw_only=True, tag="put_story"):
    """One decision about a delegation, for `explain`."""

    delegation: DelegationId
    at: float
    event: str
    verdicts: tuple[Verdict, ...] = ()
    outcome: str = ""
    policy: dict[str, Any] = field(default_factory=dict)  # names and numbers that were used
    evidence: str = ""
    attempt: AttemptId | None = None
    """The attempt that it is about, where it is about one."""
    changes: tuple[str, ...] = ()
    """Changes kept with it, a few words each."""
    effects: tuple[str, ...] = ()
    """Effects that it set going, a few words each."""


Change = (
    PutHealth
    | PutDelegation
    | PutSession
    | DropSession
    | PutMeter
    | PutHour
    | PutFact
    | Note
    | PutStory
)


RejectionKind = Literal[
    "unknown_backend",
    "unknown_session",
    "busy",
    "workspace",
    "draining",
    "nesting",
    "request_id",
    "empty_chain",
    "prompt_too_large",
    "limit",
    "unknown_question",
    "answered",
    "choice",
    "standby",
]


class Rejection(Struct, frozen=True, kw_only=True):
    """A caller's request that never becomes a delegation."""

    kind: RejectionKind
    message: str
    data: dict[str, Any] = field(default_factory=dict)  # error data of the wire, any JSON


class Decision(Struct, frozen=True, kw_only=True):
    changes: tuple[Change, ...] = ()
    effects: tuple[Effect, ...] = ()
    rejection: Rejection | None = None
    answer: Any = None
    """What the asker gets at once (a `resolve`, a `report`): a value of `core.views` types."""


class Journaled(Struct, frozen=True, kw_only=True):
    """A `Note` with its place in the journal."""

    seq: int
    note: Note
