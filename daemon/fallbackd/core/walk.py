"""
The next step of a delegation that has no attempt under way: start, wait, or end.

A hop is a move after a started attempt and counts; a candidate that is skipped costs nothing.
"""

from msgspec import structs

from fallbackd.core import health as machine
from fallbackd.core.chain import Choice, Request, Resolved, candidate_key, find_role, sameness
from fallbackd.core.draft import Draft
from fallbackd.core.effects import Answer, StartAttempt, WakeAt
from fallbackd.core.failures import Failure, Reason, make_failure
from fallbackd.core.ids import BackendId, attempt_id
from fallbackd.core.scopes import backend_scope, find_backend
from fallbackd.core.state import Attempt, Delegation, DelegationState, Hop, Session, Waiting

ABOUT_THE_TASK = frozenset(
    {
        Reason.CONTEXT_OVERFLOW,
        Reason.PAYLOAD_TOO_LARGE,
        Reason.FORMAT_ERROR,
        Reason.CONTENT_POLICY,
        Reason.PROVIDER_POLICY,
    }
)
"""The same such failure on every candidate is the task's own."""
_REASON_WORDS = frozenset(reason.value for reason in Reason)


def reactive_hops(delegation: Delegation) -> int:
    return sum(1 for hop in delegation.hops if hop.trigger == "reactive" and hop.tier_to != "model")


def request_of(draft: Draft, delegation: Delegation, session: Session | None) -> Request:
    """What the next resolution of a delegation asks for."""
    tried = set(delegation.inherited_tried)
    failed: set[str] = set()
    larger_than: int | None = None
    not_provider: str | None = None
    for attempt in delegation.attempts:
        tried.add(tried_key(delegation, attempt))
        backend = find_backend(draft.policy, attempt.backend)
        if backend is None or attempt.failure is None:
            continue
        if not attempt.failure.shrink_input:  # the same model may have more room elsewhere
            failed.add(sameness(backend, attempt.model, attempt.credential))
        if attempt.failure.shrink_input and backend.context_tokens is not None:
            larger_than = max(larger_than or 0, backend.context_tokens)
        if attempt.failure.reason is Reason.FORMAT_ERROR:
            not_provider = backend.provider or backend.id
    preferred = None
    if session is not None and not delegation.named and not delegation.attempts:
        preferred = _affinity(draft, delegation, session)
    return Request(
        tried=frozenset(tried),
        same_as_failed=frozenset(failed),
        prompt_tokens=delegation.prompt_tokens,
        larger_than=larger_than,
        not_provider=not_provider,
        preferred=preferred,
        local_only=bool(delegation.attempts)
        and (last := delegation.attempts[-1].failure) is not None
        and last.reason is Reason.LOCAL_NETWORK,
    )


def tried_key(delegation: Delegation, attempt: Attempt) -> str:
    """The key of the chain entry that an attempt was made for."""
    for entry in delegation.candidates:
        if entry.backend == attempt.backend and entry.model == attempt.model:
            return candidate_key(entry.backend, entry.model)
    return candidate_key(attempt.backend, None)


def _affinity(draft: Draft, delegation: Delegation, session: Session) -> BackendId | None:
    """The backend that last answered this session, while its prompt cache may be warm."""
    role = None if delegation.role is None else find_role(draft.policy, delegation.role)
    idle_s = draft.policy.defaults.idle_s
    if role is not None and role.idle_s is not None:
        idle_s = role.idle_s
    if role is not None and role.return_policy == "new_session":
        return session.current
    if session.current == session.original or draft.now - session.last_used_at >= idle_s:
        return None
    return session.current


