"""
The record of a session: what requests do to it, what it remembers, and how its agent resumes.

A conversation that broke off after a tool call is resumed once by the same agent: repeating the
attempt would do its work twice. The program names its conversation, the record keeps the name, and
`Work.resume` gives it back. Only then the next agent starts, with a note of what was done.

A session remembers its answered delegations, and the agent's own conversation that holds all of
them. A delegation takes that over with its first attempt; `engine/takeover` gives it to each
attempt in the best way that its agent can take (`CarriedWord`).
"""

from typing import TypeVar

from msgspec import structs

from fallbackd.core.case import Case
from fallbackd.core.events import AttemptStarted, SessionCompacted, SessionEnded
from fallbackd.core.failures import NO_CONVERSATION, REPAIRABLE, Failure, make_failure
from fallbackd.core.ids import BackendId, DelegationId, SessionId
from fallbackd.core.policy import Backend, Entry
from fallbackd.core.protocol import Usage
from fallbackd.core.reasons import Reason
from fallbackd.core.records import (
    MAX_TURNS,
    AgentConversation,
    Attempt,
    CarriedWord,
    Delegation,
    Hop,
    Past,
    Session,
)
from fallbackd.core.routing.candidates import UNKNOWN, Choice, family_of, family_of_model
from fallbackd.core.scopes import find_backend
from fallbackd.core.work.retries import (
    backoff_s,
    budget_of,
    is_past_deadline,
    may_retry,
    shown,
    stated_until,
)

MAX_HOPS = 50
"""Of a session: the latest ones."""


def entered(
    case: Case,
    name: SessionId,
    session: Session | None,
    *,
    role: str | None,
    named: BackendId | None,
    first: BackendId,
    chain: tuple[Entry, ...] | None,
    running: DelegationId | None,
    above: tuple[DelegationId, ...] | None = (),
) -> Session:
    """
    The session of a new request.

    Args:
        named: The backend that the caller asks for by name: the original from now on.
        first: Of the candidates.
        chain: The `own_chain` of the request.
        running: The delegation that holds it.
        above: The delegations inside which it is asked for; None: not known, whose session it is
            stays as it was.
    """
    now = case.now
    if session is None:
        return Session(
            session=name,
            role=role,
            original=first,
            current=first,
            chain=chain,
            running=running,
            above=above or (),
            created_at=now,
            last_used_at=now,
        )
    if above is not None:
        # Those alone that are above all that is asked for here: none where a person asks.
        inside = tuple(one for one in session.above if one in above)
        session = structs.replace(session, above=inside)
    if named is not None and named != session.original:
        session = structs.replace(
            session,
            original=first,
            current=first,
            chain=None,
            current_model=None,
            answered_by=None,
            depth=0,
            notices_sent=(),
            hops=(),
            recovered_announced=False,
        )
    elif named is not None and session.current != session.original:
        session = structs.replace(
            session, current=first, current_model=None, answered_by=None, depth=0
        )
    kept = session.chain if named is None else None
    return structs.replace(session, running=running, role=role or session.role, chain=kept)


def on_candidate(session: Session, choice: Choice) -> Session:
    """The session while a call is made without a move: its depth ends on its original."""
    is_original = choice.backend.id == session.original
    return structs.replace(
        session,
        current=choice.backend.id,
        current_model=choice.entry.model,
        depth=0 if is_original else session.depth,
    )


def moved(
    case: Case,
    session: Session,
    hop: Hop,
    *,
    wanted: BackendId,
    model: str | None,
    forgets: bool,
) -> tuple[Session, bool]:
    """
    The session after a hop.

    Args:
        wanted: The first choice of the request, away from which a move is announced.
        model: Which one of the backend, where the chain names it.
        forgets: A return to the original is enough to announce the next fall again; else its first
            answer is.

    Returns:
        The session, and whether the move is news: each pair is announced once.
    """
    to, pair = hop.to_backend, f"{wanted}>{hop.to_backend}"
    is_back, is_reactive = to == session.original, hop.trigger == "reactive"
    is_news = to != wanted and pair not in session.notices_sent
    notices = (*session.notices_sent, pair) if is_news else session.notices_sent
    after = structs.replace(
        session,
        current=to,
        current_model=model,
        depth=0 if is_back else session.depth + int(is_reactive),
        last_fallback_at=case.now if is_reactive else session.last_fallback_at,
        hops=(*session.hops, hop)[-MAX_HOPS:],
        notices_sent=() if is_back and forgets else notices,
        recovered_announced=False,
    )
    return after, is_news


_S = TypeVar("_S", Session, Session | None)


def charged(case: Case, session: _S, backend: BackendId, usage: Usage) -> _S:
    """Count what a call has used, for the backend that made it, whether it succeeded or not."""
    case.meters.count_usage(backend, usage)
    if session is None:
        return session
    found = dict(session.usage)
    found[backend] = found.get(backend, Usage()) + usage
    return structs.replace(session, usage=tuple(found.items()))


def take_session(case: Case) -> None:
    """
    The session of the case is held by its delegation from now on, also while the work waits for a
    free place.
    """
    one, session = case.delegation, case.snapshot.session
    case.keep_session(
        entered(
            case,
            one.session,
            session if session is not None and session.session == one.session else None,
            role=one.role,
            named=one.requested if one.named else None,
            first=one.requested,
            chain=one.chain,
            running=one.delegation,
            above=one.above,
        )
    )


