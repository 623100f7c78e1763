"""What the core orders. Imperative; performed by the engine after the changes are durable."""

from typing import Literal

from msgspec import Struct

from fallbackd.core.ids import AttemptId, BackendId, DelegationId


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
    """As many windows may be open."""


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