def walk(draft: Draft, delegation: Delegation, session: Session, *, event: str) -> None:
    """Put the delegation one step further. It has no attempt under way and is not ended."""
    if delegation.cancelling:
        end(draft, delegation, session, state="cancelled", message="cancelled by the caller")
        return
    deadline_at = delegation.deadline_at
    if deadline_at is not None and draft.now >= deadline_at:
        end_by_deadline(draft, delegation, session)
        return
    waiting = delegation.waiting
    if waiting is not None and waiting.retry is not None:
        if draft.now < waiting.until_at:
            draft.effects.append(_wake(delegation, waiting.until_at))
            return
        if _is_full(draft, delegation):
            _queue(draft, delegation, waiting)
            return
        if _retry(draft, delegation, session, waiting):
            return
    started = bool(delegation.attempts)
    if started and (not delegation.failover or reactive_hops(delegation) >= delegation.max_hops):
        why = "the caller wants no fallback"
        if delegation.failover:
            why = f"the maximum of {delegation.max_hops} hops is reached"
        end_exhausted(draft, delegation, session, why=why, event=event)
        return
    last = delegation.attempts[-1].failure if started else None
    if last is not None and not may_hop(delegation, last):
        why = f"{last.reason.value} is not a reason to fall back for this role"
        end_exhausted(draft, delegation, session, why=why, event=event)
        return
    if len(delegation.attempts) >= delegation.budget:
        why = f"the budget of {delegation.budget} attempts is used up"
        end_exhausted(draft, delegation, session, why=why, event=event)
        return
    candidates = delegation.candidates if delegation.failover else delegation.candidates[:1]
    request = request_of(draft, delegation, session)
    resolved = draft.resolve(candidates, request)
    delegation = structs.replace(delegation, verdicts=resolved.verdicts)
    if resolved.choice is None and not _may_wait(draft, delegation, resolved):
        resolved = draft.resolve(candidates, structs.replace(request, last_resort=True))
        delegation = structs.replace(delegation, verdicts=resolved.verdicts)
    if resolved.choice is not None:
        if _is_full(draft, delegation):
            _queue(draft, delegation, None)
            return
        start(draft, delegation, session, resolved.choice, event=event)
        return
    if _wait(draft, delegation, resolved, event=event):
        return
    end_exhausted(draft, delegation, session, why="nobody in the chain is usable", event=event)


def may_hop(delegation: Delegation, failure: Failure) -> bool:
    """Whether a failure is a reason to go to another candidate, for this role."""
    if failure.shrink_input:
        return True  # to a larger context only: the resolution sees to it
    if not failure.hop:
        return False
    return delegation.fallback_on is None or failure.reason.value in delegation.fallback_on


def _is_full(draft: Draft, delegation: Delegation) -> bool:
    """Whether the host runs as many attempts as it may."""
    max_running = draft.policy.defaults.max_running
    active = draft.snapshot.active
    if len(active) < max_running:
        return False
    running = sum(
        1
        for other in active.values()
        if other.delegation != delegation.delegation and other.running is not None
    )
    return running >= max_running


def _queue(draft: Draft, delegation: Delegation, waiting: Waiting | None) -> None:
    """Wait for a free place: the next end of an attempt wakes this delegation."""
    if delegation.state != "queued":
        draft.tell(
            delegation,
            "queued",
            outcome="waits for a free place",
            max_running=draft.policy.defaults.max_running,
        )
    draft.put_delegation(structs.replace(delegation, state="queued", waiting=waiting))
    if delegation.deadline_at is not None:
        draft.effects.append(_wake(delegation, delegation.deadline_at))


def _wait_limit_at(draft: Draft, delegation: Delegation) -> float:
    if delegation.waiting is not None:
        limit_at = delegation.waiting.limit_at
    else:
        limit_at = draft.now + draft.policy.wait_threshold_s(delegation.mode)
    if delegation.deadline_at is not None:
        limit_at = min(limit_at, delegation.deadline_at)
    return limit_at


def _may_wait(draft: Draft, delegation: Delegation, resolved: Resolved) -> bool:
    limit_at = _wait_limit_at(draft, delegation)
    if draft.now >= limit_at:
        return False
    return resolved.in_trial or (resolved.stated_at is not None and resolved.stated_at <= limit_at)


