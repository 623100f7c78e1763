"""What the next resolution of a delegation asks for: what was tried, and who is preferred."""

from fallbackd.core.chain import Request, candidate_key, find_role, sameness
from fallbackd.core.draft import Draft
from fallbackd.core.failures import Reason
from fallbackd.core.ids import BackendId
from fallbackd.core.policy import Backend, Entry
from fallbackd.core.scopes import find_backend, model_of
from fallbackd.core.state import Attempt, Delegation, Session


def reactive_hops(delegation: Delegation) -> int:
    return sum(1 for hop in delegation.hops if hop.trigger == "reactive" and hop.tier_to != "model")


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
    if session is not None and not delegation.named and not delegation.attempts:
        preferred = _affinity(draft, delegation, session)
    return Request(
        tried=frozenset(tried),
        same_as_failed=frozenset(failed),
        prompt_tokens=delegation.prompt_tokens,
        larger_than=larger_than,
        not_provider=not_provider,
        preferred=preferred,
        local_only=bool(delegation.attempts)
        and (last := delegation.attempts[-1].failure) is not None
        and last.reason is Reason.LOCAL_NETWORK,
    )


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
