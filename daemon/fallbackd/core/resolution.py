"""What the next resolution of a delegation asks for: what was tried, and who is preferred."""

from fallbackd.core.chain import Request, candidate_key, find_role, sameness
from fallbackd.core.draft import Draft
from fallbackd.core.failures import Reason
from fallbackd.core.ids import BackendId
from fallbackd.core.policy import IN_SESSION_KIND, Backend, Entry
from fallbackd.core.recovery import prefer, role_counting
from fallbackd.core.scopes import find_backend, model_of
from fallbackd.core.state import Attempt, Delegation, Session
from fallbackd.core.tiers import ONCE, Limits


def reactive_hops(delegation: Delegation) -> int:
    """Moves that count: a stand-in for a model stays where it is, and the caller starts nothing."""
    free = ("model", "in_session")
    return sum(
        1 for hop in delegation.hops if hop.trigger == "reactive" and hop.tier_to not in free
    )


def free_of_hops(draft: Draft, delegation: Delegation) -> tuple[Entry, ...]:
    """
    Who is left when the maximum of hops is reached: what starts nothing, and the stand-in for a
    model that was just found to be missing.
    """
    last = delegation.attempts[-1]
    is_missing = last.failure is not None and last.failure.reason is Reason.MODEL_NOT_FOUND
    found = []
    for entry in delegation.candidates:
        backend = find_backend(draft.policy, entry.backend)
        is_swap = is_missing and entry.tier == "model" and entry.backend == last.backend
        if is_swap or (backend is not None and backend.kind == IN_SESSION_KIND):
            found.append(entry)
    return tuple(found)


def request_of(draft: Draft, delegation: Delegation, session: Session | None) -> Request:
    """What the next resolution of a delegation asks for."""
    tried = set(delegation.inherited_tried)
    failed: set[str] = set()
    larger_than: int | None = None
    not_provider: str | None = None
    for attempt in delegation.attempts:
        tried.add(tried_key(delegation, attempt))
        backend = find_backend(draft.policy, attempt.backend)
        if backend is None or attempt.failure is None:
            continue
        if not attempt.failure.shrink_input:  # the same model may have more room elsewhere
            failed.add(sameness(backend, attempt.model, attempt.credential))
        if attempt.failure.shrink_input and backend.context_tokens is not None:
            larger_than = max(larger_than or 0, backend.context_tokens)
        if attempt.failure.reason is Reason.FORMAT_ERROR:
            not_provider = backend.provider or backend.id
    preferred = None
    counting = role_counting(draft.policy, delegation.role)
    stays = session is not None and not delegation.named and not delegation.attempts
    if stays and session is not None and counting is None:
        preferred = _affinity(draft, delegation, session)
    request = Request(
        tried=frozenset(tried),
        same_as_failed=frozenset(failed),
        prompt_tokens=_whole_tokens(delegation),
        larger_than=larger_than,
        not_provider=not_provider,
        preferred=preferred,
        local_only=bool(delegation.attempts)
        and (last := delegation.attempts[-1].failure) is not None
        and last.reason is Reason.LOCAL_NETWORK,
        limits=limits_of_role(delegation),
    )
    if stays and counting is not None:
        request = prefer(draft, counting, delegation.candidates, session, request)
    return request


def limits_of_role(delegation: Delegation) -> Limits:
    """What the role and the request forbid by now."""
    reached = {one.tier for one in delegation.attempts if one.tier is not None}
    return Limits(
        differs_from=frozenset(delegation.differs_from),
        allow_metered=delegation.allow_metered,
        spent_tiers=ONCE & reached,
    )


def _whole_tokens(delegation: Delegation) -> int | None:
    """The prompt with the note about work that was begun, which every hop adds to it."""
    if delegation.prompt_tokens is None:
        return None
    begun = [one for one in delegation.attempts if one.effects != "none"]
    if not begun:
        return delegation.prompt_tokens
    names = sum(len(name) for one in begun for name in one.changed_files[:20])
    return delegation.prompt_tokens + 80 * len(begun) + names // 4


def tried_key(delegation: Delegation, attempt: Attempt) -> str:
    """The key of the chain entry that an attempt was made for."""
    for entry in delegation.candidates:
        if entry.backend == attempt.backend and entry.model == attempt.model:
            return candidate_key(entry.backend, entry.model)
    return candidate_key(attempt.backend, None)


def entry_of(delegation: Delegation, attempt: Attempt, backend: Backend) -> Entry:
    """The entry of the chain that an attempt was made for."""
    return next(
        (
            one
            for one in delegation.candidates
            if one.backend == attempt.backend and model_of(one, backend) == attempt.model
        ),
        Entry(backend=attempt.backend, model=attempt.model),
    )


def _affinity(draft: Draft, delegation: Delegation, session: Session) -> BackendId | None:
    """The backend that last answered this session, while its prompt cache may be warm."""
    role = None if delegation.role is None else find_role(draft.policy, delegation.role)
    idle_s = draft.policy.defaults.idle_s
    if role is not None and role.idle_s is not None:
        idle_s = role.idle_s
    if role is not None and role.return_policy == "new_session":
        return session.answered_by
    if draft.now - session.last_used_at >= idle_s:
        return None
    return session.answered_by
