"""From a request to a delegation: what is refused before one exists, and what it starts with."""

from typing import Any

from msgspec import structs

from fallbackd.core.authority import as_given, is_below_all, lower_replay
from fallbackd.core.case import Case
from fallbackd.core.decision import Decision, OpenWindow, Rejection, RejectionKind, WakeAt
from fallbackd.core.events import CancelRequested, DelegateRequested
from fallbackd.core.ids import AttemptId, DelegationId
from fallbackd.core.policy import TMUX_SESSION, Entry, Policy, ReplayWord, Role
from fallbackd.core.reasons import Reason
from fallbackd.core.records import Delegation, Snapshot, Terms, Turn
from fallbackd.core.routing.candidates import candidates_for, find_role, own_chain
from fallbackd.core.scopes import find_backend
from fallbackd.core.work.apply import advance, apply
from fallbackd.core.work.plan import behind
from fallbackd.core.work.resolution import tried_key, turn_for
from fallbackd.core.work.sessions import take_session
from fallbackd.core.work.standby import within
from fallbackd.core.work.steps import BY_CALLER, ended
from fallbackd.core.work.stopping import stop_below, stop_running
from fallbackd.core.work.workspaces import blocker, is_hidden, why_blocked, why_hidden


def delegate_requested(case: Case, event: DelegateRequested) -> Decision:
    snapshot, policy = case.snapshot, case.policy
    known = _same_request(case, event)
    if known is not None and known.digest == event.digest:
        return case.finish(answer=known)
    if (rejected := _not_now(case, event)) is not None:
        return rejected
    candidates = candidates_for(
        policy,
        backend=event.backend,
        role=event.role,
        chain=event.chain,
        model=event.model,
        session=snapshot.session,
    )
    parent = _parent(event, snapshot)
    if (rejected := _not_at_all(case, event, candidates, parent)) is not None:
        return rejected
    opened = _opened(case, event, candidates, parent)
    by = blocker(case, opened)
    if by is not None and (not event.queue or by.delegation == event.parent):
        return _blocked(case, opened, by)
    case.open(opened)
    if opened.tmux_window is not None:
        most = policy.defaults.tmux_windows
        case.effects.append(OpenWindow(delegation=event.delegation, most=most))
    who: dict[str, Any] = {} if opened.asked_by is None else {"asked_by": opened.asked_by}
    case.note("delegation.accepted", opened, backend=opened.requested, role=event.role, **who)
    if parent is not None:
        case.tell(opened, "accepted", outcome=_asked_from(opened.asked_by, parent.delegation))
    if by is not None:
        apply(case, behind(case, by), event="accepted")
    else:
        take_session(case)
        advance(case, event="accepted")
    if opened.deadline_at is not None:
        case.effects.append(
            WakeAt(at=opened.deadline_at, delegation=event.delegation, purpose="deadline")
        )
    return case.finish()


def _same_request(case: Case, event: DelegateRequested) -> Delegation | None:
    """
    Return the delegation that the request id has begun, unless it is hidden from one of those that
    share a process.
    """
    known = case.snapshot.same_request
    return known if known is not None and is_below_all(known, event.inside) else None


def _parent(event: DelegateRequested, snapshot: Snapshot) -> Delegation | None:
    """
    The delegation inside which it is asked for. Where others share the process that asks, it is
    narrowed to what each of them may.
    """
    found = None if event.parent is None else snapshot.active.get(event.parent)
    if found is None:
        return None
    others = tuple(one for one in event.inside if one != event.parent)
    for name in others:
        found = _narrowed(found, snapshot.active.get(name))
    return structs.replace(found, above=(*others, *found.above))


def _narrowed(parent: Delegation, other: Delegation | None) -> Delegation:
    """
    Args:
        other: None: it has ended, so that what it may is not known any more.
    """
    turn = parent.turn
    if other is None:
        turn = structs.replace(turn, allow_metered=False)
        return structs.replace(parent, may=(), replay="ask", turn=turn)
    left = other.turn.budget - len(other.counted)
    ends = [at for at in (parent.deadline_at, other.deadline_at) if at is not None]
    return structs.replace(
        parent,
        may=tuple(one for one in parent.may if one in other.may),
        replay=lower_replay(parent.replay, other.replay),
        nesting=max(parent.nesting, other.nesting),
        deadline_at=min(ends, default=None),
        turn=structs.replace(
            turn,
            allow_metered=turn.allow_metered and other.turn.allow_metered,
            budget=min(turn.budget, left + len(parent.counted)),
        ),
    )


