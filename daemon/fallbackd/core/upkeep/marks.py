"""Health that moves without an attempt: people, reports, readiness, the tick, the clock."""

from msgspec import structs

from fallbackd.core import meter
from fallbackd.core.decision_log import model_words
from fallbackd.core.draft import Draft
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
from fallbackd.core.health.machine import Health, view
from fallbackd.core.health.scopes import (
    backend_scope,
    find_backend,
    is_scope_of,
    own_health,
    touched,
)
from fallbackd.core.ids import BackendId, ScopeId
from fallbackd.core.policy import REASONS
from fallbackd.core.records import Session
from fallbackd.core.work.recovery import role_counting

UNMARKED = frozenset(one.value for one in Reason if one.row.window is None)
MODEL_PREFIX = "model:"
MAX_MARKED_MODELS = 256
"""Any name may be that of a model, and each record comes with every look at health."""


def scopes_of_target(draft: Draft, target: str) -> tuple[ScopeId, ...] | None:
    """The scopes of a backend, or a scope itself; None: nobody knows it."""
    backend = find_backend(draft.policy, BackendId(target))
    if backend is not None:
        return touched(backend, draft.health)
    if is_known_scope(draft, target):
        return (ScopeId(target),)
    if backend_scope(target) in draft.health:
        return (backend_scope(target),)
    return None


def is_known_scope(draft: Draft, target: str) -> bool:
    scope = ScopeId(target)
    if scope in draft.health:
        return True
    if target.startswith(MODEL_PREFIX) and _marked_models(draft) >= MAX_MARKED_MODELS:
        return False
    return any(is_scope_of(backend, scope) for backend in draft.policy.backends.values())


def _marked_models(draft: Draft) -> int:
    return sum(scope.startswith(MODEL_PREFIX) for scope in draft.health)


def own_scope(draft: Draft, target: str) -> ScopeId:
    if find_backend(draft.policy, BackendId(target)) is not None:
        return backend_scope(target)
    if is_known_scope(draft, target):
        return ScopeId(target)
    return backend_scope(target)


def health_marked(draft: Draft, event: HealthMarked) -> bool:
    """False: nobody knows the target."""
    if scopes_of_target(draft, event.target) is None:
        return False
    if event.ttl_s is not None and event.ttl_s <= 0:
        health_cleared(draft, HealthCleared(target=event.target))
        return True
    reason, detail = reason_of(event.reason)
    policy = draft.policy.reason(reason, BackendId(event.target)) or REASONS[Reason.MANUAL]
    scope = own_scope(draft, event.target)
    marked_at = draft.now if event.since_at is None else event.since_at
    record = machine.mark(
        draft.health.get(scope),
        scope,
        policy,
        reason=reason,
        detail=detail if event.note is None else (detail or event.note),
        ttl_s=event.ttl_s,
        now=marked_at,
        source=event.source,
    )
    draft.put_health(record)
    return True


def reason_of(words: str | None) -> tuple[Reason, str | None]:
    """An exact word of the taxonomy is taken as such; any other words are a manual mark's."""
    if words is None or words == "":
        return Reason.MANUAL, None
    if words in Reason.__members__.values() and words not in UNMARKED:
        return Reason(words), None
    return Reason.MANUAL, words


def health_cleared(draft: Draft, event: HealthCleared) -> list[str] | None:
    """What had a mark; None: nobody knows the target."""
    if event.target is None:
        scopes = tuple(draft.health)
    else:
        found = scopes_of_target(draft, event.target)
        if found is None:
            return None
        scopes = found
    cleared: dict[str, None] = {}
    for scope in scopes:
        record = draft.health.get(scope)
        if record is None or record.outage is None:
            continue
        if event.target is not None:
            cleared[event.target] = None
        elif record.outage.source != "readiness":  # what is not there is seen again at once
            for name in backends_of(draft, scope):
                cleared[name] = None
        draft.put_health(machine.clear(record))
    if cleared:
        draft.wake_waiting()
    return list(cleared)


def backends_of(draft: Draft, scope: ScopeId) -> list[str]:
    """The configured backends that a scope takes out; else the scope's own name."""
    found = [
        str(backend.id)
        for backend in draft.policy.backends.values()
        if scope in touched(backend, {scope: Health(scope=scope)})
    ]
    return found or [scope.removeprefix("backend:")]


def health_paused(draft: Draft, event: HealthPaused) -> bool:
    if scopes_of_target(draft, event.target) is None:
        return False
    scope = own_scope(draft, event.target)
    record = draft.health.get(scope) or Health(scope=scope)
    pause = machine.Pause(since_at=draft.now, note=event.note)
    draft.put_health(structs.replace(record, pause=pause))
    return True


def health_resumed(draft: Draft, event: HealthResumed) -> bool:
    scopes = scopes_of_target(draft, event.target)
    if scopes is None:
        return False
    for scope in scopes:
        record = draft.health.get(scope)
        if record is not None and record.pause is not None:
            draft.put_health(structs.replace(record, pause=None))
            draft.wake_waiting()
    return True


