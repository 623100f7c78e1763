"""Callers that talk to a provider themselves: what they would use, and what they saw."""

from msgspec import structs

from fallbackd.core import health as machine
from fallbackd.core.callers import (
    ReportAnswer,
    counted_credential,
    leased,
    resolution_of,
)
from fallbackd.core.chain import Request, candidates_for, find_role
from fallbackd.core.draft import Draft
from fallbackd.core.events import Reported, ResolveRequested, SessionCompacted
from fallbackd.core.going_on import go_on
from fallbackd.core.ids import AttemptId, is_lease
from fallbackd.core.offline import own_trouble
from fallbackd.core.outages import guard
from fallbackd.core.policy import Backend, Entry
from fallbackd.core.recovery import answered_by, prefer, role_counting
from fallbackd.core.role_rules import rules_for
from fallbackd.core.rotation import first_throttle
from fallbackd.core.scopes import find_backend
from fallbackd.core.state import Decision, Rejection, Session


def resolve_requested(draft: Draft, event: ResolveRequested) -> Decision:
    policy = draft.policy
    if event.backend is not None and find_backend(policy, event.backend) is None:
        return Decision(
            rejection=Rejection(
                kind="unknown_backend",
                message=f"no backend {event.backend!r}; known are {', '.join(policy.backends)}",
                data={"backend": event.backend},
            )
        )
    session = draft.snapshot.session
    candidates = candidates_for(
        policy,
        backend=event.backend,
        role=event.role,
        chain=event.chain,
        model=event.model,
        session=session,
    )
    preferred = None
    if session is not None and event.backend is None:
        idle_s = draft.now - session.last_used_at
        preferred = session.answered_by if idle_s < policy.defaults.idle_s else None
    role = None if event.role is None else find_role(policy, event.role)
    differs_from = event.differs_from
    if differs_from is None and event.session is None and event.lease is None:
        differs_from = ()  # only a look, in no conversation: there is no author to differ from
    rules = rules_for(
        policy,
        role,
        session,
        candidates,
        allow_metered=event.allow_metered,
        differs_from=differs_from,
    )
    request = Request(
        prompt_tokens=event.prompt_tokens,
        preferred=preferred,
        last_resort=event.lease is not None and rules.on_outage == "fallback",
        limits=rules.limits,
    )
    counting = role_counting(policy, event.role)
    if counting is not None and event.backend is None:
        request = prefer(draft, counting, candidates, session, request)
    resolved, _ = guard(draft, rules, candidates, request, draft.resolve(candidates, request))
    choice = resolved.choice
    found = resolution_of(candidates, resolved)
    if choice is not None:
        found = leased(draft, found, choice, event.lease, owner=event.owner)
        draft.count_credential(choice.backend.id, counted_credential(choice))
    if counting is not None and session is not None and choice is not None:
        rises = request.preferred == choice.backend.id != session.answered_by
        session = structs.replace(session, current=choice.backend.id) if rises else session
    if event.session is not None and choice is not None and candidates:
        draft.put_session(_resolved_session(draft, event, session, candidates[0], choice.backend))
    return draft.finish(answer=found)


def _resolved_session(
    draft: Draft,
    event: ResolveRequested,
    session: Session | None,
    first: Entry,
    chosen: Backend,
) -> Session:
    assert event.session is not None
    now = draft.now
    if session is None:
        return Session(
            session=event.session,
            role=event.role,
            original=first.backend,
            current=chosen.id,
            running=draft.holder_of(event.session),
            created_at=now,
            last_used_at=now,
        )
    if event.backend is not None and event.backend == session.original == chosen.id:
        session = structs.replace(
            session, current=chosen.id, current_model=None, answered_by=None, depth=0
        )
    return structs.replace(session, role=event.role or session.role, last_used_at=now)


def reported(draft: Draft, event: Reported) -> Decision:
    backend = find_backend(draft.policy, event.backend)
    if backend is None:
        return Decision(
            rejection=Rejection(
                kind="unknown_backend",
                message=f"no backend {event.backend!r} is known",
                data={"backend": event.backend},
            )
        )
    if backend.credentials and event.credential not in (None, *backend.credentials):
        known = ", ".join(backend.credentials)
        return Decision(
            rejection=Rejection(
                kind="unknown_backend",
                message=f"{backend.id} has no credential {event.credential!r}; it has {known}",
                data={"backend": backend.id, "credential": event.credential},
            )
        )
    if event.credential is None and len(backend.credentials) == 1:
        event = structs.replace(event, credential=backend.credentials[0])
    session = draft.snapshot.session
    model = event.model or backend.model
    lease = event.lease
    if lease is None and event.attempt is not None and is_lease(event.attempt):
        lease = event.attempt
    is_late = lease is not None and not _give_back(draft, lease)
    if is_late and event.outcome != "released":
        return _too_late(draft, event, backend, model, session)
    match event.outcome:
        case "released":
            return draft.finish(answer=ReportAnswer())
        case "success":
            started_at = draft.now if event.started_at is None else event.started_at
            draft.succeed(backend, model=model, credential=event.credential, started_at=started_at)
            draft.count_usage(backend.id, event.usage)
            if session is not None:
                draft.put_session(_served(draft, session, backend, model))
            return draft.finish(answer=ReportAnswer())
        case "failure":
            return _reported_failure(draft, event, backend, model, session, was_trial=bool(lease))