def _not_at_all(
    case: Case,
    event: DelegateRequested,
    candidates: tuple[Entry, ...],
    parent: Delegation | None,
) -> Decision | None:
    """Return what stands against the work whether it may wait or not."""
    return (
        _without_place(case, event, candidates)
        or _not_inside(case, event, parent)
        or _not_its_session(case, event)
        or _too_much(case, event, _client(event, parent))
    )


def _client(event: DelegateRequested, parent: Delegation | None) -> str | None:
    """
    Return the client with which the work counts. A process inside an attempt can look like any
    number of clients: all that is asked for inside of one delegation counts as that of one.
    """
    if parent is None:
        return event.client
    return parent.above[-1] if parent.above else parent.delegation


def _asked_from(attempt: AttemptId | None, parent: DelegationId) -> str:
    by = "" if attempt is None else f" by attempt {attempt}"
    return f"asked for from inside {parent}{by}; it gets no more than that has"


def _blocked(case: Case, opened: Delegation, by: Delegation) -> Decision:
    kind: RejectionKind = "busy" if by.session == opened.session else "workspace"
    return _reject(case, kind, why_blocked(opened, by), delegation=by.delegation)


def _deadline(case: Case, event: DelegateRequested, parent: Delegation | None) -> float | None:
    """No later than that of the work from inside which it is asked for."""
    timeout_s = case.policy.defaults.timeout_s if event.timeout_s is None else event.timeout_s
    own_at = None if timeout_s is None else case.now + timeout_s
    outer_at = None if parent is None else parent.deadline_at
    return min((at for at in (own_at, outer_at) if at is not None), default=None)


def _opened(
    case: Case,
    event: DelegateRequested,
    candidates: tuple[Entry, ...],
    parent: Delegation | None,
) -> Delegation:
    """Return a delegation with what is known before anything was tried for it."""
    policy, now = case.policy, case.now
    role = None if event.role is None else find_role(policy, event.role)
    turn = turn_for(
        case,
        candidates,
        role,
        case.snapshot.session,
        prompt_tokens=event.prompt_tokens,
        allow_metered=event.allow_metered,
        differs_from=event.differs_from,
    )
    turn = structs.replace(turn, is_batch=event.mode == "batch")
    if parent is not None:
        turn = _within(turn, parent)
    elif event.inside:
        turn = structs.replace(turn, allow_metered=event.allow_metered)
    asked = within(event.standby, parent, is_inside=bool(event.inside))
    deadline_at = _deadline(case, event, parent)
    if asked is not None:
        outer_at = None if parent is None else parent.deadline_at
        timeout_s = policy.defaults.timeout_s if event.timeout_s is None else event.timeout_s
        asked = structs.replace(asked, outer_at=outer_at, timeout_s=timeout_s)
        deadline_at = outer_at
    warnings: tuple[str, ...] = ()
    if event.role is not None and role is None:
        warnings = (f"no role {event.role!r} is configured; the chain of the backend is used",)
    tmux_window, why_none = _window(case, event)
    requested = candidates[0].backend
    terms = {name: getattr(event, name) for name in Terms.__struct_fields__}
    terms["client"] = _client(event, parent)
    return Delegation(
        **terms,
        delegation=event.delegation,
        session=event.session,
        mode=event.mode,
        requested=requested,
        named=event.backend is not None,
        turn=turn,
        chain=own_chain(policy, backend=event.backend, role=event.role, chain=event.chain),
        active=requested,
        created_at=now,
        last_activity_at=now,
        deadline_at=deadline_at,
        standby=asked,
        on_partial=event.on_partial or policy.defaults.on_partial,
        cwd=event.cwd,
        cwd_ids=event.cwd_ids,
        digest=event.digest,
        parent=event.parent,
        above=event.inside if parent is None else (parent.delegation, *parent.above),
        asked_by=event.parent_attempt,
        may=_allowed(policy, event, parent),
        nesting=0 if parent is None else parent.nesting + 1,
        warnings=warnings + why_none,
        log_dir=event.log_dir,
        tmux_window=tmux_window,
        boot=event.boot,
        env_names=event.env_names,
        question_timeout_s=None if role is None else role.question_timeout_s,
        replay=_replay(role, event, parent),
    )


