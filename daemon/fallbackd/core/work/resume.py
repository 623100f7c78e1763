"""What a new run of the daemon does about the work that it finds unfinished."""

from fallbackd.core.case import Case
from fallbackd.core.effects import AskPerson, StartAttempt, StopAttempt, WakeAt
from fallbackd.core.events import Resumed
from fallbackd.core.records import Attempt, Delegation
from fallbackd.core.work.apply import advance
from fallbackd.core.work.resumption import resumed_conversation
from fallbackd.core.work.starting import handoff


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
    rebooted = bool(delegation.boot) and delegation.boot != event.boot
    if rebooted or not delegation.cwd_ids:  # devices have other numbers after a boot
        case.update(cwd_ids=event.cwd_ids)
    if running is None:
        case.update(boot=event.boot)
        advance(case, event="daemon started")
        _mind_deadline(case, delegation)
        return
    case.tell(
        delegation,
        "daemon started",
        outcome=f"looks for {running.attempt}, which ran on {running.backend} before"
        + (" the machine was started anew" if rebooted else ""),
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
