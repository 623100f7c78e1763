"""The start of an attempt, with the hop, the notice and the lease that belong to it."""

import json
import re
from collections.abc import Iterable
from itertools import chain
from typing import Any, Literal

from msgspec import structs

from fallbackd.core.case import Case, CaseView
from fallbackd.core.health import Health
from fallbackd.core.ids import attempt_id
from fallbackd.core.policy import Entry
from fallbackd.core.reasons import Reason
from fallbackd.core.records import Attempt, Delegation, Hop, Verdict
from fallbackd.core.routing.candidates import Choice
from fallbackd.core.scopes import backend_scope
from fallbackd.core.work.resolution import answers_needed, is_rise, role_counting
from fallbackd.core.work.sessions import MAX_HOPS, moved
from fallbackd.core.work.steps import Start

_FILE = re.compile(r"[\w./@+=-]{1,200}")
_ACT = re.compile(r"[\w./@+=-]{1,40}(?: [\w./@+=-]{1,40}){0,3}")
MAX_NAME_CHARS = 200
MOST_FILES = 20
"""Changed files that are named to the next backend."""
_REASON_WORDS = frozenset(reason.value for reason in Reason)


def new_attempt(case: Case, step: Start) -> Attempt:
    """The attempt of a step, with the lease of the trial that it is."""
    now, one, choice = case.now, case.delegation, step.choice
    number = len(one.attempts) + 1
    attempt = Attempt(
        attempt=attempt_id(one.delegation, number),
        backend=choice.backend.id,
        model=choice.model,
        credential=choice.credential,
        tier=choice.entry.tier,
        effort=choice.entry.effort,
        trial=bool(choice.trial_scopes),
        trial_scopes=choice.trial_scopes,
        started_at=now,
        log_path=_log_path(one, number),
        retry_of=step.retry_of,
        resumes=step.resumes,
        patience_until_at=_patience(case) if step.retry_of is not None else None,
    )
    case.take_lease(choice, attempt.attempt)
    own = Health(scope=backend_scope(choice.backend.id))
    record = case.health.get(own.scope, own)
    case.put_health(structs.replace(record, last_attempt_at=now))
    return attempt


def stays_with(case: Case) -> dict[str, Any]:
    """The values by which a session stays with whom it knows, or goes back up."""
    delegation, session = case.delegation, case.session
    role = role_counting(case.policy, delegation.role)
    if delegation.attempts[1:] or session.answered_by is None:
        return {}
    stays: dict[str, Any] = {"stays_with": session.answered_by}
    if role is None:
        return stays
    return stays | {"answers": session.answers, "answers_needed": answers_needed(role, session)}


def _log_path(delegation: Delegation, number: int) -> str | None:
    folder = delegation.log_dir
    return f"{folder}/{number}/output.log" if folder else None


def _patience(case: Case) -> float | None:
    """
    A retry of ours inherits the patience with the failure that it follows, so that ours and the
    program's own retries together are not waited for twice. A wait that the provider asked for
    starts anew.
    """
    delegation = case.delegation
    if delegation.waiting is not None and delegation.waiting.is_stated:
        return None
    last = delegation.attempts[-1]
    if last.patience_until_at is not None:
        return last.patience_until_at
    ended_at = last.ended_at or case.now
    return ended_at + case.policy.patience_s(delegation.mode)


def hop_to(case: CaseView, choice: Choice) -> Hop | None:
    """The move that a start on a choice is; None: the work stays where it is."""
    delegation = case.delegation
    if delegation.attempts:
        last = delegation.attempts[-1]
        if (last.backend, last.model) == (choice.backend.id, choice.model):
            return None  # once more, after it was waited for
        return _hop_after(case, last, choice)
    if is_rise(case, backend=choice.backend.id, model=choice.model):
        return _rise(case, choice)
    first = delegation.turn.candidates[0]
    if (first.backend, first.model) == (choice.entry.backend, choice.entry.model):
        return None
    why = delegation.verdicts[0] if delegation.verdicts else None
    if why is not None and why.verdict == "affinity" and delegation.forced is None:
        return None  # the session stays with the backend that it knows: no move
    return _hop_before(case, first, why, choice)


def _hop_after(case: CaseView, last: Attempt, choice: Choice) -> Hop:
    """After an attempt that failed."""
    failure, is_swap = last.failure, last.backend == choice.backend.id
    return Hop(
        at=case.now,
        from_backend=last.backend,
        to_backend=choice.backend.id,
        trigger=_trigger_of(case.delegation),
        reason="unknown" if failure is None else failure.reason.value,
        evidence="" if failure is None else failure.evidence,
        tier_from=last.tier,
        tier_to=choice.entry.tier,
        from_model=last.model if is_swap else None,
        to_model=choice.model if is_swap else None,
    )


