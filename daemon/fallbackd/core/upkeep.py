"""Health that changes without an attempt: marks by hand, readiness, the tick, the clock."""

from typing import Any

from msgspec import structs

from fallbackd.core import health, meter
from fallbackd.core.case import Case
from fallbackd.core.decision_log import model_words
from fallbackd.core.events import (
    ClockStepped,
    ConfigReloaded,
    CredentialSeen,
    HealthCleared,
    HealthMarked,
    HealthPaused,
    HealthResumed,
    LoginAnswered,
    QuotaSeen,
    ReadinessSeen,
    SharedSeen,
    Ticked,
)
from fallbackd.core.figures import is_low, joined, newly_near, window_words
from fallbackd.core.health import EARLY_TRIAL_S, Health, Pause, is_leased, shift, shift_outage, view
from fallbackd.core.history import planned
from fallbackd.core.ids import BackendId, ScopeId
from fallbackd.core.policy import REASONS, Backend
from fallbackd.core.reasons import Reason
from fallbackd.core.records import Delegation, Meter, Session, shifted
from fallbackd.core.scopes import (
    backend_scope,
    credential_scope,
    find_backend,
    is_scope_of,
    own_health,
    plan_scope,
    touched,
)
from fallbackd.core.share import folded
from fallbackd.core.work import standby
from fallbackd.core.work.resolution import role_counting

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
    record = health.mark(
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
    if any(one.on_standby for one in case.snapshot.active.values()):
        case.wake_waiting()  # it may end sooner than what it replaces
    return True


def reason_of(words: str | None) -> tuple[Reason, str | None]:
    """An exact word of the taxonomy is taken as such; any other words are a manual mark's."""
    if words is None or words == "":
        return Reason.MANUAL, None
    if words in Reason.__members__.values() and words not in UNMARKED:
        return Reason(words), None
    return Reason.MANUAL, words


def health_cleared(case: Case, event: HealthCleared) -> list[str] | None:
    """Clear marks, and return what had one; None: the target is unknown."""
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
        case.put_health(structs.replace(health.clear(record), cleared_at=case.now))
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
    Return whether what a look found is on record, or something closer to the truth: what an attempt
    has found. Of two looks the later one counts.
    """
    if record is None or record.outage is None or view(record, now=now).state != "broken":
        return False
    outage = record.outage
    if outage.reason is not reason:
        return outage.source != "readiness"
    return outage.until_at is not None and outage.until_at - now > LOOK_AGAIN_S


def _is_ended_by_repair(record: Health) -> bool:
    """Return whether another login or program may end an outage that needs one."""
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
    marked = health.mark(
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
        case.put_health(health.clear(record))
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
                case.put_health(health.clear(record))
                case.wake_waiting()


def ticked(case: Case, event: Ticked) -> None:
    """Persist and announce what time has done. No choice waits for this."""
    moved = False
    if event.ran_until_at is not None:
        case.meters.count_stop(event.ran_until_at)
    case.meters.close_hours()
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


# Credentials that are not there, that are others than those that failed, or that work again.


_BY_OTHERS = frozenset({"person", "import"})


def credential_seen(case: Case, event: CredentialSeen) -> None:
    backend = find_backend(case.policy, event.backend)
    if backend is None or event.credential not in backend.credentials:
        return
    scope = credential_scope(backend, event.credential)
    record = case.health.get(scope) or Health(scope=scope)
    outage = record.outage
    if event.reason is not None:
        if not _is_held(record, event.reason, now=case.now):
            mark_seen(case, scope, backend.id, event.reason, event.detail)
    elif outage is not None and outage.source == "readiness":
        case.put_health(health.clear(record))
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


def quota_seen(case: Case, event: QuotaSeen) -> None:
    """Keep what is believable, and say once that a window of a plan is nearly used up."""
    used = case.meters.get(event.backend) or Meter(backend=event.backend)
    after = joined(used.figures, event.figures, now=case.now)
    if after == used.figures:
        return
    case.meters.put(structs.replace(used, figures=after))
    if used.hour is not None:
        seen = {window_words(one): one.used_percent for one in event.figures if one in after}
        case.meters.put_hour(planned(case.meters.hour(event.backend), seen))
    if is_low(after, event.figures, now=case.now):
        # They lag behind, and close nothing: a marked plan gets one trial.
        seen_at = min(one.at for one in event.figures)
        login_answered(case, LoginAnswered(backends=(event.backend,), at=seen_at))
    if any(one.on_standby for one in case.snapshot.active.values()):
        case.wake_waiting()  # more may be left than what is reserved
    for one in newly_near(used.figures, event.figures, now=case.now):
        case.note(
            "plan.near",
            backend=event.backend,
            used_percent=one.used_percent,
            window_s=one.window_s,
            resets_at=one.resets_at,
        )


def _is_doubted(record: Health, event: LoginAnswered, *, now: float) -> bool:
    outage = record.outage
    if outage is None or not outage.reason.row.is_limit or outage.since_at >= event.at:
        return False
    return record.doubted_at is None or not 0 <= now - record.doubted_at < EARLY_TRIAL_S


def _is_held(record: Health, reason: Reason, *, now: float) -> bool:
    """
    Return whether a mark stands that says as much: of a person, without end, or the same for long.
    """
    outage = record.outage
    if outage is None or view(record, now=now).state != "broken":
        return False
    if outage.source in _BY_OTHERS or outage.until_at is None:
        return True
    return outage.reason is reason and outage.until_at - now > LOOK_AGAIN_S


def _void(case: Case, record: Health) -> None:
    """Void a mark that says nothing of the new login or program: one trial decides."""
    outage = record.outage
    if outage is not None and outage.source in _BY_OTHERS:
        return
    if outage is not None and view(record, now=case.now).state in ("rate_limited", "broken"):
        outage = structs.replace(outage, until_at=case.now, cooldown_s=0.0)
        case.wake_waiting()
    case.put_health(structs.replace(record, outage=outage, throttled_at=None))


# The wall clock was set: every window, wait and deadline moves with it.


def clock_stepped(case: Case, event: ClockStepped) -> None:
    for record in list(case.health.values()):
        case.put_health(shift(record, event.by_s))
    for used in list(case.meters.values()):
        case.meters.put(meter.shift(used, event.by_s))
    case.keep_facts(event.facts)
    for one in case.snapshot.active.values():
        case.update_other(one.delegation, **_shifted(one, event.by_s))
    if any(one.on_standby for one in case.snapshot.active.values()):
        case.wake_waiting()  # what was named by the clock has come nearer, or has not


def _shifted(delegation: Delegation, by_s: float) -> dict[str, Any]:
    """The instants of a delegation after the wall clock was set."""
    waiting = delegation.waiting
    if waiting is not None:
        waiting = structs.replace(
            waiting,
            since_at=waiting.since_at + by_s,
            until_at=waiting.until_at + by_s,
            limit_at=waiting.limit_at + by_s,
        )

    def moved(at: float | None) -> float | None:
        return None if at is None else at + by_s

    attempts = tuple(
        structs.replace(
            one,
            started_at=one.started_at + by_s,
            answered_at=moved(one.answered_at),
            patience_until_at=moved(one.patience_until_at),
            tries_at=moved(one.tries_at),
            waits_until_at=moved(one.waits_until_at),
        )
        if one.ended_at is None
        else one
        for one in delegation.attempts
    )
    marks = tuple(
        structs.replace(
            one,
            since_at=one.since_at + by_s,
            before=None if one.before is None else shift_outage(one.before, by_s),
        )
        for one in delegation.turn.marks
    )
    outcome = delegation.outcome
    if outcome is not None:
        outcome = structs.replace(outcome, retry_at=moved(outcome.retry_at))
    return {
        "outcome": outcome,
        "attempts": attempts,
        "waiting": waiting,
        "standby": standby.shifted(delegation.standby, by_s),
        "turn": structs.replace(delegation.turn, marks=marks),
        "questions": shifted(delegation.questions, by_s),
        "rests_until_at": moved(delegation.rests_until_at),
        "deadline_at": moved(delegation.deadline_at),
        "last_activity_at": moved(delegation.last_activity_at),
    }


# Health that other machines share with this one.


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