def _wait(draft: Draft, delegation: Delegation, resolved: Resolved, *, event: str) -> bool:
    if not _may_wait(draft, delegation, resolved):
        return False
    limit_at = _wait_limit_at(draft, delegation)
    until_at = limit_at
    if resolved.stated_at is not None and resolved.stated_at <= limit_at:
        until_at = resolved.stated_at
    since_at = draft.now if delegation.waiting is None else delegation.waiting.since_at
    waits = Waiting(since_at=since_at, until_at=until_at, limit_at=limit_at)
    if delegation.state != "waiting":
        draft.tell(
            delegation,
            event,
            outcome="waits for a trial" if resolved.in_trial else "waits for a stated time",
            verdicts=resolved.verdicts,
            until_at=until_at,
            wait_threshold_s=draft.policy.wait_threshold_s(delegation.mode),
        )
    draft.put_delegation(structs.replace(delegation, state="waiting", waiting=waits))
    draft.effects.append(_wake(delegation, until_at))
    return True


def _wake(delegation: Delegation, at: float) -> WakeAt:
    return WakeAt(at=at, delegation=delegation.delegation, purpose="wait")


def _retry(draft: Draft, delegation: Delegation, session: Session, waiting: Waiting) -> bool:
    """Start the candidate again whose wait is over; False: it cannot be used any more."""
    assert waiting.retry is not None
    resolved = draft.resolve((waiting.retry,), Request(prompt_tokens=delegation.prompt_tokens))
    if resolved.choice is None:
        return False
    start(draft, delegation, session, resolved.choice, event="waited", retry_of=waiting.retry_of)
    return True


def start(
    draft: Draft,
    delegation: Delegation,
    session: Session,
    choice: Choice,
    *,
    event: str,
    retry_of: str | None = None,
) -> None:
    """Start an attempt on a choice, with the hop and the lease that belong to it."""
    now = draft.now
    number = len(delegation.attempts) + 1
    attempt = Attempt(
        attempt=attempt_id(delegation.delegation, number),
        backend=choice.backend.id,
        model=choice.model,
        credential=choice.credential,
        tier=choice.entry.tier,
        effort=choice.entry.effort,
        trial=bool(choice.trial_scopes),
        trial_scopes=choice.trial_scopes,
        started_at=now,
        log_path=_log_path(delegation, number),
        retry_of=delegation.attempts[-1].attempt if retry_of is not None else None,
        patience_until_at=_patience(draft, delegation) if retry_of is not None else None,
    )
    for scope in choice.trial_scopes:
        draft.put_health(machine.lease(draft.health[scope], attempt.attempt, now=now))
    own = machine.Health(scope=backend_scope(choice.backend.id))
    record = draft.health.get(own.scope, own)
    draft.put_health(structs.replace(record, last_attempt_at=now))
    hop = None if retry_of is not None else _hop(draft, delegation, session, choice)
    if hop is not None:
        delegation = structs.replace(delegation, hops=(*delegation.hops, hop))
        session = _fallen(draft, delegation, session, hop)
    before = delegation.attempts
    delegation = structs.replace(
        delegation,
        state="running",
        active=choice.backend.id,
        attempts=(*delegation.attempts, attempt),
        waiting=None,
        phase=None,
        last_activity_at=now,
    )
    draft.count_start(choice.backend.id)
    draft.tell(
        delegation,
        event,
        outcome=f"starts {attempt.attempt} on {choice.backend.id}"
        + (" as a trial" if attempt.trial else "")
        + (" once more" if retry_of is not None else ""),
        verdicts=delegation.verdicts,
        max_fallback_depth=delegation.max_hops,
        hops=reactive_hops(delegation),
    )
    draft.put_delegation(delegation)
    draft.put_session(session)
    draft.effects.append(
        StartAttempt(
            attempt=attempt.attempt,
            delegation=delegation.delegation,
            backend=choice.backend.id,
            model=choice.model,
            effort=choice.entry.effort,
            handoff=handoff(before),
        )
    )
    if delegation.deadline_at is not None:
        draft.effects.append(
            WakeAt(at=delegation.deadline_at, delegation=delegation.delegation, purpose="deadline")
        )


