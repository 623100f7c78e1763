"""What a caller that talks to a provider itself receives: candidate, credential, lease."""

from msgspec import Struct, structs

from fallbackd.core.callers.failing_over import Following
from fallbackd.core.case import Case
from fallbackd.core.events import Reported
from fallbackd.core.failures import Failure
from fallbackd.core.ids import AttemptId
from fallbackd.core.policy import Backend, Entry
from fallbackd.core.records import Hop, Session, Verdict
from fallbackd.core.routing.candidates import candidates_for, find_role
from fallbackd.core.routing.configured import Choice
from fallbackd.core.routing.resolve import Resolved
from fallbackd.core.turn import Halt, Tried, Turn
from fallbackd.core.work.recovery import missed_by, role_counting
from fallbackd.core.work.resolution import entry_of, turn_for
from fallbackd.core.work.sessions import moved

LEASE_S = 600.0
"""A caller that never reports loses its lease after this long."""


class Resolution(Struct, frozen=True, kw_only=True):
    """What would be used now; `backend` null: no candidate is available."""

    backend: str | None
    model: str | None = None
    credential: str | None = None
    tier: str | None = None
    trigger: str | None = None
    candidates: tuple[Verdict, ...] = ()
    retry_at: float | None = None
    position: int | None = None
    """Place of the chosen one among the candidates, 0 for the requested one."""
    lease_id: str | None = None
    lease_generation: int | None = None
    lease_expires_at: float | None = None
    lease_owner: str | None = None
    turn: Turn | None = None
    """What the caller says again when the call fails."""


class ReportAnswer(Struct, frozen=True, kw_only=True):
    failure: Failure | None = None
    next: Resolution | None = None
    candidates: tuple[Verdict, ...] = ()
    """Verdicts of the candidates after a failure."""
    retry_at: float | None = None
    ignored: bool = False
    halt: Halt | None = None
    """Why there is no next one."""
    turn: Turn | None = None
    """With the next one: what the caller says again when that fails too."""


def leased(
    case: Case,
    found: Resolution,
    choice: Choice,
    lease: AttemptId | None,
    *,
    owner: str | None,
) -> Resolution:
    """With the lease of the one trial, where one is needed and the caller makes the call."""
    if lease is None or not choice.trial_scopes:
        return found
    expires_at = case.now + LEASE_S
    generation = case.take_lease(choice, lease, expires_at=expires_at, owner=owner)
    return structs.replace(
        found,
        lease_id=lease,
        lease_generation=generation,
        lease_expires_at=expires_at,
        lease_owner=owner,
    )


def counted_credential(choice: Choice) -> str | None:
    """Its credential, where the strategy has to know how often it was chosen."""
    backend = choice.backend
    if len(backend.credentials) < 2 or backend.credential_strategy in ("fill_first", "random"):
        return None
    return choice.credential


def resolution_of(candidates: tuple[Entry, ...], resolved: Resolved) -> Resolution:
    choice = resolved.choice
    if choice is None:
        return Resolution(backend=None, candidates=resolved.verdicts, retry_at=resolved.retry_at)
    first = candidates[0]
    redirected = (first.backend, first.model) != (choice.entry.backend, choice.entry.model)
    return Resolution(
        backend=choice.backend.id,
        model=choice.model,
        credential=choice.credential,
        tier=choice.entry.tier,
        trigger="preemptive" if redirected else None,
        candidates=resolved.verdicts,
        retry_at=resolved.retry_at,
        position=next(
            (at for at, one in enumerate(resolved.verdicts) if one.verdict == "chosen"), None
        ),
    )


# --- reports -----------------------------------------------------------------------------------


def tried_by(event: Reported, failure: Failure) -> Tried:
    """The call that a report is about."""
    return Tried(backend=event.backend, model=event.model, credential=event.credential).failed_with(
        failure
    )


