"""Health that other machines share with this one."""

from fallbackd.core.case import Case
from fallbackd.core.events import SharedSeen
from fallbackd.core.health.record import Health, is_leased, view
from fallbackd.core.share.folding import folded


def shared_seen(case: Case, event: SharedSeen) -> None:
    for record in event.records:
        before = case.health.get(record.scope) or Health(scope=record.scope)
        after = folded(before, record, now=case.now)
        if after == before:
            continue
        case.put_health(after)
        is_seen = view(before, now=case.now) == view(after, now=case.now)
        is_held = is_leased(before, now=case.now) == is_leased(after, now=case.now)
        if not (is_seen and is_held):
            case.wake_waiting()
