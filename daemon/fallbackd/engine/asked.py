"""Questions as callers see them: which are open, and the answer of a person."""

from collections.abc import Sequence
from typing import Any, Protocol

from fallbackd.core.changes import Decision
from fallbackd.core.events import Event, QuestionAnswered
from fallbackd.core.ids import SessionId
from fallbackd.core.questions import Question, delegation_asking
from fallbackd.core.records import Delegation
from fallbackd.engine.requests import Draining, Refused, Unknown
from fallbackd.ports.store import Selection, Store, StoreUnwritable

MAX_SEARCHED = 1000
"""Of the delegations, the newest: where questions that are closed are looked for."""


class AskedHost(Protocol):
    async def handle(self, event: Event) -> Decision: ...


async def answer(
    host: AskedHost, question: str, *, choice: str, note: str | None, **by: Any
) -> Question:
    """
    Take what a person has chosen. Returns the question as it is on record now.

    Args:
        by: `uid`, `pid` and `attempt` of `QuestionAnswered`.

    Raises:
        Unknown, Refused: There is no such question, no such choice, or it is closed.
        Draining: The answer cannot be kept.
    """
    delegation = delegation_asking(question)
    if delegation is None:
        raise Unknown(f"no question {question!r}; see `fallbackd-client questions`")
    event = QuestionAnswered(
        question=question, delegation=delegation, choice=choice, note=note, **by
    )
    try:
        decision = await host.handle(event)
    except StoreUnwritable as error:
        raise Draining(f"the answer is not taken: {error}", kind="store_unwritable") from error
    if decision.rejection is not None:
        raise Refused(decision.rejection)
    assert isinstance(decision.answer, Question)
    return decision.answer


async def questions(
    store: Store, *, session: str | None, only_open: bool, limit: int
) -> Sequence[Question]:
    """Newest first."""
    name = None if session is None else SessionId(session)
    found: Sequence[Delegation] = tuple(store.peek().active.values())
    if not only_open:
        found = await store.delegations(Selection(session=name), limit=MAX_SEARCHED)
    listed = [
        one
        for delegation in found
        if name in (None, delegation.session)
        for one in delegation.questions
        if one.is_open or not only_open
    ]
    return sorted(listed, key=lambda one: (-one.opened_at, one.question))[:limit]
