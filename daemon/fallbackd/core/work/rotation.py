"""
Another credential of the same backend takes over: an attempt, not a hop.

```
 throttle, no time stated ── once more on the same ── again ── mark ─┐
 usage limit, billing, login, no secret ───────────────────── mark ──┴─▶ the next usable credential
```
"""

from msgspec import structs

from fallbackd.core.case import Case
from fallbackd.core.case_view import CaseView
from fallbackd.core.failures import Failure, Reason
from fallbackd.core.health.record import HEALTHY, Health, view
from fallbackd.core.health.scopes import failed_scope, find_backend
from fallbackd.core.policy import Backend, Entry
from fallbackd.core.records import Verdict
from fallbackd.core.routing.credentials import THROTTLE_MEMORY_S, usable
from fallbackd.core.routing.looking import Request
from fallbackd.core.routing.resolve import Resolved
from fallbackd.core.turn import Turn
from fallbackd.core.work.resolution import entry_of, halted, request_after


def first_throttle(
    case: Case,
    backend: Backend,
    failure: Failure,
    *,
    model: str | None,
    credential: str | None,
    started_at: float | None,
) -> bool:
    """
    Whether a throttle marks nothing yet: the first one without a stated time, of a credential that
    another one could take over from. It is remembered, so that the second one marks, whichever
    caller saw the first. What began before the first is no second: it is the same burst.
    """
    if failure.reason is not Reason.RATE_LIMIT or not failure.rotate_credential:
        return False
    if failure.wait_s is not None or credential not in backend.credentials:
        return False
    if not set(usable(backend, model, case.health, now=case.now)) - {credential}:
        return False
    scope = failed_scope(failure, backend, model, credential)
    record = case.health.get(scope) or Health(scope=scope)
    if view(record, now=case.now) != HEALTHY:
        return False
    seen_at = record.throttled_at
    if seen_at is not None and 0 <= case.now - seen_at <= THROTTLE_MEMORY_S:
        return started_at is not None and started_at < seen_at
    case.put_health(structs.replace(record, throttled_at=case.now))
    return True


def other_credential(
    case: CaseView, backend: Backend, entry: Entry, *, without: frozenset[str], tokens: int | None
) -> Resolved:
    """The same candidate with another credential, if there is one to go on with."""
    if len(backend.credentials) < 2:
        return Resolved(choice=None, verdicts=())
    return case.resolve((entry,), Request(prompt_tokens=tokens, without=without))


def rotated(case: CaseView, turn: Turn) -> Resolved | None:
    """
    The backend that failed last with another credential. None: there is none to go on with. One
    that is only second choice goes after a healthy candidate.
    """
    last = turn.tried[-1]
    backend = find_backend(case.policy, last.backend)
    if backend is None or not last.rotate_credential:
        return None
    if last.credential is None or len(turn.tried) >= turn.budget:
        return None
    failed = frozenset(
        one.credential
        for one in turn.tried
        if one.credential is not None
        and (one.backend, one.model) == (last.backend, last.model)
        and one.rotate_credential
    )
    entry = entry_of(turn.candidates, last, backend)
    found = other_credential(case, backend, entry, without=failed, tokens=turn.prompt_tokens)
    if found.choice is None:
        return None
    if found.verdicts[0].state != "healthy" and _is_better_elsewhere(case, turn):
        return None
    return found


def with_verdict(verdicts: tuple[Verdict, ...], one: Verdict) -> tuple[Verdict, ...]:
    """The verdicts with the one on the same candidate replaced."""
    return tuple(
        one if (each.backend, each.model) == (one.backend, one.model) else each for each in verdicts
    )


def _is_better_elsewhere(case: CaseView, turn: Turn) -> bool:
    candidates, halt = halted(case.policy, turn)
    if halt is not None:
        return False
    resolved = case.resolve(candidates, request_after(case.policy, turn))
    return any(one.verdict == "chosen" and one.state == "healthy" for one in resolved.verdicts)