def _trigger_of(one: Delegation) -> Literal["reactive", "manual", "recovery"]:
    if one.standby is not None and one.standby.attempts == len(one.attempts):
        return "recovery"  # what is available again was waited for
    return "reactive" if one.forced is None else "manual"


def _rise(case: CaseView, choice: Choice) -> Hop:
    """Back to a better candidate, after enough answers of a worse one."""
    session = case.session
    return Hop(
        at=case.now,
        from_backend=session.answered_by or session.current,
        to_backend=choice.backend.id,
        trigger="recovery",
        reason="recovered",
        evidence=f"{session.answers} answers in a row came from further down",
        tier_to=choice.entry.tier,
        from_model=session.answered_model,
        to_model=choice.model,
    )


def _hop_before(case: CaseView, first: Entry, why: Verdict | None, choice: Choice) -> Hop:
    """Past the first candidate, without an attempt there."""
    delegation, is_swap = case.delegation, first.backend == choice.backend.id
    reason = None
    if why is not None:
        reason = why.reason if why.reason in _REASON_WORDS else why.verdict
    return Hop(
        at=case.now,
        from_backend=delegation.requested,
        to_backend=choice.backend.id,
        trigger="preemptive" if delegation.forced is None else "manual",
        reason=reason or "unknown",
        evidence=(why.detail or "") if why is not None else "",
        tier_from=first.tier,
        tier_to=choice.entry.tier,
        from_model=first.model if is_swap else None,
        to_model=choice.model if is_swap else None,
    )


def note_hop(case: Case, hop: Hop) -> None:
    case.meters.count_hop(hop.from_backend, hop.to_backend, hop.reason)
    case.note(
        "delegation.hopped",
        case.delegation,
        backend=hop.to_backend,
        route=(hop.from_backend, hop.to_backend),
        trigger=hop.trigger,
        reason=hop.reason,
        evidence=hop.evidence,
    )


def fallen(case: Case, hop: Hop) -> None:
    """Record a hop in its session, and say it once per pair."""
    note_hop(case, hop)
    delegation, session = case.delegation, case.session
    # Another chain than the one of the session's first choice has a first choice of its own.
    wanted = delegation.requested
    if hop.to_backend == session.original == wanted:
        case.move(current=wanted, depth=0, hops=(*session.hops, hop)[-MAX_HOPS:])
        return
    session, is_news = moved(case, session, hop, wanted=wanted, model=hop.to_model, forgets=False)
    case.keep_session(session)
    if is_news:
        case.note(
            "session.notice",
            delegation,
            backend=hop.to_backend,
            notice="fallback",
            route=(wanted, hop.to_backend),
            from_model=hop.from_model,
            to_model=hop.to_model,
            reason=hop.reason,
            text=f"switched from {wanted} to {hop.to_backend} ({hop.reason})",
        )


def handoff(attempts: tuple[Attempt, ...]) -> str | None:
    """Return what the next backend has to know of work that was begun. None: nothing was done."""
    resumed = {one.resumes for one in attempts}
    acted = [one for one in attempts if one.effects != "none"]
    begun = [one for one in acted if one.attempt not in resumed]
    if not begun:
        return None
    lines = ["Note: another agent has already worked on this and may have changed files."]
    lines += [_words_of_end(one) for one in begun]
    if changed := _each(one.changed_files for one in acted):
        lines.append(_words_of_files(changed))
    cut_off = _each(one.unfinished for one in acted)
    if done := [what for what in _each(one.outside for one in acted) if what not in cut_off]:
        lines.append(f"It has run what must not be done twice: {_quoted(done, _ACT)}.")
    if cut_off:
        lines.append(
            "It was cut off while it ran this, which may or may not be done:"
            f" {_quoted(cut_off, _ACT)}. Find out before you do it."
        )
    lines.append("Look at what is there before you go on.")
    return "\n".join(lines)


def _words_of_end(one: Attempt) -> str:
    ended = "ended" if one.failure is None else f"ended with {one.failure.reason.value}"
    return f"It was {one.backend}, and it {ended}."


def _each(found: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """Everything that was found, once, in its order."""
    return tuple(dict.fromkeys(chain.from_iterable(found)))


def _quoted(names: Iterable[str], plain: re.Pattern[str]) -> str:
    """Names on one line that read as nothing else: an agent may have made them up."""
    return ", ".join(
        name
        if plain.fullmatch(name)
        else json.dumps(name[:MAX_NAME_CHARS], ensure_ascii=not name.isprintable())
        for name in names
    )


def _words_of_files(changed: tuple[str, ...]) -> str:
    shown = _quoted(changed[:MOST_FILES], _FILE)
    more = len(changed) - MOST_FILES
    return f"Changed files: {shown}" + (f" and {more} more" if more > 0 else "") + "."