def _allowed(
    policy: Policy, event: DelegateRequested, parent: Delegation | None
) -> tuple[str, ...]:
    """
    Return what the role of the work may ask besides, no more than the one that asks for it may.
    """
    given = policy.may.get(event.role or "", ())
    if parent is None:
        return () if event.inside else given
    return tuple(one for one in given if one in parent.may)


def _replay(role: Role | None, event: DelegateRequested, parent: Delegation | None) -> ReplayWord:
    if role is None or (parent is None and event.inside):
        return "ask"
    return role.replay if parent is None else lower_replay(role.replay, parent.replay)


def _within(turn: Turn, parent: Delegation) -> Turn:
    """The turn of work that is part of other work: it shares its budget, its consent to calls that
    are billed by use, and what was tried."""
    whole = parent.turn
    ended = [one for one in parent.attempts if one.ended_at is not None]
    return structs.replace(
        turn,
        allow_metered=turn.allow_metered and whole.allow_metered,
        budget=max(1, min(turn.budget, whole.budget - len(parent.counted))),
        inherited_tried=(
            *(tried_key(whole.candidates, one) for one in ended),
            *whole.inherited_tried,
        ),
    )


def _not_now(case: Case, event: DelegateRequested) -> Decision | None:
    """A request that is refused whatever its candidates are."""
    known, policy = _same_request(case, event), case.policy
    if known is not None:
        return _reject(
            case,
            "request_id",
            f"the request_id {as_given(event.request_id)!r} was used for another request "
            f"({known.delegation}); give a new one",
            delegation=known.delegation,
        )
    if case.snapshot.draining:
        return _reject(
            case, "draining", "the daemon is draining: it takes no new work; try again later"
        )
    if event.backend is not None and find_backend(policy, event.backend) is None:
        return _reject(
            case,
            "unknown_backend",
            f"no backend {event.backend!r}; known are {', '.join(policy.backends)}",
            backend=event.backend,
        )
    return None


def _without_place(
    case: Case, event: DelegateRequested, candidates: tuple[Entry, ...]
) -> Decision | None:
    """No candidate at all, or none with room for the prompt."""
    if not candidates:
        return _reject(case, "empty_chain", _no_candidates(event))
    return _too_large(case, event, candidates if event.failover else candidates[:1])


def _not_inside(case: Case, event: DelegateRequested, parent: Delegation | None) -> Decision | None:
    """Work that comes from inside an attempt which is over, or from too deep inside."""
    if event.parent is None:
        return None
    if parent is None or not _is_inside(event, parent):
        return _reject(
            case,
            "busy",
            f"the attempt of {event.parent} from which this comes has ended or is being "
            "stopped; nothing new is started for it",
            delegation=event.parent,
        )
    if parent.nesting >= case.policy.defaults.max_nesting:
        return _reject(
            case,
            "nesting",
            f"delegations from inside a delegation go {case.policy.defaults.max_nesting} levels "
            "deep at most; do this part of the work here",
        )
    return None


def _not_its_session(case: Case, event: DelegateRequested) -> Decision | None:
    """A session that exists, but for the work from inside which this comes does not."""
    nearest = event.inside[:1] if event.parent is None else (event.parent, *event.inside)
    hidden = [one for one in nearest if is_hidden(case.snapshot.session, (one,))]
    if not hidden:
        return None
    why = why_hidden(hidden[0], event.session)
    return _reject(case, "unknown_session", why, session=event.session)


