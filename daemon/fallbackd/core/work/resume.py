"""What a new run of the daemon does about the work that it finds unfinished."""

from msgspec import structs

from fallbackd.core.draft import Draft
from fallbackd.core.effects import AskPerson, StartAttempt, StopAttempt, WakeAt
from fallbackd.core.events import Resumed
from fallbackd.core.records import Delegation
from fallbackd.core.work.admit import session_of
from fallbackd.core.work.resumption import resumed_conversation
from fallbackd.core.work.starts import handoff
from fallbackd.core.work.walk import walk


def resumed(draft: Draft, event: Resumed) -> None:
    """
    Go on where the run before stopped.

    Its attempt is ordered once more: whoever performs that finds it running, or ended, or never
    started. Only where the machine was started anew it is not started again: nobody may be there
    any more who wants it, and what it has done to files is unknown.
    """
    delegation = draft.snapshot.delegation
    if delegation is None or delegation.is_ended:
        return
    if delegation.question is not None:
        draft.effects.append(AskPerson(delegation=delegation.delegation))  # it is open still
    rebooted = bool(delegation.boot) and delegation.boot != event.boot
    if rebooted or not delegation.cwd_ids:  # devices have other numbers after a boot
        delegation = structs.replace(delegation, cwd_ids=event.cwd_ids)
        draft.put_delegation(delegation)
    running = delegation.running
    if running is None:
        delegation = structs.replace(delegation, boot=event.boot)
        draft.put_delegation(delegation)
        walk(draft, delegation, session_of(draft, delegation), event="daemon started")
        _mind_deadline(draft, delegation)
        return
    draft.tell(
        delegation,
        "daemon started",
        outcome=f"looks for {running.attempt}, which ran on {running.backend} before"
        + (" the machine was started anew" if rebooted else ""),
    )
    draft.effects.append(
        StartAttempt(
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
    )
    if running.state == "stopping":
        draft.effects.append(
            StopAttempt(attempt=running.attempt, grace_s=draft.policy.defaults.stop_grace_s)
        )
    _mind_deadline(draft, delegation)


def _mind_deadline(draft: Draft, delegation: Delegation) -> None:
    at = delegation.deadline_at
    if at is not None:
        draft.effects.append(WakeAt(at=at, delegation=delegation.delegation, purpose="deadline"))
