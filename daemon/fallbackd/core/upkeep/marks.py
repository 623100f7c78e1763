"""Health that moves without an attempt: people, reports, readiness, the tick, the clock."""

from msgspec import structs

from fallbackd.core.case import Case
from fallbackd.core.decision_log import model_words
from fallbackd.core.events import (
    ConfigReloaded,
    HealthCleared,
    HealthMarked,
    HealthPaused,
    HealthResumed,
    ReadinessSeen,
    Ticked,
)
from fallbackd.core.failures import Reason
from fallbackd.core.health import machine
from fallbackd.core.health.record import Health, Pause, view
from fallbackd.core.health.scopes import (
    backend_scope,
    find_backend,
    is_scope_of,
    own_health,
    touched,
)
from fallbackd.core.ids import BackendId, ScopeId
from fallbackd.core.policy import REASONS, Backend
from fallbackd.core.records import Session
from fallbackd.core.work.recovery import role_counting

UNMARKED = frozenset(one.value for one in Reason if one.row.window is None)
LOOK_AGAIN_S = 60.0
"""What a look found is marked anew only this shortly before its mark ends."""
MODEL_PREFIX = "model:"
MAX_MARKED_MODELS = 256
"""Any name may be that of a model, and each record comes with every look at health."""


def scopes_of_target(case: Case, target: str) -> tuple[ScopeId, ...] | None:
    """The scopes of a backend, or a scope itself; None: unknown."""
    backend = find_backend(case.policy, BackendId(target))
    if backend is not None:
        return touched(backend, case.health)
    if is_known_scope(case, target):
        return (ScopeId(target),)
    if backend_scope(target) in case.health:
        return (backend_scope(target),)
    return None


def is_known_scope(case: Case, target: str) -> bool:
    scope = ScopeId(target)
    if scope in case.health:
        return True
    if target.startswith(MODEL_PREFIX) and _marked_models(case) >= MAX_MARKED_MODELS:
        return False
    return any(is_scope_of(backend, scope) for backend in case.policy.backends.values())


def _marked_models(case: Case) -> int:
    return sum(scope.startswith(MODEL_PREFIX) for scope in case.health)


def own_scope(case: Case, target: str) -> ScopeId:
    if find_backend(case.policy, BackendId(target)) is not None:
        return backend_scope(target)
    if is_known_scope(case, target):
        return ScopeId(target)
    return backend_scope(target)


def health_marked(case: Case, event: HealthMarked) -> bool:
    """False: the target is unknown."""
    if scopes_of_target(case, event.target) is None:
        return False
    if event.ttl_s is not None and event.ttl_s <= 0:
        health_cleared(case, HealthCleared(target=event.target))
        return True
    reason, detail = reason_of(event.reason)
    policy = case.policy.reason(reason, BackendId(event.target)) or REASONS[Reason.MANUAL]
    scope = own_scope(case, event.target)
    marked_at = case.now if event.since_at is None else event.since_at
    record = machine.mark(
        case.health.get(scope),
        scope,
        policy,
        reason=reason,
        detail=detail if event.note is None else (detail or event.note),
        ttl_s=event.ttl_s,
        now=marked_at,
        source=event.source,
    )
    case.put_health(record)
    return True


def reason_of(words: str | None) -> tuple[Reason, str | None]:
    """An exact word of the taxonomy is taken as such; any other words are a manual mark's."""
    if words is None or words == "":
        return Reason.MANUAL, None
    if words in Reason.__members__.values() and words not in UNMARKED:
        return Reason(words), None
    return Reason.MANUAL, words


def health_cleared(case: Case, event: HealthCleared) -> list[str] | None:
    """What had a mark; None: the target is unknown."""
    if event.target is None:
        scopes = tuple(case.health)
    else:
        found = scopes_of_target(case, event.target)
        if found is None:
            return None
        scopes = found
    cleared: dict[str, None] = {}
    for scope in scopes:
        record = case.health.get(scope)
        if record is None or record.outage is None:
            continue
        if event.target is not None:
            cleared[event.target] = None
        elif record.outage.source != "readiness":  # what is not there is seen again at once
            for name in backends_of(case, scope):
                cleared[name] = None
        case.put_health(structs.replace(machine.clear(record), cleared_at=case.now))
    if cleared:
        case.wake_waiting()
    return list(cleared)


def backends_of(case: Case, scope: ScopeId) -> list[str]:
    """The configured backends that a scope takes out; else the scope's own name."""
    found = [
        str(backend.id)
        for backend in case.policy.backends.values()
        if scope in touched(backend, {scope: Health(scope=scope)})
    ]
    return found or [scope.removeprefix("backend:")]


def health_paused(case: Case, event: HealthPaused) -> bool:
    if scopes_of_target(case, event.target) is None:
        return False
    scope = own_scope(case, event.target)
    record = case.health.get(scope) or Health(scope=scope)
    pause = Pause(since_at=case.now, note=event.note)
    case.put_health(structs.replace(record, pause=pause))
    return True


def health_resumed(case: Case, event: HealthResumed) -> bool:
    scopes = scopes_of_target(case, event.target)
    if scopes is None:
        return False
    for scope in scopes:
        record = case.health.get(scope)
        if record is not None and record.pause is not None:
            case.put_health(structs.replace(record, pause=None))
            case.wake_waiting()
    return True