def _window(case: Case, event: DelegateRequested) -> tuple[str | None, tuple[str, ...]]:
    """The name of the window that follows the work, or why there is none though one is wanted."""
    defaults = case.policy.defaults
    if not defaults.tmux:
        return None, ()
    if not event.has_tmux:
        return None, ("no window: tmux is not installed; install it, or set tmux = false",)
    if sum(one.tmux_window is not None for one in case.snapshot.active.values()) >= (
        defaults.tmux_windows
    ):
        return None, (f"no window: {defaults.tmux_windows} are in use (tmux_windows)",)
    return f"{TMUX_SESSION}:{event.delegation}", ()


def _too_large(
    case: Case, event: DelegateRequested, candidates: tuple[Entry, ...]
) -> Decision | None:
    """A prompt for which no candidate has room. One whose size is not known may have it."""
    tokens = event.prompt_tokens
    if tokens is None:
        return None
    sizes: dict[str, int] = {}
    for entry in candidates:
        backend = find_backend(case.policy, entry.backend)
        size = None if backend is None else backend.context_tokens
        if size is None or size >= tokens:
            return None
        sizes[entry.backend] = size
    listed = ", ".join(f"{name} {size}" for name, size in sizes.items())
    return _reject(
        case,
        "prompt_too_large",
        f"the prompt is too large for every backend in the chain: about {tokens} tokens, and the "
        f"context sizes are {listed}; shorten it, or name a backend with a larger context",
        prompt_tokens=tokens,
        context_tokens=sizes,
    )


def _too_much(case: Case, event: DelegateRequested, client: str | None) -> Decision | None:
    """
    Refuse work that could not start for a long time, instead of holding it. What is on standby
    takes no place of other work, and has as many of its own.
    """
    defaults = case.policy.defaults
    every = case.snapshot.active.values()
    waits = [one for one in every if one.on_standby]
    if event.standby is not None and len(waits) >= defaults.max_unfinished:
        return _reject(
            case,
            "limit",
            f"{len(waits)} delegations wait for a backend, which is the most (max_unfinished);"
            " cancel some of them",
            unfinished=len(waits),
            limit=defaults.max_unfinished,
        )
    active = [one for one in every if not one.on_standby]
    unfinished = len(active)
    what_to_do = "wait for some of it to end, or cancel some of it"
    if unfinished >= defaults.max_unfinished:
        return _reject(
            case,
            "limit",
            f"{unfinished} delegations have not ended yet, which is the most (max_unfinished); "
            + what_to_do,
            unfinished=unfinished,
            limit=defaults.max_unfinished,
        )
    if unfinished < defaults.max_unfinished_of_client:
        return None
    of_client = sum(1 for one in active if one.client == client)
    if of_client < defaults.max_unfinished_of_client:
        return None
    return _reject(
        case,
        "limit",
        f"{of_client} delegations of this client have not ended yet, which is the most"
        f" (max_unfinished_of_client); {what_to_do}",
        unfinished=of_client,
        limit=defaults.max_unfinished_of_client,
    )


def _is_inside(event: DelegateRequested, parent: Delegation) -> bool:
    """Return whether the attempt that asks is the one that runs. A later one is not its heir."""
    running = parent.running
    if running is None or running.state == "stopping" or parent.cancelling:
        return False
    return event.parent_attempt in (None, running.attempt)


def _no_candidates(event: DelegateRequested) -> str:
    if event.role is not None:
        return f'no backend for role {event.role!r}: set [roles.{event.role}] chain or [chains] "*"'
    return 'no backend to delegate to: name one, or set [chains] "*" in the configuration'


def _reject(case: Case, kind: RejectionKind, message: str, **data: object) -> Decision:
    return Decision(rejection=Rejection(kind=kind, message=message, data=dict(data)))


def cancel_requested(case: Case, event: CancelRequested) -> Decision:
    delegation = case.snapshot.delegation
    if delegation is None or delegation.is_ended or delegation.outcome is not None:
        return case.finish()
    why = event.why or BY_CALLER
    if not delegation.cancelling:
        case.update(cancelling=True, message=event.why)
    by = "" if event.asked_by is None else f", asked for by attempt {event.asked_by}"
    case.tell(delegation, "cancel requested", outcome=f"stops the work{by}")
    if delegation.running is None:
        apply(case, ended("cancelled", why), event="cancel requested")
        return case.finish()
    stop_running(case, Reason.CANCELLED, why)
    stop_below(case)
    return case.finish()
