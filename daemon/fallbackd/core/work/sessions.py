"""What every way to ask does alike to the record of a session."""

from typing import TypeVar

from msgspec import structs

from fallbackd.core.case import Case
from fallbackd.core.events import SessionCompacted, SessionEnded
from fallbackd.core.health.scopes import find_backend
from fallbackd.core.ids import BackendId, DelegationId, SessionId
from fallbackd.core.policy import Entry
from fallbackd.core.protocol import Usage
from fallbackd.core.records import Delegation, Hop, Session
from fallbackd.core.routing.configured import Choice
from fallbackd.core.routing.families import UNKNOWN, family_of, family_of_model

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
