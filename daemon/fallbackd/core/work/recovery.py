"""
The way back up a chain, for roles whose policy is `successes`.

A session that answers from a lower entry looks for a better one after N answers there. Better
is strictly higher in the chain, healthy, and proven by an answer alone: a move that does not
answer is a fall back, and a fall back soon after a move doubles N. The place in the chain is
derived from who answered last; what is kept is how often, and since when.
"""

from msgspec import structs

from fallbackd.core.case import Case
from fallbackd.core.case_view import CaseView
from fallbackd.core.health.scopes import find_backend, model_of
from fallbackd.core.ids import BackendId
from fallbackd.core.policy import Entry, Policy, Role
from fallbackd.core.records import Attempt, Session
from fallbackd.core.routing.candidates import find_role
from fallbackd.core.routing.looking import Request

MAX_NEEDED = 64
SOON_S = 600.0
"""A fall back within this time after a move up is flapping, however many answers came between."""

_NO_BETTER = frozenset({"model", "in_session"})
"""Tiers that no session moves up to."""


def role_counting(policy: Policy, name: str | None) -> Role | None:
    """The role whose answers are counted; None: another way back holds, or none."""
    role = None if name is None else find_role(policy, name)
    return role if role is not None and role.return_policy == "successes" else None


def place_of(
    policy: Policy, candidates: tuple[Entry, ...], backend: BackendId | None, model: str | None
) -> int | None:
    """Where a backend with a model stands in a chain, 0 for the best; None: nowhere."""
    found = None if backend is None else find_backend(policy, backend)
    if found is None:
        return None
    for place, entry in enumerate(candidates):
        if entry.backend == backend and model_of(entry, found) == model:
            return place
    return next((at for at, entry in enumerate(candidates) if entry.backend == backend), None)


def answers_needed(role: Role, session: Session) -> int:
    return session.needed or role.return_n


def better(
    case: CaseView, role: Role, candidates: tuple[Entry, ...], session: Session, request: Request
) -> Entry | None:
    """Whom the session moves up to now: dead levels are skipped. None: it stays."""
    here = place_of(case.policy, candidates, session.answered_by, session.answered_model)
    if not here or session.answers < answers_needed(role, session):
        return None
    above = candidates[:here]
    for entry in above if role.return_step == "best" else reversed(above):
        if entry.tier in _NO_BETTER:
            continue
        found = case.resolve((entry,), request)
        if found.choice is not None and found.verdicts[0].state == "healthy":
            return entry
    return None


def prefer(
    case: CaseView,
    role: Role,
    candidates: tuple[Entry, ...],
    session: Session | None,
    request: Request,
) -> Request:
    """The request with whom the session stays on, or moves up to."""
    if session is None or session.answered_by is None:
        return request
    entry = better(case, role, candidates, session, request)
    if entry is None:
        return structs.replace(
            request, preferred=session.answered_by, preferred_model=session.answered_model
        )
    backend = find_backend(case.policy, entry.backend)
    model = None if backend is None else model_of(entry, backend)
    return structs.replace(request, preferred=entry.backend, preferred_model=model)


def is_rise(case: CaseView, *, backend: BackendId, model: str | None) -> bool:
    """Whether starting on a candidate is a move up because of enough answers."""
    delegation, session = case.delegation, case.session
    role = role_counting(case.policy, delegation.role)
    if role is None or delegation.named or session.answers < answers_needed(role, session):
        return False
    policy, candidates = case.policy, delegation.turn.candidates
    here = place_of(policy, candidates, session.answered_by, session.answered_model)
    there = place_of(policy, candidates, backend, model)
    return here is not None and there is not None and there < here


def counted(case: Case, attempt: Attempt) -> Session:
    """The session after an answer, with what it takes to move up from here."""
    delegation, session = case.delegation, case.session
    role = role_counting(case.policy, delegation.role)
    if role is None:
        return session
    looked_up = any(one.trigger == "recovery" for one in delegation.hops)
    return answered_by(
        case,
        role,
        delegation.turn.candidates,
        session,
        backend=attempt.backend,
        model=attempt.model,
        missed=looked_up and delegation.hops[-1].trigger != "recovery",
    )


def answered_by(
    case: Case,
    role: Role,
    candidates: tuple[Entry, ...],
    session: Session,
    *,
    backend: BackendId,
    model: str | None,
    missed: bool = False,
) -> Session:
    """
    Args:
        missed: A better candidate was tried before, and did not answer.
    """
    policy = case.policy
    before = place_of(policy, candidates, session.answered_by, session.answered_model)
    here = place_of(policy, candidates, backend, model)
    if here is None or before is None:
        return structs.replace(session, answers=1, needed=0, rose_at=None)
    needed = answers_needed(role, session)
    if missed or here > before:
        is_soon = missed or _rose_soon_before(session, needed, now=case.now)
        return structs.replace(
            session,
            answers=1,
            needed=_doubled(role, needed) if is_soon else session.needed,
            rose_at=case.now if here < before else None,
        )
    if here < before:
        return structs.replace(session, answers=1, rose_at=case.now)
    answers = session.answers + 1
    is_safe = session.rose_at is not None and answers >= needed
    return structs.replace(session, answers=answers, needed=0 if is_safe else session.needed)


def _rose_soon_before(session: Session, needed: int, *, now: float) -> bool:
    """Whether the session came back up only lately, by answers or by the clock."""
    if session.rose_at is None:
        return False
    return session.answers < needed or now - session.rose_at < SOON_S


def missed_by(
    case: Case,
    role: Role,
    candidates: tuple[Entry, ...],
    session: Session,
    *,
    backend: BackendId,
    model: str | None,
) -> Session:
    """The session after a better candidate has failed for a caller: the next look comes later."""
    policy = case.policy
    needed = answers_needed(role, session)
    before = place_of(policy, candidates, session.answered_by, session.answered_model)
    here = place_of(policy, candidates, backend, model)
    if here is None or before is None or here >= before or session.answers < needed:
        return session
    return structs.replace(session, answers=0, needed=_doubled(role, needed))


def _doubled(role: Role, needed: int) -> int:
    return min(max(MAX_NEEDED, role.return_n), needed * 2)


def tell_return(case: Case, attempt: Attempt) -> None:
    """Say that the session is back on its first choice, once it has answered."""
    delegation, session = case.delegation, case.session
    rose = any(
        one.trigger == "recovery" and one.to_backend == attempt.backend for one in delegation.hops
    )
    if not rose or attempt.backend != session.original:
        return
    case.note(
        "session.notice",
        delegation,
        backend=attempt.backend,
        notice="recovered",
        route=(session.answered_by or session.current, attempt.backend),
        from_model=session.answered_model,
        to_model=attempt.model,
        reason="recovered",
        text=f"{attempt.backend} is used again",
    )
