"""
Another credential of the same backend takes over: an attempt, not a hop.

```
 throttle, no time stated ── once more on the same ── again ── mark ─┐
 usage limit, billing, login, no secret ───────────────────── mark ──┴─▶ the next usable credential
```
"""

from msgspec import structs

from fallbackd.core.chain import Choice, Request, Resolved
from fallbackd.core.credentials import THROTTLE_MEMORY_S, usable
from fallbackd.core.draft import Draft
from fallbackd.core.failures import Failure, Reason
from fallbackd.core.health import HEALTHY, Health, view
from fallbackd.core.policy import Backend, Entry
from fallbackd.core.resolution import entry_of, reactive_hops, request_of
from fallbackd.core.scopes import failed_scope, find_backend
from fallbackd.core.state import Delegation, Session


def first_throttle(
    draft: Draft,
    backend: Backend,
    failure: Failure,
    *,
    model: str | None,
    credential: str | None,
    started_at: float | None,
) -> bool:
    """
    Whether a throttle marks nobody yet: the first one without a stated time, of a credential that
    another one could take over from. It is remembered, so that the second one marks, whoever saw
    the first. What began before the first is no second: it is the same burst.
    """
    if failure.reason is not Reason.RATE_LIMIT or not failure.rotate_credential:
        return False
    if failure.wait_s is not None or credential not in backend.credentials:
        return False
    if not set(usable(backend, model, draft.health, now=draft.now)) - {credential}:
        return False
    scope = failed_scope(failure, backend, model, credential)
    record = draft.health.get(scope) or Health(scope=scope)
    if view(record, now=draft.now) != HEALTHY:
        return False
    seen_at = record.throttled_at
    if seen_at is not None and 0 <= draft.now - seen_at <= THROTTLE_MEMORY_S:
        return started_at is not None and started_at < seen_at
    draft.put_health(structs.replace(record, throttled_at=draft.now))
    return True


def other_credential(
    draft: Draft, backend: Backend, entry: Entry, *, without: frozenset[str], tokens: int | None
) -> Resolved:
    """The same candidate with another credential, if there is one to go on with."""
    if len(backend.credentials) < 2:
        return Resolved(choice=None, verdicts=())
    return draft.resolve((entry,), Request(prompt_tokens=tokens, without=without))


def rotated(
    draft: Draft, delegation: Delegation, session: Session
) -> tuple[Choice, Delegation] | None:
    """
    With which credential the backend of the last attempt goes on, and the delegation with its
    verdict. One that is only second choice goes after a healthy candidate.
    """
    last = delegation.attempts[-1]
    failure = last.failure
    backend = find_backend(draft.policy, last.backend)
    if backend is None or failure is None or not failure.rotate_credential:
        return None
    if last.credential is None or len(delegation.attempts) >= delegation.budget:
        return None
    failed = frozenset(
        one.credential
        for one in delegation.attempts
        if one.credential is not None
        and (one.backend, one.model) == (last.backend, last.model)
        and one.failure is not None
        and one.failure.rotate_credential
    )
    entry = entry_of(delegation, last, backend)
    found = other_credential(draft, backend, entry, without=failed, tokens=delegation.prompt_tokens)
    if found.choice is None:
        return None
    (verdict,) = found.verdicts
    if verdict.state != "healthy" and _is_better_elsewhere(draft, delegation, session):
        return None
    verdicts = tuple(
        verdict if (one.backend, one.model) == (verdict.backend, verdict.model) else one
        for one in delegation.verdicts
    )
    return found.choice, structs.replace(delegation, verdicts=verdicts)


def _is_better_elsewhere(draft: Draft, delegation: Delegation, session: Session) -> bool:
    if not delegation.failover or reactive_hops(delegation) >= delegation.max_hops:
        return False
    resolved = draft.resolve(delegation.candidates, request_of(draft, delegation, session))
    return any(one.verdict == "chosen" and one.state == "healthy" for one in resolved.verdicts)
