"""Who a caller goes on with after a failure that it has reported."""

from msgspec import structs

from fallbackd.core.callers import (
    ReportAnswer,
    counted_credential,
    leased,
    on_same_backend,
    resolution_of,
)
from fallbackd.core.chain import Choice, Request, candidate_key, candidates_for, find_role
from fallbackd.core.draft import Draft
from fallbackd.core.events import Reported
from fallbackd.core.failures import Failure, Reason
from fallbackd.core.outages import guard
from fallbackd.core.policy import Backend, Entry
from fallbackd.core.recovery import missed_by, prefer, role_counting
from fallbackd.core.role_rules import rules_for
from fallbackd.core.state import Hop, Session


def go_on(
    draft: Draft,
    event: Reported,
    backend: Backend,
    model: str | None,
    session: Session | None,
    failure: Failure,
    *,
    once_more: bool = False,
    is_believed: bool = True,
) -> ReportAnswer:
    """
    The next candidate of the request that the failed call was made for.

    Args:
        once_more: The same backend may be asked alike.
        is_believed: False: the report came too late to say anything; the session stays as it is.
    """

    def keep(session: Session | None) -> None:
        if session is not None and is_believed:
            draft.put_session(structs.replace(session, last_used_at=draft.now))

    role = event.role or (None if session is None else session.role)
    candidates = _candidates(draft, event, backend, session, role)
    here = on_same_backend(draft, event, backend, failure, candidates, once_more=once_more)
    if here is not None:
        keep(session)
        return ReportAnswer(
            failure=failure, next=here, candidates=here.candidates, ignored=not is_believed
        )
    known = None if role is None else find_role(draft.policy, role)
    wanted = None if known is None else known.fallback_on
    may_hop = failure.hop and (wanted is None or failure.reason in wanted)
    if not (may_hop or failure.shrink_input):
        keep(session)
        return ReportAnswer(failure=failure, ignored=not is_believed)
    rules = rules_for(
        draft.policy,
        known,
        session,
        candidates,
        allow_metered=event.allow_metered,
        differs_from=event.differs_from,
    )
    request = Request(
        tried=frozenset({candidate_key(backend.id, None), candidate_key(backend.id, event.model)}),
        prompt_tokens=event.prompt_tokens,
        larger_than=backend.context_tokens if failure.shrink_input else None,
        local_only=failure.reason is Reason.LOCAL_NETWORK,
        limits=rules.limits,
    )
    counting = role_counting(draft.policy, role)
    if counting is not None and session is not None:
        session = missed_by(draft, counting, candidates, session, backend=backend.id, model=model)
        request = prefer(draft, counting, candidates, session, request)
    resolved, _ = guard(draft, rules, candidates, request, draft.resolve(candidates, request))
    following = None
    if resolved.choice is not None:
        following = resolution_of(candidates, resolved)
        following = leased(draft, following, resolved.choice, event.next_lease, owner=event.owner)
        draft.count_credential(resolved.choice.backend.id, counted_credential(resolved.choice))
        if session is not None and is_believed:
            session = _moved(draft, session, backend, resolved.choice, failure)
    keep(session)
    return ReportAnswer(
        failure=failure,
        next=following,
        candidates=resolved.verdicts,
        retry_at=resolved.retry_at,
        ignored=not is_believed,
    )


def _candidates(
    draft: Draft, event: Reported, backend: Backend, session: Session | None, role: str | None
) -> tuple[Entry, ...]:
    """Those of the `resolve` before, as far as the caller says again what it asked for."""
    is_named = event.role is not None or bool(event.chain)
    first = None if role or event.chain else backend.id
    found = candidates_for(
        draft.policy, backend=first, role=role, chain=event.chain, session=session
    )
    if is_named and all(one.backend != backend.id for one in found):
        # It was asked for by its name, before those of the chain.
        return candidates_for(
            draft.policy, backend=backend.id, role=role, chain=event.chain, session=session
        )
    return found


def _moved(
    draft: Draft, session: Session, left: Backend, choice: Choice, failure: Failure
) -> Session:
    taken = choice.backend
    hop = Hop(
        at=draft.now,
        from_backend=left.id,
        to_backend=taken.id,
        trigger="reactive",
        reason=failure.reason.value,
        evidence=failure.evidence,
    )
    returned = taken.id == session.original
    pair = f"{session.original}>{taken.id}"
    notices = session.notices_sent
    if not returned and pair not in notices:
        notices = (*notices, pair)
        draft.note(
            "session.notice",
            session=session.session,
            backend=taken.id,
            notice="fallback",
            route=(session.original, taken.id),
            from_model=None,
            to_model=None,
            reason=hop.reason,
            text=f"switched from {left.id} to {taken.id} ({hop.reason})",
        )
    return structs.replace(
        session,
        current=taken.id,
        current_model=choice.entry.model,
        depth=0 if returned else session.depth + 1,
        last_fallback_at=draft.now,
        hops=(*session.hops, hop)[-50:],
        notices_sent=() if returned else notices,
        recovered_announced=False,
    )
