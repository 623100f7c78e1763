"""Credentials that are not there, that are others than those that failed, or that work again."""

from msgspec import structs

from fallbackd.core.case import Case
from fallbackd.core.events import CredentialSeen, LoginAnswered
from fallbackd.core.failures import Reason
from fallbackd.core.health import machine
from fallbackd.core.health.machine import EARLY_TRIAL_S
from fallbackd.core.health.record import Health, view
from fallbackd.core.health.scopes import (
    backend_scope,
    credential_scope,
    find_backend,
    plan_scope,
)
from fallbackd.core.upkeep.marks import LOOK_AGAIN_S, mark_seen

_BY_OTHERS = frozenset({"person", "import"})


def credential_seen(case: Case, event: CredentialSeen) -> None:
    backend = find_backend(case.policy, event.backend)
    if backend is None or event.credential not in backend.credentials:
        return
    scope = credential_scope(backend, event.credential)
    record = case.health.get(scope) or Health(scope=scope)
    outage = record.outage
    if event.reason is not None:
        if not _is_known(record, event.reason, now=case.now):
            mark_seen(case, scope, backend.id, event.reason, event.detail)
    elif outage is not None and outage.source == "readiness":
        case.put_health(machine.clear(record))
        case.wake_waiting()
    elif event.changed:
        for one in [one for one in case.health if one.partition("+model:")[0] == scope]:
            _void(case, case.health[one])


def login_answered(case: Case, event: LoginAnswered) -> None:
    """
    End the limits of a login that was answered since: one trial will tell. Its figures lag behind,
    so a limit that is met again is not doubted for another hour.
    """
    for name in event.backends:
        backend = find_backend(case.policy, name)
        if backend is None:
            continue
        for scope in {backend_scope(name), plan_scope(backend)}:
            record = case.health.get(scope)
            if record is not None and _is_doubted(record, event, now=case.now):
                _void(case, structs.replace(record, doubted_at=case.now))


def _is_doubted(record: Health, event: LoginAnswered, *, now: float) -> bool:
    outage = record.outage
    if outage is None or not outage.reason.row.is_limit or outage.since_at >= event.at:
        return False
    return record.doubted_at is None or not 0 <= now - record.doubted_at < EARLY_TRIAL_S


def _is_known(record: Health, reason: Reason, *, now: float) -> bool:
    """Whether a mark stands that says as much: of a person, without end, or the same for long."""
    outage = record.outage
    if outage is None or view(record, now=now).state != "broken":
        return False
    if outage.source in _BY_OTHERS or outage.until_at is None:
        return True
    return outage.reason is reason and outage.until_at - now > LOOK_AGAIN_S


def _void(case: Case, record: Health) -> None:
    """What was wrong with the old one says nothing of the new one: one trial will tell."""
    outage = record.outage
    if outage is not None and outage.source in _BY_OTHERS:
        return
    if outage is not None and view(record, now=case.now).state in ("rate_limited", "broken"):
        outage = structs.replace(outage, until_at=case.now, cooldown_s=0.0)
        case.wake_waiting()
    case.put_health(structs.replace(record, outage=outage, throttled_at=None))
