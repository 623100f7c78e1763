"""What a chain is asked for after some of its candidates were tried, and what ends that."""

from typing import Literal

from msgspec import structs

from fallbackd.core.case_view import CaseView
from fallbackd.core.failures import Reason
from fallbackd.core.health.scopes import context_of, find_backend, model_of
from fallbackd.core.policy import IN_SESSION_KIND, Backend, Entry, Policy, Role
from fallbackd.core.records import Attempt, Session
from fallbackd.core.routing.candidates import find_role
from fallbackd.core.routing.configured import candidate_key, sameness
from fallbackd.core.routing.families import AUTHOR, UNKNOWN
from fallbackd.core.routing.looking import Request
from fallbackd.core.routing.tiers import ONCE, Limits
from fallbackd.core.turn import Halt, Tried, Turn
from fallbackd.core.work.recovery import prefer, role_counting

# --- what is asked ----------------------------------------------------------------------------


def turn_for(
    case: CaseView,
    candidates: tuple[Entry, ...],
    role: Role | None,
    session: Session | None,
    *,
    prompt_tokens: int | None = None,
    allow_metered: bool = False,
    differs_from: tuple[str, ...] | None = None,
    at_server: bool = False,
) -> Turn:
    """
    What is asked of a chain, before anything was tried.

    Args:
        allow_metered: The caller agrees to what bills by use.
        differs_from: Model families that the caller names; None: it names none.
    """
    policy = case.policy
    first = find_backend(policy, candidates[0].backend) if candidates else None
    turn = Turn(
        candidates=candidates,
        allow_metered=allow_metered or (first is not None and first.cost == "metered"),
        differs_from=tuple(dict.fromkeys(differs_from or ())),
        max_hops=policy.defaults.max_fallback_depth,
        budget=policy.defaults.max_attempts,
        prompt_tokens=prompt_tokens,
        at_server=at_server,
        at=case.now,
    )
    if role is None:
        return turn
    return structs.replace(
        turn,
        role=role.name,
        creative=role.kind == "creative",
        on_outage=role.outage_policy,
        allow_metered=turn.allow_metered or role.allow_metered,
        differs_from=_differs_from(role, session, differs_from),
        fallback_on=None if role.fallback_on is None else tuple(sorted(role.fallback_on)),
        max_hops=(turn.max_hops if role.max_fallback_depth is None else role.max_fallback_depth),
    )


def _differs_from(
    role: Role, session: Session | None, named: tuple[str, ...] | None
) -> tuple[str, ...]:
    """The model families that must not serve the role, with those that the caller names."""
    families = dict.fromkeys(named or ())
    for word in role.must_differ_from:
        if word != AUTHOR:
            families[word] = None
        elif named is None:
            families[(session and session.author_family) or UNKNOWN] = None
    return tuple(families)


def request_of(case: CaseView) -> Request:
    """What the next resolution of a delegation asks for."""
    delegation = case.delegation
    request = request_after(case.policy, case.turn)
    if delegation.named or delegation.attempts:
        return request
    return staying(case, request, delegation.role, delegation.turn.candidates, case.session)


def entry_of(candidates: tuple[Entry, ...], tried: Tried | Attempt, backend: Backend) -> Entry:
    """The entry of the chain that a call was made for."""
    return next(
        (
            one
            for one in candidates
            if one.backend == tried.backend and model_of(one, backend) == tried.model
        ),
        Entry(backend=tried.backend, model=tried.model),
    )


# --- the next candidate ----------------------------------------------------------------------


def request_after(policy: Policy, turn: Turn) -> Request:
    """What the next resolution asks for, after what was tried."""
    tried = set(turn.inherited_tried)
    failed: set[str] = set()
    larger_than: int | None = None
    not_provider: str | None = None
    for one in turn.tried:
        tried.add(tried_key(turn.candidates, one))
        backend = find_backend(policy, one.backend)
        if backend is None or one.reason is None:
            continue
        if not one.shrink_input:  # the same model may have more room elsewhere
            failed.add(sameness(backend, one.model, one.credential))
        if one.shrink_input and (size := context_of(policy, backend, one.model)) is not None:
            larger_than = max(larger_than or 0, size)
        if one.reason is Reason.FORMAT_ERROR:
            not_provider = backend.provider or backend.id
    return Request(
        tried=frozenset(tried),
        same_as_failed=frozenset(failed),
        prompt_tokens=turn.prompt_tokens,
        larger_than=larger_than,
        not_provider=not_provider,
        local_only=bool(turn.tried) and turn.tried[-1].reason is Reason.LOCAL_NETWORK,
        at_server=turn.at_server,
        limits=limits_of(turn),
    )


def limits_of(turn: Turn) -> Limits:
    """What the role and the request forbid by now."""
    reached = {one.tier for one in turn.tried if one.tier is not None}
    return Limits(
        differs_from=frozenset(turn.differs_from),
        allow_metered=turn.allow_metered,
        spent_tiers=ONCE & reached,
    )


