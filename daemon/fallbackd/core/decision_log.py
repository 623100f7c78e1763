"""What a decision keeps and sets going, in a few words for `explain`."""

from collections.abc import Sequence
from typing import assert_never

from msgspec import structs

from fallbackd.core.changes import (
    Change,
    DropSession,
    Note,
    PutDelegation,
    PutFact,
    PutHealth,
    PutMeter,
    PutSession,
    PutStory,
)
from fallbackd.core.effects import (
    Answer,
    AskPerson,
    Effect,
    Export,
    GoOn,
    OpenWindow,
    StartAttempt,
    StopAttempt,
    WakeAt,
    WakeWaiting,
)


def model_words(backend: str) -> str:
    """`model [provider]` of a `provider/model` id; any other id as it is."""
    provider, slash, model = backend.partition("/")
    return f"{model} [{provider}]" if slash else backend


def words_of_change(change: Change) -> str | None:
    """None: nothing that explains a decision."""
    match change:
        case PutHealth(health):
            outage = health.outage
            if outage is None:
                return f"{health.scope} has no mark"
            return f"{health.scope} is marked {outage.state} ({outage.reason.value})"
        case PutDelegation(delegation):
            return f"{delegation.delegation} is {delegation.state}, on {delegation.active}"
        case PutSession(session):
            held = "free" if session.running is None else f"held by {session.running}"
            return f"session {session.session} is {held}, on {session.current}"
        case DropSession(name):
            return f"session {name} is forgotten"
        case PutMeter() | PutFact() | Note() | PutStory():
            return None
        case _:
            assert_never(change)


def words_of_effect(effect: Effect) -> str | None:
    """None: nothing that explains a decision."""
    match effect:
        case StartAttempt():
            return _words_of_start(effect)
        case StopAttempt():
            return f"stop {effect.attempt}, by force after {effect.grace_s:g} s"
        case Answer():
            return f"notify clients that wait for {effect.delegation}"
        case AskPerson():
            return "notify waiting clients that a person is asked"
        case GoOn():
            return "let those who ask from now on wait for the end again"
        case WakeAt():
            return f"look again for {effect.purpose} at {effect.at:.1f}"
        case WakeWaiting():
            return "let waiting work look again"
        case OpenWindow():
            return f"open a window for {effect.delegation}"
        case Export():
            return None
        case _:
            assert_never(effect)


def _words_of_start(effect: StartAttempt) -> str:
    model = "" if effect.model is None else f" with {effect.model}"
    if effect.taken_up:
        return f"take {effect.attempt} up on {effect.backend}{model}"
    key = "" if effect.credential is None else f", credential {effect.credential}"
    how = "start" if effect.resume is None else "resume the conversation as"
    return f"{how} {effect.attempt} on {effect.backend}{model}{key}"


def told(
    others: Sequence[Change], changes: Sequence[Change], effects: Sequence[Effect]
) -> list[Change]:
    """The parts of stories with what else came of the decision, in words."""
    if not any(isinstance(one, PutStory) for one in others):
        return list(others)
    kept = tuple(found for each in changes if (found := words_of_change(each)))
    ordered = tuple(found for each in effects if (found := words_of_effect(each)))
    return [
        structs.replace(one, changes=kept, effects=ordered) if isinstance(one, PutStory) else one
        for one in others
    ]