def readiness_seen(case: Case, event: ReadinessSeen) -> None:
    """A program that is not there is out until it is; a login that changed is a repair."""
    scope = backend_scope(event.backend)
    record = case.health.get(scope)
    if event.reason is not None:
        if not _is_known(record, event.reason, now=case.now):
            mark_seen(case, scope, event.backend, event.reason, event.detail)
        return
    if record is not None and record.outage is not None and record.outage.source == "readiness":
        _repaired(case, record, proven=True)
    if not event.repaired:
        return
    backend = find_backend(case.policy, event.backend)
    for one in (scope,) if backend is None else touched(backend, case.health):
        known = case.health.get(one)
        if known is not None and _is_ended_by_repair(known):
            _repaired(case, known, proven=False)


def _is_known(record: Health | None, reason: Reason, *, now: float) -> bool:
    """
    Whether what a look found is on record, or something closer to the truth: what an attempt has
    found. Of two looks the later one counts.
    """
    if record is None or record.outage is None or view(record, now=now).state != "broken":
        return False
    outage = record.outage
    if outage.reason is not reason:
        return outage.source != "readiness"
    return outage.until_at is not None and outage.until_at - now > LOOK_AGAIN_S


def _is_ended_by_repair(record: Health) -> bool:
    """Whether another login or program may end an outage that needs one."""
    outage = record.outage
    if outage is None or outage.source == "person" or outage.state != "broken":
        return False
    return outage.reason.row.ended_by in ("login", "program")


def mark_seen(
    case: Case, scope: ScopeId, backend: BackendId, reason: Reason, detail: str | None
) -> None:
    """Mark what a look has found. It began when the same was found first, and counts once."""
    record = case.health.get(scope)
    policy = case.policy.reason(reason, backend) or REASONS[reason]
    marked = machine.mark(
        record,
        scope,
        policy,
        reason=reason,
        detail=detail,
        ttl_s=None,
        now=case.now,
        source="readiness",
    )
    if marked == record or marked.outage is None:
        return
    old = None if record is None else record.outage
    since_at = old.since_at if old is not None and old.reason is reason else case.now
    outage = structs.replace(marked.outage, count=1, since_at=since_at)
    case.put_health(structs.replace(marked, outage=outage))


def _repaired(case: Case, record: Health, *, proven: bool) -> None:
    """The end of an outage by evidence; what costs nothing to see is proven by seeing it."""
    assert record.outage is not None
    if proven:
        case.put_health(machine.clear(record))
    else:
        if view(record, now=case.now).state != "broken":
            return
        outage = structs.replace(record.outage, until_at=case.now)
        case.put_health(structs.replace(record, outage=outage))
    case.wake_waiting()


def config_reloaded(case: Case, event: ConfigReloaded) -> None:
    """New settings of a backend void what was wrong with the old ones."""
    for name in event.changed:
        backend = find_backend(case.policy, name)
        scopes = (backend_scope(name),) if backend is None else touched(backend, case.health)
        for scope in scopes:
            record = case.health.get(scope)
            if record is None or record.outage is None:
                continue
            if record.outage.reason.row.ended_by in ("settings", "program"):
                case.put_health(machine.clear(record))
                case.wake_waiting()


def ticked(case: Case, event: Ticked) -> None:
    """Persist and announce what time has done. No choice waits for this."""
    moved = False
    for record in list(case.health.values()):
        if view(record, now=case.now).state == record.announced:
            continue
        case.put_health(case.announce(record))
        moved = True
    if moved:
        case.wake_waiting()
    busy = {one.session for one in case.snapshot.active.values()}
    for name in event.idle_sessions:
        if name not in busy:
            case.drop_session_id(name)
    for session in event.fallen_sessions:
        if session.session not in busy:  # what was read before may have begun to work since
            after = tell_recovery(case, session)
            if after is not session:
                case.keep_other_session(after)


def _recovered(case: Case, session: Session) -> bool:
    """
    Announce once that the backend from which a session failed over is healthy again, where the
    failover was announced; never while a turn runs.
    """
    if not session.server and role_counting(case.policy, session.role) is not None:
        return False  # an expired window proves nothing: only the recovery itself is announced
    backend = _told_to_be_left(case, session)
    if backend is None or session.recovered_announced or is_at_work(session):
        return False
    if own_health(backend, case.health, now=case.now)[0].state != "healthy":
        return False
    left = next((one for one in reversed(session.hops) if one.from_backend == backend.id), None)
    if left is not None and left.reason in UNMARKED:
        return False  # it was available all the time
    case.note(
        "session.notice",
        session=session.session,
        backend=backend.id,
        notice="recovered",
        route=(session.current, backend.id),
        from_model=session.current_model,
        to_model=None,
        reason="recovered",
        text=f"{model_words(backend.id)} is available again",
    )
    return True


def _told_to_be_left(case: Case, session: Session) -> Backend | None:
    """The backend from which the session came to where it is, by the last notice about that."""
    told = [pair.rpartition(">") for pair in session.notices_sent]
    original = next((left for left, _, to in reversed(told) if to == session.current), None)
    return None if original is None else find_backend(case.policy, BackendId(original))


def is_at_work(session: Session) -> bool:
    """A delegation of ours, or a turn of its opencode server, is under way."""
    message = session.message
    is_busy = session.rescue is not None or (message is not None and message.running)
    return is_busy or session.running is not None


def tell_recovery(case: Case, session: Session) -> Session:
    """Announce a recovery, where there is one. Returns the session afterwards."""
    told = _recovered(case, session)
    return structs.replace(session, recovered_announced=True) if told else session
