"""
What is done next for a delegation: values that `plan` finds and `apply` performs.

Each of them is also an entry of `explain`.
"""

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct, field

from fallbackd.core.ids import AttemptId, DelegationId
from fallbackd.core.questions import QuestionKind
from fallbackd.core.records import DelegationState, Ending, Verdict, Waiting
from fallbackd.core.routing.configured import Choice
from fallbackd.core.work.outages import Out

Verdicts = tuple[Verdict, ...]


class Start(Struct, frozen=True, kw_only=True):
    """Make an attempt. It is a hop, unless it is the same candidate again."""

    choice: Choice
    verdicts: Verdicts | None = None
    """In each step: those of the resolution behind it; None: as they are on record."""
    event: str | None = None
    """Why it starts, where that is another event than the one of the decision."""
    retry_of: AttemptId | None = None
    """The same candidate once more, from the beginning."""
    resumes: AttemptId | None = None
    """The same candidate once more, in the conversation of that attempt."""
    rotates: bool = False
    """Another credential of the same candidate."""
    has_waited: bool = False
    """The time that its provider stated was waited for, which is done once."""
    numbers: dict[str, Any] = field(default_factory=dict)  # what was used, for `explain`


class Wait(Struct, frozen=True, kw_only=True):
    """Make no attempt before an instant, or before something changes."""

    waiting: Waiting
    outcome: str = ""
    """For `explain`; empty: that was said before."""
    verdicts: Verdicts | None = None
    numbers: dict[str, Any] = field(default_factory=dict)  # what was used, for `explain`
    evidence: str = ""


class Queue(Struct, frozen=True, kw_only=True):
    """Wait for a turn: for a free place on this host, or behind another delegation."""

    behind: DelegationId | None = None
    """The one that has the session or the directory; None: a place is waited for."""
    outcome: str
    waiting: Waiting | None = None
    verdicts: Verdicts | None = None
    numbers: dict[str, Any] = field(default_factory=dict)  # what was used, for `explain`


class Ask(Struct, frozen=True, kw_only=True):
    """Open a question: nothing is started before a person has answered it."""

    kind: QuestionKind
    text: str
    usable: Mapping[str, str]
    """Backends that a person could choose, each with the rules that speak against it, or ""."""
    wait: str | None = None
    """What waiting would wait for; None: there is nothing to wait for."""
    verdicts: Verdicts | None = None
    out: Out | None = None
    """The service that is out, where that is why."""


class HandBack(Struct, frozen=True, kw_only=True):
    """The caller does the work itself: nothing is started."""

    choice: Choice
    verdicts: Verdicts | None = None


class End(Struct, frozen=True, kw_only=True):
    """End the delegation; the answer is deferred until its nested work has stopped."""

    outcome: Ending
    why: str = ""
    """For `explain`, before the end itself; empty: the end says it all."""
    verdicts: Verdicts | None = None
    out: Out | None = None
    withdraws: bool = False
    """Every candidate failed alike: the marks of the way are withdrawn."""
    numbers: dict[str, Any] = field(default_factory=dict)  # what was used, for `explain`


class Hold(Struct, frozen=True, kw_only=True):
    """Change nothing now."""

    until_at: float | None = None
    """When to look again, if nothing happens before."""
    is_nested: bool = False
    """What was delegated from inside is not over: each of its ends brings a `Woke`."""


Obstacle = Literal["line", "question", "forced", "retry"]


class Clear(Struct, frozen=True, kw_only=True):
    """An obstacle on record is gone: it is cleared, and the next step is planned."""

    what: Obstacle
    """`line`: what it was queued behind; `question`: its service has recovered; `forced`: a
    person's choice that cannot be used; `retry`: the candidate that was waited for."""
    outcome: str = ""
    verdicts: Verdicts | None = None


Step = Start | Wait | Queue | Ask | HandBack | End | Hold


def ended(state: DelegationState, message: str | None = None, **more: Any) -> End:
    """An end with an outcome; `more` are its other fields."""
    return End(outcome=Ending(state=state, message=message, **more))
