"""Credentials that are not there, or that are others than those that failed."""

from msgspec import structs

from fallbackd.core.case import Case
from fallbackd.core.events import CredentialSeen
from fallbackd.core.failures import Reason
from fallbackd.core.health import machine
from fallbackd.core.health.record import Health, view
from fallbackd.core.health.scopes import credential_scope, find_backend
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
