"""
What a session remembers: its answered turns, and the agent's own conversation that holds them.

A delegation takes the past of its session over when its first attempt is made. Every attempt is
given it, in the best way that its agent can take it: see `CarriedWord`.
"""

from msgspec import structs

from fallbackd.core.case import Case
from fallbackd.core.events import AttemptStarted
from fallbackd.core.failures import REPAIRABLE, Failure, Reason
from fallbackd.core.past import MAX_TURNS, AgentConversation, CarriedWord, Past
from fallbackd.core.protocol import Usage
from fallbackd.core.records import Attempt, Delegation


def recall(case: Case) -> None:
    """
    Give a delegation the past of its session, before its first attempt.

    Work that must differ from its author is not given it: it would take over as its own what it is
    to judge.
    """
    one = case.delegation
    if not one.fresh and not one.turn.differs_from:
        case.update(past=case.session.past)


def refused(delegation: Delegation, attempt: Attempt) -> CarriedWord | None:
    """In what way the agent of an attempt was given the past before, and did not take it."""
    before = None if attempt.retry_of is None else delegation.attempt(attempt.retry_of)
    if before is None or before.failure is None or before.failure.reason is not Reason.SESSION:
        return None
    return before.carried


def may_try_otherwise(attempt: Attempt, failure: Failure) -> bool:
    """
    Whether the same candidate is tried once more: with the past given in another way, or without
    what it has refused.
    """
    if failure.detail == REPAIRABLE and failure.reason is Reason.FORMAT_ERROR:
        return attempt.effects == "none"
    if failure.reason is not Reason.SESSION or attempt.effects != "none":
        return False
    return attempt.resumes is None and continues(attempt)


def note_carried(case: Case, event: AttemptStarted) -> None:
    """How the running attempt was given the past of its session."""
    if event.carried is None:
        return
    attempt = case.update_attempt(carried=event.carried, conversation=event.conversation)
    words = {
        "resumed": f"continues its own conversation {event.conversation}",
        "native": "takes the conversation over as its own",
        "messages": "is sent the earlier turns as messages",
        "brief": "is given the earlier turns in front of the prompt",
    }
    why = f" ({event.carried_why})" if event.carried_why else ""
    case.tell(
        case.delegation,
        "conversation",
        outcome=f"{attempt.attempt} on {attempt.backend} {words[event.carried]}{why}",
        turns=len(case.delegation.past.turns),
    )


def continues(attempt: Attempt) -> bool:
    """Whether its agent was started with a conversation that it may not be able to read."""
    return attempt.carried in ("resumed", "native")


def own_conversation(attempt: Attempt) -> str | None:
    """The conversation that an attempt continues; None: it begins one."""
    return attempt.conversation if continues(attempt) else None


def remember(case: Case, attempt: Attempt, usage: Usage) -> None:
    """The delegation was answered: its prompt and answer belong to the past of its session."""
    one, before = case.delegation, case.delegation.past
    if one.turn.differs_from:
        return
    kept = None
    if attempt.conversation is not None:
        known = before.conversation
        if known is not None and known.id == attempt.conversation:
            usage = known.usage + usage
        kept = AgentConversation(
            backend=attempt.backend, id=attempt.conversation, cwd=one.cwd, usage=usage
        )
    past = Past(
        turns=(*before.turns, one.delegation)[-MAX_TURNS:],
        conversation=kept,
        work=before.work if one.cwd else before.work or one.delegation,
    )
    case.keep_session(structs.replace(case.session, past=past))