def _give_back(draft: Draft, lease: AttemptId) -> bool:
    """Give a lease back; False: it ran out, or was overtaken, and says nothing any more."""
    was_held = False
    for record in list(draft.health.values()):
        if record.trial is None or record.trial.attempt != lease:
            continue
        was_held = was_held or machine.is_leased(record, now=draft.now)
        draft.put_health(machine.release(record, lease))
    if was_held:
        draft.wake_waiting()
    return was_held


def _too_late(
    draft: Draft, event: Reported, backend: Backend, model: str | None, session: Session | None
) -> Decision:
    """Nothing is believed about anybody's health. Who has failed is told where to go on."""
    if session is not None:
        session = structs.replace(session, ignored_reports=session.ignored_reports + 1)
        draft.put_session(session)
    failure = event.failure
    if event.outcome != "failure" or failure is None:
        return draft.finish(answer=ReportAnswer(failure=failure, ignored=True))
    following = go_on(draft, event, backend, model, session, failure, is_believed=False)
    return draft.finish(answer=following)


def _served(draft: Draft, session: Session, backend: Backend, model: str | None) -> Session:
    returned = backend.id == session.original
    role = role_counting(draft.policy, session.role)
    if role is not None:
        chain = candidates_for(draft.policy, backend=None, role=role.name, chain=None)
        session = answered_by(draft, role, chain, session, backend=backend.id, model=model)
    return structs.replace(
        session,
        current=backend.id,
        answered_by=backend.id,
        answered_model=model,
        depth=0 if returned else session.depth,
        notices_sent=() if returned else session.notices_sent,
        last_used_at=draft.now,
    )


def _reported_failure(
    draft: Draft,
    event: Reported,
    backend: Backend,
    model: str | None,
    session: Session | None,
    *,
    was_trial: bool,
) -> Decision:
    failure = event.failure
    if session is None and event.session is not None:
        session = Session(
            session=event.session,
            role=event.role,
            original=backend.id,
            current=backend.id,
            running=draft.holder_of(event.session),
            created_at=draft.now,
            last_used_at=draft.now,
        )
    if session is not None and _is_stale(draft, event, session):
        draft.put_session(structs.replace(session, ignored_reports=session.ignored_reports + 1))
        return draft.finish(answer=ReportAnswer(failure=failure, ignored=True))
    if failure is None:
        if session is not None:
            draft.put_session(session)
        return draft.finish(answer=ReportAnswer())
    if session is not None and session.attempt is None and event.attempt is not None:
        session = structs.replace(session, reported_attempt=event.attempt)
    failure = own_trouble(draft, backend, failure, has_route=event.has_route) or failure
    once_more = not was_trial and first_throttle(
        draft,
        backend,
        failure,
        model=model,
        credential=event.credential,
        started_at=event.started_at,
    )
    if not once_more:
        draft.mark(
            failure,
            backend,
            model=model,
            credential=event.credential,
            started_at=event.started_at,
            luck=event.luck,
        )
    return draft.finish(
        answer=go_on(draft, event, backend, model, session, failure, once_more=once_more)
    )


def _is_stale(draft: Draft, event: Reported, session: Session) -> bool:
    """A report about what was left already, or one that names nothing right after a move."""
    if event.backend != session.current:
        return True
    if event.model is not None and session.current_model not in (None, event.model):
        return True
    if event.lease is not None or (event.attempt is not None and is_lease(event.attempt)):
        return False  # one that is held: a late one has been turned away before
    if event.attempt is not None and session.attempt is not None:
        return event.attempt != session.attempt
    if event.attempt is not None and event.attempt != session.reported_attempt:
        return False  # callers that make the calls themselves name them by themselves
    last_at = session.last_fallback_at
    return last_at is not None and 0 <= draft.now - last_at < draft.policy.defaults.dedup_window_s


def session_compacted(draft: Draft, event: SessionCompacted) -> None:
    """Models, depth and the lock stay; history and marks of notices go."""
    session = draft.snapshot.session
    if session is not None:
        draft.put_session(structs.replace(session, hops=(), notices_sent=(), last_fallback_at=None))
