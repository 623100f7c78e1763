"""Records of decisions: what each keeps and sets going, in a few words for `explain`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import structs

from fallbackd.core.decision import (
    Answer,
    AskPerson,
    Change,
    DropSession,
    Effect,
    Export,
    GoOn,
    Note,
    OpenWindow,
    PutDelegation,
    PutFact,
    PutHealth,
    PutHour,
    PutMeter,
    PutSession,
    PutStory,
    StartAttempt,
    StopAttempt,
    WakeAt,
    WakeWaiting,
)


def model_words(backend: str) -> str:
    """`model [provider]` of a `provider/model` id; any other id as it is."""
    provider, slash, model = backend.partition("/")
    return f"{model} [{provider}]" if slash else backend


def _words_of_health(change: PutHealth) -> str:
    scope, outage = change.health.scope, change.health.outage
    if outage is None:
        return f"{scope} has no mark"
    return f"{scope} is marked {outage.state} ({outage.reason.value})"


def _words_of_delegation(change: PutDelegation) -> str:
    one = change.delegation
    return f"{one.delegation} is {one.state}, on {one.active}"


def _words_of_session(change: PutSession) -> str:
    session = change.session
    held = "free" if session.running is None else f"held by {session.running}"
    return f"session {session.session} is {held}, on {session.current}"


def _words_of_drop(change: DropSession) -> str:
    return f"session {change.session} is forgotten"


def _words_of_start(effect: StartAttempt) -> str:
    model = "" if effect.model is None else f" with {effect.model}"
    if effect.taken_up:
        return f"take {effect.attempt} up on {effect.backend}{model}"
    key = "" if effect.credential is None else f", credential {effect.credential}"
    how = "start" if effect.resume is None else "resume the conversation as"
    return f"{how} {effect.attempt} on {effect.backend}{model}{key}"


def _words_of_stop(effect: StopAttempt) -> str:
    return f"stop {effect.attempt}, by force after {effect.grace_s:g} s"


def _words_of_answer(effect: Answer) -> str:
    return f"notify clients that wait for {effect.delegation}"


def _words_of_look(effect: WakeAt) -> str:
    return f"look again for {effect.purpose} at {effect.at:.1f}"


def _words_of_window(effect: OpenWindow) -> str:
    return f"open a window for {effect.delegation}"


def _words_of_question(effect: AskPerson) -> str:
    return "notify waiting clients that a person is asked"


def _words_of_going_on(effect: GoOn) -> str:
    return "let those who ask from now on wait for the end again"


def _words_of_waking(effect: WakeWaiting) -> str:
    return "let waiting work look again"


WORDS: Mapping[type, Callable[[Any], str] | None] = {
    PutHealth: _words_of_health,
    PutDelegation: _words_of_delegation,
    PutSession: _words_of_session,
    DropSession: _words_of_drop,
    PutMeter: None,
    PutHour: None,
    PutFact: None,
    Note: None,
    PutStory: None,
    StartAttempt: _words_of_start,
    StopAttempt: _words_of_stop,
    Answer: _words_of_answer,
    AskPerson: _words_of_question,
    GoOn: _words_of_going_on,
    WakeAt: _words_of_look,
    WakeWaiting: _words_of_waking,
    OpenWindow: _words_of_window,
    Export: None,
}
"""By the type of a change or an effect; None: it explains nothing."""


def _words_of(each: Iterable[Change | Effect]) -> tuple[str, ...]:
    return tuple([words(one) for one in each if (words := WORDS[type(one)]) is not None])


def told(
    stories: Sequence[PutStory], changes: Sequence[Change], effects: Sequence[Effect]
) -> list[PutStory]:
    """The parts of stories with what else came of the decision, in words."""
    if not stories:
        return []
    kept, ordered = _words_of(changes), _words_of(effects)
    return [structs.replace(one, changes=kept, effects=ordered) for one in stories]