def _log_path(delegation: Delegation, number: int) -> str | None:
    folder = delegation.log_dir
    return f"{folder}/{number}/output.log" if folder else None


def _patience(draft: Draft, delegation: Delegation) -> float | None:
    """
    A retry of ours inherits the patience with the failure that it follows, so that ours and the
    program's own retries together are not waited for twice. A wait that the provider asked for
    starts anew.
    """
    if delegation.waiting is not None and delegation.waiting.is_stated:
        return None
    last = delegation.attempts[-1]
    if last.patience_until_at is not None:
        return last.patience_until_at
    ended_at = last.ended_at or draft.now
    return ended_at + draft.policy.patience_s(delegation.mode)


def _hop(draft: Draft, delegation: Delegation, session: Session, choice: Choice) -> Hop | None:
    now = draft.now
    tier = choice.entry.tier
    if delegation.attempts:
        last = delegation.attempts[-1]
        failure = last.failure
        model_swap = last.backend == choice.backend.id
        return Hop(
            at=now,
            from_backend=last.backend,
            to_backend=choice.backend.id,
            trigger="reactive",
            reason="unknown" if failure is None else failure.reason.value,
            evidence="" if failure is None else failure.evidence,
            tier_from=last.tier,
            tier_to=tier,
            from_model=last.model if model_swap else None,
            to_model=choice.model if model_swap else None,
        )
    first = delegation.candidates[0]
    if (first.backend, first.model) == (choice.entry.backend, choice.entry.model):
        return None
    why = delegation.verdicts[0] if delegation.verdicts else None
    reason: str | None = "session_affinity"
    evidence = "the session stays on the backend that answered it"
    if why is not None and why.verdict not in ("healthy", "unproven"):
        reason = why.reason if why.reason in _REASON_WORDS else why.verdict
        evidence = why.detail or ""
    return Hop(
        at=now,
        from_backend=delegation.requested,
        to_backend=choice.backend.id,
        trigger="preemptive",
        reason=reason or "unknown",
        evidence=evidence,
        tier_from=first.tier,
        tier_to=tier,
        from_model=first.model if first.backend == choice.backend.id else None,
        to_model=choice.model if first.backend == choice.backend.id else None,
    )


def _fallen(draft: Draft, delegation: Delegation, session: Session, hop: Hop) -> Session:
    """Record a hop in its session, and say it once per pair."""
    draft.note(
        "delegation.hopped",
        delegation,
        backend=hop.to_backend,
        route=(hop.from_backend, hop.to_backend),
        trigger=hop.trigger,
        reason=hop.reason,
        evidence=hop.evidence,
    )
    deeper = 1 if hop.trigger == "reactive" else 0
    if hop.to_backend == session.original:
        return structs.replace(
            session, current=hop.to_backend, depth=0, hops=(*session.hops, hop)[-50:]
        )
    pair = f"{session.original}>{hop.to_backend}"
    notices = session.notices_sent
    if pair not in notices:
        notices = (*notices, pair)
        draft.note(
            "session.notice",
            delegation,
            backend=hop.to_backend,
            notice="fallback",
            route=(session.original, hop.to_backend),
            from_model=hop.from_model,
            to_model=hop.to_model,
            reason=hop.reason,
            text=f"switched from {session.original} to {hop.to_backend} ({hop.reason})",
        )
    return structs.replace(
        session,
        current=hop.to_backend,
        current_model=hop.to_model,
        depth=session.depth + deeper,
        last_fallback_at=draft.now if hop.trigger == "reactive" else session.last_fallback_at,
        hops=(*session.hops, hop)[-50:],
        notices_sent=notices,
        recovered_announced=False,
    )