def tried_key(candidates: tuple[Entry, ...], tried: Tried | Attempt) -> str:
    """The key of the chain entry that a call was made for."""
    for entry in candidates:
        if entry.backend == tried.backend and entry.model == tried.model:
            return candidate_key(entry.backend, entry.model)
    return candidate_key(tried.backend, None)


def staying(
    case: CaseView,
    request: Request,
    role: str | None,
    candidates: tuple[Entry, ...],
    session: Session,
) -> Request:
    """The request of a session that stays with who answered it, or moves back up."""
    counting = role_counting(case.policy, role)
    if counting is not None:
        return prefer(case, counting, candidates, session, request)
    known = None if role is None else find_role(case.policy, role)
    idle_s = case.policy.defaults.idle_s
    if known is not None and known.idle_s is not None:
        idle_s = known.idle_s
    never_returns = known is not None and known.return_policy == "new_session"
    if never_returns or case.now - session.last_used_at < idle_s:
        return structs.replace(
            request,
            preferred=session.answered_by,
            preferred_credential=session.answered_credential,
        )
    return request


# --- what ends it ----------------------------------------------------------------------------


def halted(policy: Policy, turn: Turn) -> tuple[tuple[Entry, ...], Halt | None]:
    """The candidates to which a move may still be made after the last failure, or why to none."""
    last = turn.tried[-1]
    if not may_hop(turn, last):
        reason = "a failure" if last.reason is None else last.reason.value
        why = f"{reason} is not a reason to fail over here (fallback_on)"
        return (), Halt(bound="fallback_on", why=why)
    if len(turn.tried) >= turn.budget:
        why = f"the budget of {turn.budget} attempts is used up (max_attempts)"
        return (), Halt(bound="max_attempts", why=why)
    if turn.hops < turn.max_hops:
        return turn.candidates, None
    left = _free_of_hops(policy, turn)
    if left:
        return left, None
    why = f"the maximum of {turn.max_hops} hops is reached (max_fallback_depth)"
    return (), Halt(bound="max_fallback_depth", why=why)


def may_hop(turn: Turn, failed: Tried) -> bool:
    """Whether a failure is a reason to go to another candidate, for this role."""
    if failed.shrink_input:
        return True  # to a larger context only: the resolution sees to it
    if not failed.hop or failed.reason is None:
        return False
    return turn.fallback_on is None or failed.reason.value in turn.fallback_on


def _free_of_hops(policy: Policy, turn: Turn) -> tuple[Entry, ...]:
    """
    Candidates still allowed at the maximum of hops: what starts nothing, and the stand-in for a
    model that was just found to be missing.
    """
    last = turn.tried[-1]
    is_missing = last.reason is Reason.MODEL_NOT_FOUND
    found = []
    for entry in turn.candidates:
        backend = find_backend(policy, entry.backend)
        is_swap = is_missing and entry.tier == "model" and entry.backend == last.backend
        if is_swap or (backend is not None and backend.kind == IN_SESSION_KIND):
            found.append(entry)
    return tuple(found)


def is_poison(turn: Turn) -> bool:
    """The same low-confidence reason on two candidates: the task is the likely cause."""
    last = turn.tried[-1]
    is_unclear = last.reason is not None and last.reason.row.about == "unclear"
    if not is_unclear or last.confidence == "structured":
        return False
    return any(
        one.reason is last.reason
        and one.confidence != "structured"
        and (one.backend, one.model) != (last.backend, last.model)
        for one in turn.tried[:-1]
    )


def futile(turn: Turn) -> Literal["task", "poison"] | None:
    """Why no other candidate would cure the last failure: the work itself is its cause."""
    reason = turn.tried[-1].reason
    if reason is not None and reason.row.about == "task":
        return "task"
    return "poison" if is_poison(turn) else None


def is_form_error_twice(turn: Turn) -> bool:
    """What two providers could not read, a third one will not read either."""
    last = turn.tried[-1]
    return last.reason is Reason.FORMAT_ERROR and any(
        one.reason is Reason.FORMAT_ERROR and one.backend != last.backend for one in turn.tried
    )


def forbidden_by(
    case: CaseView, candidates: tuple[Entry, ...], request: Request
) -> Literal["must_differ", "consent"] | None:
    """The rule of the role or of the request but for which a candidate would be usable."""
    limits = request.limits
    paid = structs.replace(limits, allow_metered=True)
    alike = structs.replace(limits, differs_from=frozenset())
    free = structs.replace(paid, differs_from=frozenset())

    def helps(other: Limits) -> bool:
        return case.resolve(candidates, structs.replace(request, limits=other)).choice is not None

    if limits.differs_from and helps(alike):
        return "must_differ"
    if not limits.allow_metered and helps(paid):
        return "consent"
    return "must_differ" if limits.differs_from and helps(free) else None