def readiness_seen(draft: Draft, event: ReadinessSeen) -> None:
    """A program that is not there is out until it is; a login that changed is a repair."""
    scope = backend_scope(event.backend)
    record = draft.health.get(scope)
    outage = None if record is None else record.outage
    if event.reason is not None:
        if outage is not None and view(record, now=draft.now).state == "broken":
            is_long = outage.until_at is not None and outage.until_at - draft.now > 60
            is_other = outage.reason is not event.reason
            # Of two looks the later one counts; what an attempt has found is closer to the truth.
            if (is_long or is_other) and not (is_other and outage.source == "readiness"):
                return
        policy = draft.policy.reason(event.reason, event.backend) or REASONS[event.reason]
        marked = machine.mark(
            record,
            scope,
            policy,
            reason=event.reason,
            detail=event.detail,
            ttl_s=None,
            now=draft.now,
            source="readiness",
        )
        if marked == record:
            return
        if marked.outage is not None:
            since_at = draft.now
            if outage is not None and outage.reason is event.reason:
                since_at = outage.since_at
            marked = structs.replace(
                marked, outage=structs.replace(marked.outage, count=1, since_at=since_at)
            )
        draft.put_health(marked)
        return
    if record is not None and outage is not None and outage.source == "readiness":
        _repaired(draft, record, proven=True)
    if not event.repaired:
        return
    backend = find_backend(draft.policy, event.backend)
    for one in (scope,) if backend is None else touched(backend, draft.health):
        known = draft.health.get(one)
        if known is None or known.outage is None or known.outage.source == "person":
            continue
        row = known.outage.reason.row
        if known.outage.state == "broken" and row.ended_by in ("login", "program"):
            _repaired(draft, known, proven=False)


def _repaired(draft: Draft, record: Health, *, proven: bool) -> None:
    """The end of an outage by evidence; what costs nothing to see is proven by seeing it."""
    assert record.outage is not None
    if proven:
        draft.put_health(machine.clear(record))
    else:
        if view(record, now=draft.now).state != "broken":
            return
        outage = structs.replace(record.outage, until_at=draft.now)
        draft.put_health(structs.replace(record, outage=outage))
    draft.wake_waiting()


def config_reloaded(draft: Draft, event: ConfigReloaded) -> None:
    """New settings of a backend void what was wrong with the old ones."""
    for name in event.changed:
        backend = find_backend(draft.policy, name)
        scopes = (backend_scope(name),) if backend is None else touched(backend, draft.health)
        for scope in scopes:
            record = draft.health.get(scope)
            if record is None or record.outage is None:
                continue
            if record.outage.reason.row.ended_by in ("settings", "program"):
                draft.put_health(machine.clear(record))
                draft.wake_waiting()


def ticked(draft: Draft, event: Ticked) -> None:
    """Persist and announce what time has done. No choice waits for this."""
    moved = False
    for record in list(draft.health.values()):
        if view(record, now=draft.now).state == record.announced:
            continue
        draft.put_health(draft.announce(record))
        moved = True
    if moved:
        draft.wake_waiting()
    busy = {one.session for one in draft.snapshot.active.values()}
    for name in event.idle_sessions:
        if name not in busy:
            draft.drop_session_id(name)
    for session in event.fallen_sessions:
        if session.session not in busy:  # what was read before may have begun to work since
            after = tell_recovery(draft, session)
            if after is not session:
                draft.put_more_session(after)


def _recovered(draft: Draft, session: Session) -> bool:
    """
    Say once that the one is healthy again from which a session has fallen to where it is now,
    where that was told; never while a turn runs.
    """
    if not session.server and role_counting(draft.policy, session.role) is not None:
        return False  # what the clock says is no sign of life: the return itself is told
    told = [pair.rpartition(">") for pair in session.notices_sent]
    original = next((left for left, _, to in reversed(told) if to == session.current), None)
    backend = None if original is None else find_backend(draft.policy, BackendId(original))
    if backend is None or session.recovered_announced or is_at_work(session):
        return False
    if own_health(backend, draft.health, now=draft.now)[0].state != "healthy":
        return False
    left = next((one for one in reversed(session.hops) if one.from_backend == backend.id), None)
    if left is not None and left.reason in UNMARKED:
        return False  # it was available all the time
    draft.note(
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


def is_at_work(session: Session) -> bool:
    """A delegation of ours, or a turn of its opencode server, is under way."""
    turn = session.turn
    is_busy = session.rescue is not None or (turn is not None and turn.running)
    return is_busy or session.running is not None


def tell_recovery(draft: Draft, session: Session) -> Session:
    """The session after it was told, where there is something to tell."""
    told = _recovered(draft, session)
    return structs.replace(session, recovered_announced=True) if told else session


def clock_stepped(draft: Draft, by_s: float) -> None:
    for record in list(draft.health.values()):
        draft.put_health(machine.shift(record, by_s))
    for used in list(draft.meters.values()):
        draft.put_meter(meter.shift(used, by_s))