def handoff(attempts: tuple[Attempt, ...]) -> str | None:
    """What the next backend has to know of work that was begun. None: nothing was done."""
    begun = [one for one in attempts if one.effects != "none"]
    if not begun:
        return None
    lines = ["Note: another agent has already worked on this and may have changed files."]
    for one in begun:
        ended = "ended" if one.failure is None else f"ended with {one.failure.reason.value}"
        lines.append(f"It was {one.backend}, and it {ended}.")
    changed = tuple(dict.fromkeys(name for one in begun for name in one.changed_files))
    if changed:
        shown = ", ".join(changed[:20])
        more = len(changed) - 20
        lines.append(f"Changed files: {shown}" + (f" and {more} more" if more > 0 else "") + ".")
    lines.append("Look at what is there before you go on. The task was:")
    return "\n".join(lines) + "\n\n"


# --- the one answer ----------------------------------------------------------------------------


def end(
    draft: Draft,
    delegation: Delegation,
    session: Session,
    *,
    state: DelegationState,
    failure: Failure | None = None,
    message: str | None = None,
    retry_at: float | None = None,
) -> None:
    """Give the delegation its one answer and its session back."""
    now = draft.now
    ended = structs.replace(
        delegation,
        state=state,
        failure=failure if state != "succeeded" else None,
        message=message,
        retry_at=retry_at,
        ended_at=now,
        waiting=None,
        phase=None,
    )
    draft.put_delegation(ended)
    if session.running == delegation.delegation:
        session = structs.replace(session, running=None, last_used_at=now)
    draft.put_session(session)
    draft.note(
        "delegation.ended",
        ended,
        backend=ended.served_by or ended.active,
        state=state,
        served_by=ended.served_by,
        fallback_from=ended.requested if ended.hops else None,
        reason=None if ended.failure is None else ended.failure.reason.value,
        retry_at=retry_at,
    )
    draft.tell(ended, "ended", outcome=state + (f": {message}" if message else ""))
    draft.effects.append(Answer(delegation=delegation.delegation))
    draft.wake_waiting()


def end_by_deadline(draft: Draft, delegation: Delegation, session: Session) -> None:
    failure = make_failure(
        Reason.TIMEOUT,
        now=draft.now,
        detail="deadline",
        confidence="structured",
        signature="fallbackd/deadline",
        evidence="the caller's own deadline is over",
    )
    end(
        draft,
        delegation,
        session,
        state="failed",
        failure=structs.replace(failure, marks_health=False, retryable=False, hop=False),
        message="the time that the caller gave is over",
    )


def end_exhausted(
    draft: Draft, delegation: Delegation, session: Session, *, why: str, event: str
) -> None:
    """Nobody is left: `refused` with the earliest return, or `failed` where the task is why."""
    candidates = delegation.candidates if delegation.failover else delegation.candidates[:1]
    final = draft.resolve(candidates, request_of(draft, delegation, session))
    delegation = structs.replace(delegation, verdicts=final.verdicts)
    last = delegation.attempts[-1].failure if delegation.attempts else None
    failures = [one.failure for one in delegation.attempts if one.failure is not None]
    draft.tell(delegation, event, outcome=why, verdicts=final.verdicts)
    if failures and all(one.reason in ABOUT_THE_TASK for one in failures):
        end(
            draft,
            delegation,
            session,
            state="failed",
            failure=last,
            message=f"every backend that was tried rejects the task itself; {why}",
        )
        return
    end(
        draft,
        delegation,
        session,
        state="refused",
        failure=last,
        message=why,
        retry_at=earliest_return(draft, delegation),
    )


def earliest_return(draft: Draft, delegation: Delegation) -> float | None:
    """When the first of the candidates is usable again, where a time is known."""
    known = [
        one.until_at
        for one in delegation.verdicts
        if one.until_at is not None
        and (one.state in ("rate_limited", "broken") or one.verdict == "in_trial")
    ]
    return min(known, default=None)