def asked_by_report(
    case: Case, event: Reported, backend: Backend, session: Session | None, failure: Failure
) -> Turn:
    """
    What a failed call was a part of, where neither the caller nor its session knows it: the request
    as far as the report repeats it.

    A failure that leaves no mark would be met again and again by a caller that says nothing else:
    the candidates before the failed one count as tried.
    """
    role = event.role or (None if session is None else session.role)
    candidates = _candidates(case, event, backend, session, role)
    found = turn_for(
        case,
        candidates,
        None if role is None else find_role(case.policy, role),
        session,
        prompt_tokens=event.prompt_tokens,
        allow_metered=event.allow_metered,
        differs_from=event.differs_from,
    )
    if session is not None or failure.marks_health:
        return found
    own = Tried(backend=backend.id, model=event.model)
    place = _place(candidates, own, backend) or 0
    before = tuple(Tried(backend=one.backend, model=one.model) for one in candidates[:place])
    return structs.replace(found, tried=before)


def _candidates(
    case: Case, event: Reported, backend: Backend, session: Session | None, role: str | None
) -> tuple[Entry, ...]:
    is_named = event.role is not None or bool(event.chain)
    first = None if role or event.chain else backend.id
    found = candidates_for(
        case.policy, backend=first, role=role, chain=event.chain, session=session
    )
    if is_named and all(one.backend != backend.id for one in found):
        # It was asked for by its name, before those of the chain.
        return candidates_for(
            case.policy, backend=backend.id, role=role, chain=event.chain, session=session
        )
    return found


def _place(candidates: tuple[Entry, ...], tried: Tried, backend: Backend) -> int | None:
    entry = entry_of(candidates, tried, backend)
    return candidates.index(entry) if entry in candidates else None


def answer_of(
    case: Case,
    event: Reported,
    turn: Turn,
    failure: Failure,
    following: Following | None,
    halt: Halt | None,
) -> ReportAnswer:
    """The answer to a failure: the next candidate with its lease, or why there is none."""
    if following is None:
        return ReportAnswer(failure=failure, halt=halt)
    resolved, choice = following.resolved, following.resolved.choice
    if choice is None:
        return ReportAnswer(
            failure=failure,
            candidates=resolved.verdicts,
            retry_at=resolved.retry_at,
            halt=following.halt,
        )
    if following.is_same:
        found = resolution_of((choice.entry,), resolved)
        last = turn.tried[-1]
        place = _place(turn.candidates, last, choice.backend)
        found = structs.replace(found, position=place)
    else:
        found = resolution_of(turn.candidates, resolved)
    found = leased(case, found, choice, event.next_lease, owner=event.owner)
    if event.next_lease is not None:
        case.meters.count_start(choice.backend.id, is_first=False)
    case.meters.count_credential(choice.backend.id, counted_credential(choice))
    return ReportAnswer(
        failure=failure,
        next=found,
        candidates=resolved.verdicts,
        retry_at=resolved.retry_at,
        turn=None if following.is_handed_back else following.turn,
    )


def missed(case: Case, turn: Turn, session: Session, event: Reported) -> Session:
    """The session after a better candidate was tried in vain, where its role counts answers."""
    role = role_counting(case.policy, turn.role)
    if role is None:
        return session
    return missed_by(case, role, turn.candidates, session, backend=event.backend, model=event.model)


def moved_on(
    case: Case, session: Session, left: Backend, following: Following, failure: Failure
) -> Session:
    """The session on its next candidate. Announced once for each pair of original and current."""
    choice = following.resolved.choice
    assert choice is not None
    hop = Hop(
        at=case.now,
        from_backend=left.id,
        to_backend=choice.backend.id,
        trigger="reactive",
        reason=failure.reason.value,
        evidence=failure.evidence,
    )
    wanted = session.original
    session, is_news = moved(
        case, session, hop, wanted=wanted, model=choice.entry.model, forgets=True
    )
    if is_news:
        case.note(
            "session.notice",
            session=session.session,
            backend=hop.to_backend,
            notice="fallback",
            route=(wanted, hop.to_backend),
            from_model=None,
            to_model=None,
            reason=hop.reason,
            text=f"switched from {left.id} to {hop.to_backend} ({hop.reason})",
        )
    return session
