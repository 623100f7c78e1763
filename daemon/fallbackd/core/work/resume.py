"""Resume unfinished work in a new run of the daemon."""

from msgspec import structs

from fallbackd.core.case import Case
from fallbackd.core.decision import (
    AskPerson,
    Change,
    Decision,
    PutDelegation,
    PutHealth,
    PutSession,
    StartAttempt,
    StopAttempt,
    WakeAt,
)
from fallbackd.core.events import RecordsFound, Resumed
from fallbackd.core.health import Health
from fallbackd.core.ids import delegation_of
from fallbackd.core.records import Attempt, Delegation, Session
from fallbackd.core.work.apply import advance
from fallbackd.core.work.sessions import resumed_conversation
from fallbackd.core.work.starting import handoff

FROM_DIRECTORY = "what is on record of it was read from its run directory: the database was older"


def records_found(case: Case, event: RecordsFound) -> Decision:
    """
    Take over what run directories know. Unfinished work holds its session from now on, and is
    resumed like any other.
    """
    changes: list[Change] = []
    for one in event.records:
        if one.delegation not in case.snapshot.active and not _may_enter(case, one):
            continue  # what runs of it is ended as unknown
        found = structs.replace(one, warnings=(*one.warnings, FROM_DIRECTORY))
        changes.append(PutDelegation(found))
        changes += [PutHealth(record) for record in _leases_given_back(case, found)]
        if (session := _session_of(case, found)) is not None:
            changes.append(PutSession(session))
    return Decision(changes=tuple(changes))


def _may_enter(case: Case, one: Delegation) -> bool:
    """Return whether its session is free, as far as it needs that."""
    session = case.snapshot.session
    holds = not one.is_ended and one.blocked_by is None
    return not holds or session is None or session.running in (None, one.delegation)


def _session_of(case: Case, one: Delegation) -> Session | None:
    """None: nothing changes there."""
    holds = not one.is_ended and one.blocked_by is None
    session = case.snapshot.session
    if session is None and holds:
        return Session(
            session=one.session,
            role=one.role,
            original=one.requested,
            current=one.active,
            past=one.past,
            running=one.delegation,
            created_at=one.created_at,
            last_used_at=case.now,
        )
    if session is None or (session.running == one.delegation) is holds:
        return None
    return structs.replace(session, running=one.delegation if holds else None)


def _leases_given_back(case: Case, one: Delegation) -> list[Health]:
    """Give back the leases of trials whose attempts have ended since."""
    running = None if one.running is None else one.running.attempt
    return [
        structs.replace(record, trial=None)
        for record in case.snapshot.health.values()
        if record.trial is not None
        and record.trial.attempt != running
        and delegation_of(record.trial.attempt) == one.delegation
    ]


def resumed(case: Case, event: Resumed) -> None:
    """
    Continue where the previous run of the daemon stopped.

    Its attempt is ordered once more: the engine finds it running, or ended, or never started. After
    a restart of the machine it is not started again: its caller may be gone, and what it has done
    to files is unknown.
    """
    delegation = case.snapshot.delegation
    if delegation is None or delegation.is_ended:
        return
    running = delegation.running
    if running is not None and running.attempt != event.attempt:
        return
    if delegation.question is not None:
        case.effects.append(AskPerson(delegation=delegation.delegation))  # it is open still
    rebooted = bool(delegation.boot and event.boot) and delegation.boot != event.boot
    if rebooted or not delegation.cwd_ids:  # devices have other numbers after a boot
        case.update(cwd_ids=event.cwd_ids)
    if running is None:
        case.update(boot=event.boot or delegation.boot)
        advance(case, event="daemon started")
        _mind_deadline(case, delegation)
        return
    case.tell(
        delegation,
        "daemon started",
        outcome=f"looks for {running.attempt}, which ran on {running.backend} before"
        + (" the machine was restarted" if rebooted else ""),
    )
    case.effects.append(_same_again(delegation, running, rebooted=rebooted))
    if running.state == "stopping":
        case.effects.append(
            StopAttempt(attempt=running.attempt, grace_s=case.policy.defaults.stop_grace_s)
        )
    _mind_deadline(case, delegation)


def _same_again(delegation: Delegation, running: Attempt, *, rebooted: bool) -> StartAttempt:
    return StartAttempt(
        attempt=running.attempt,
        delegation=delegation.delegation,
        backend=running.backend,
        model=running.model,
        effort=running.effort,
        credential=running.credential,
        handoff=None if running.resumes else handoff(delegation.attempts[:-1]),
        resume=resumed_conversation(delegation, running),
        taken_up=True,
        was_started=running.state == "running" or running.pid is not None,
        rebooted=rebooted,
    )


def _mind_deadline(case: Case, delegation: Delegation) -> None:
    at = delegation.deadline_at
    if at is not None:
        case.effects.append(WakeAt(at=at, delegation=delegation.delegation, purpose="deadline"))