def author_of(case: Case, one: Delegation) -> str:
    """The family of the model that wrote the answer."""
    hint = one.handed_back
    if hint is not None:
        return (hint.model and family_of_model(hint.model)) or UNKNOWN
    last = one.attempts[-1]
    backend = find_backend(case.policy, last.backend)
    return (backend and family_of(backend, last.model)) or UNKNOWN


def session_ended(case: Case, event: SessionEnded) -> None:
    if (session := case.snapshot.session) is not None:
        case.drop_session_id(session.session)


def session_compacted(case: Case, event: SessionCompacted) -> None:
    """Models, depth and the lock stay; history and marks of notices go."""
    if (session := case.snapshot.session) is not None:
        case.keep_session(structs.replace(session, hops=(), notices_sent=(), last_fallback_at=None))


# The memory of a session: its answered turns, and the agent's own conversation that holds them.
#
# A delegation takes the past of its session over when its first attempt is made. Every attempt is
# given it, in the best way that its agent can take it: see `CarriedWord`.


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
    """Return the way in which the agent was given the past before, and did not take it."""
    before = None if attempt.retry_of is None else delegation.attempt(attempt.retry_of)
    if before is None or before.failure is None or before.failure.reason is not Reason.SESSION:
        return None
    return before.carried


def may_try_otherwise(attempt: Attempt, failure: Failure) -> bool:
    """
    Return whether the same candidate is tried once more: with the past given in another way, or
    without what it has refused.
    """
    if failure.detail == REPAIRABLE and failure.reason is Reason.FORMAT_ERROR:
        return attempt.effects == "none"
    if failure.reason is not Reason.SESSION or attempt.effects != "none":
        return False
    return attempt.resumes is None and continues(attempt)


def note_carried(case: Case, event: AttemptStarted) -> None:
    """Note how the running attempt was given the past of its session."""
    if event.carried is None:
        return
    attempt = case.update_attempt(carried=event.carried, conversation=event.conversation)
    words = {
        "resumed": f"continues its own conversation {event.conversation}",
        "native": "gets the whole conversation, commands included",
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
    """Return whether its agent was started with a conversation that it may not be able to read."""
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


# Resume an agent's own conversation after a passing failure.
#
# An attempt that has used a tool cannot be repeated: its work would be done twice. Its agent still
# has the whole conversation on disk, so the same agent continues it, once; only then does another
# one start over with a note of what was done.


PATIENCE_TIMES = 10
"""Work that was begun is worth a longer wait than a first answer."""
CONTINUE = (
    "Your last turn was cut off by a technical failure, not by the user; the work that you had "
    "done is kept. Continue the task where it stopped: check the results of your last steps "
    "instead of repeating them, finish the task, and give your complete final answer."
)


def resume_at(
    case: Case, attempt: Attempt, failure: Failure, backend: Backend | None, *, luck: float
) -> float | None:
    """
    Return when the conversation of an attempt that has ended is resumed; None: it is given up.
    """
    delegation = case.delegation
    if backend is None or not _is_resumable(attempt, failure):
        return None
    if len(delegation.counted) >= delegation.turn.budget:
        return None
    stated_at = stated_until(failure, now=case.now) or case.now
    at = max(case.now + backoff_s(case, backend, 1, luck=luck), stated_at)
    if at > case.now + PATIENCE_TIMES * case.policy.patience_s(delegation.mode):
        return None
    if is_past_deadline(delegation, at):
        return None
    if may_retry(case):
        return at
    why = "not resumed: the budget of this host for further attempts is used up"
    case.tell(delegation, "attempt failed", outcome=why, retry_budget=shown(budget_of(case)))
    return None


def _is_resumable(attempt: Attempt, failure: Failure) -> bool:
    """Return whether an attempt has work to lose, for the first time, to a failure that passes."""
    if attempt.effects == "none" or attempt.conversation is None or attempt.answered_at is None:
        return False
    is_passing = failure.reason.row.is_passing and failure.hop  # else trouble of this machine
    return is_passing and attempt.resumes is None


def resumed_conversation(delegation: Delegation, attempt: Attempt) -> str | None:
    """The conversation that an attempt continues; None: it begins one."""
    resumed = delegation.attempt(attempt.resumes) if attempt.resumes else None
    return None if resumed is None else resumed.conversation


def not_resumed(why: str, *, now: float) -> Failure:
    return make_failure(
        Reason.SESSION,
        now=now,
        detail=NO_CONVERSATION,
        confidence="structured",
        signature=f"fallbackd/{NO_CONVERSATION}",
        evidence=f"the conversation could not be resumed: {why}",
    )


_OF_WHAT_WAS_SENT = (Reason.FORMAT_ERROR, Reason.CONTEXT_OVERFLOW)


def own_failure(case: Case, attempt: Attempt, failure: Failure) -> Failure:
    """
    Return the failure as an attempt shows it of its own backend.

    A request with a conversation that we have written is refused for what we have written. Where a
    conversation could not be resumed, the backend is left for the failure that had
    interrupted it.
    """
    delegation = case.delegation
    is_begun = attempt.answered_at is not None or attempt.effects != "none"
    if attempt.carried == "native" and not is_begun and failure.reason in _OF_WHAT_WAS_SENT:
        return not_resumed(failure.evidence, now=case.now)
    resumed = delegation.attempt(attempt.resumes) if attempt.resumes else None
    if failure.detail != NO_CONVERSATION or resumed is None or resumed.failure is None:
        return failure
    case.tell(
        delegation,
        "attempt failed",
        outcome=f"{attempt.backend} could not resume the conversation of {resumed.attempt}",
        evidence=failure.evidence,
        signature=failure.signature,
    )
    return resumed.failure
