"""Callers that talk to a provider themselves, and sessions that a person has open."""

import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import msgspec
from msgspec import convert, structs

from fallbackd.api import shapes
from fallbackd.api.handler import ApiError, Handler
from fallbackd.api.health import USABLE, health_entries, health_entry
from fallbackd.api.host import Caller
from fallbackd.api.shapes import none_installed
from fallbackd.core.authority import by_default
from fallbackd.core.callers.lease import Resolution
from fallbackd.core.events import Reported, ResolveRequested
from fallbackd.core.figures import Figure
from fallbackd.core.ids import AttemptId, BackendId, SessionId
from fallbackd.core.protocol import Evidence, Usage
from fallbackd.core.reasons import NOT_SET_UP
from fallbackd.core.records import Turn
from fallbackd.core.routing import suggest as rules
from fallbackd.core.routing.candidates import candidates_for
from fallbackd.engine import callers, interactive, preparing
from fallbackd.engine.admission import directory_of, require_readable
from fallbackd.engine.requests import Invalid
from fallbackd.transports.machine import project_tokens
from fallbackd_client.wire.bounds import MAX_TURN
from fallbackd_client.wire.methods.callers import (
    PREPARE,
    REPORT,
    RESOLVE,
    SUGGEST,
    CapUse,
    Lease,
    PrepareParams,
    PrepareResult,
    ReportParams,
    ReportResult,
    ResolveParams,
    ResolveResult,
    SuggestParams,
    SuggestResult,
)
from fallbackd_client.wire.methods.interactive import (
    INTERACTIVE_FAILED,
    INTERACTIVE_PLAN,
    InteractiveFailedParams,
    InteractiveFailedResult,
    InteractivePlanParams,
    InteractivePlanResult,
)
from fallbackd_client.wire.shapes import CandidateVerdict, HealthEntry, TokenUsage

if TYPE_CHECKING:
    from fallbackd.core.ids import BackendId
    from fallbackd.engine.api import Engine


def word_of(turn: Turn | None) -> str | None:
    """Null where there is nothing to continue, or where the chain is too long for a word."""
    if turn is None:
        return None
    word = urlsafe_b64encode(msgspec.json.encode(turn)).decode("ascii")
    return word if len(word) <= MAX_TURN else None


def turn_of(word: str | None) -> Turn | None:
    if word is None:
        return None
    try:
        return msgspec.json.decode(urlsafe_b64decode(word), type=Turn)
    except (ValueError, msgspec.MsgspecError) as error:
        raise ApiError(
            "invalid_params",
            "`turn` was not issued by this daemon. Send the `turn` of the answer that named the"
            " candidate, or leave it out.",
            data={"path": "turn"},
        ) from error


async def resolve(engine: "Engine", params: ResolveParams, caller: Caller) -> ResolveResult:
    authority = caller.authority
    if params.session is not None and not authority.is_person:
        await engine.session(params.session, authority)
    _refuse_lease(params.lease, caller)
    asked = ResolveRequested(
        backend=None if params.backend is None else BackendId(params.backend),
        **_asked(engine, params, caller),
    )
    found = await callers.resolve(engine, asked, lease=params.lease, authority=authority)
    candidates = tuple(shapes.verdict(one) for one in found.candidates)
    if found.backend is None:
        raise _none(found, candidates, caller)
    return ResolveResult(
        backend=found.backend,
        model=found.model,
        credential=found.credential,
        tier=found.tier,
        trigger=found.trigger,  # type: ignore[arg-type] # the same words, typed on the wire only
        candidates=candidates,
        position=found.position,
        lease=shapes.lease(found, asked=params.lease),
        limits=health_entry(
            engine.snapshot(), engine.settings.policy, found.backend, now=engine.clock.now()
        ).limits,
        turn=word_of(found.turn),
    )


def _none(found: Resolution, candidates: tuple[CandidateVerdict, ...], caller: Caller) -> ApiError:
    return ApiError(
        "refused",
        (none_installed(candidates, caller.host.path) if caller.authority.is_person else None)
        or _why(found.retry_at, is_empty=not candidates),
        data={
            "retry_at": found.retry_at,
            "candidates": candidates,
        },
    )


async def prepare(engine: "Engine", params: PrepareParams, caller: Caller) -> PrepareResult:
    asked = ResolveRequested(
        backend=None if params.backend is None else BackendId(params.backend),
        session=None if params.session is None else SessionId(params.session),
        role=params.role,
        chain=shapes.entries(params.chain, engine.settings.policy),
        model=params.model,
        allow_metered=params.allow_metered,
    )
    directory = await anyio.to_thread.run_sync(
        directory_of, params.cwd, engine.settings.policy, engine.world
    )
    permissions = params.permissions or by_default(caller.authority)
    found, is_ready = await preparing.prepare(engine, asked, directory, permissions)
    if found.backend is None:
        raise _none(found, tuple(shapes.verdict(one) for one in found.candidates), caller)
    return PrepareResult(backend=found.backend, model=found.model, ready=is_ready)


def _refuse_lease(is_wanted: bool, caller: Caller) -> None:
    if is_wanted and not caller.authority.is_person:
        raise ApiError(
            "not_permitted",
            f"lease: a probe decides for others; you are asking from {caller.authority.place}",
        )


def _asked(
    engine: "Engine", params: ResolveParams | ReportParams, caller: Caller
) -> dict[str, Any]:  # fields of either event
    """
    Return the request to a chain: at first, and with each report, which may find the next one.
    """
    return {
        "session": params.session,
        "role": params.role,
        "chain": shapes.entries(params.chain, engine.settings.policy),
        "model": params.model,
        "prompt_tokens": params.prompt_tokens,
        "allow_metered": params.allow_metered,
        "differs_from": params.differs_from,
        "owner": shapes.owner(params.owner, caller.peer_pid),
    }


def _why(retry_at: float | None, *, is_empty: bool) -> str:
    if is_empty:
        return (
            "There is no backend to choose from: name a backend, a role or a chain, or configure"
            ' the chain that is used otherwise: [chains] "*" = ["BACKEND", …].'
        )
    if retry_at is None:
        return (
            "No backend is available, and waiting will not help: `candidates` says what to"
            " configure, and `health` has the reasons."
        )
    return "No backend is available now. Try again at `retry_at`; `health` has the reasons."


async def report(engine: "Engine", params: ReportParams, caller: Caller) -> ReportResult:
    backend = BackendId(params.backend or "")  # `normalised` has seen that there is one
    authority, seen_of_it = caller.authority, params.evidence
    if not authority.is_person:
        if params.session is None:
            raise ApiError(
                "not_permitted",
                "session: name one that you have begun; the calls of others are reported by their"
                f" callers, and you are asking from {authority.place}",
            )
        _refuse_lease(params.next_lease or params.lease is not None, caller)
        if seen_of_it is not None:  # its words are no evidence: an agent can write any
            seen_of_it = structs.replace(seen_of_it, text=None, body=None)
    used = (params.usage if authority.is_person else None) or TokenUsage()
    lease = params.lease.id if isinstance(params.lease, Lease) else params.lease
    seen = Reported(
        outcome=params.outcome,
        backend=backend,
        credential=params.credential if authority.is_person else None,
        attempt=None if params.attempt is None else AttemptId(params.attempt),
        lease=None if lease is None else AttemptId(lease),
        started_at=params.started_at,
        usage=engine.settings.policy.priced(
            msgspec.convert(used, Usage, from_attributes=True), backend, params.model
        ),
        turn=turn_of(params.turn),
        is_claim=not authority.is_person,
        **_asked(engine, params, caller),
    )
    answer = await callers.report(
        engine,
        seen,
        evidence=None if seen_of_it is None else shapes.evidence(seen_of_it),
        asked=params.prompt,
        next_lease=params.next_lease,
        authority=authority,
    )
    following = answer.next
    return ReportResult(
        failure=shapes.failure(answer.failure),
        health={
            backend: health_entry(
                engine.snapshot(), engine.settings.policy, backend, now=engine.clock.now()
            )
        },
        next=_next(following),
        position=None if following is None else following.position,
        candidates=tuple(shapes.verdict(one) for one in answer.candidates),
        retry_at=answer.retry_at if following is None else None,
        lease=shapes.lease(following, asked=params.next_lease),
        ignored=answer.ignored,
        turn=word_of(answer.turn),
        bound=None if answer.halt is None else answer.halt.bound,
        why=None if answer.halt is None else answer.halt.why,
    )


def _next(one: Resolution | None) -> CandidateVerdict | None:
    if one is None or one.backend is None:
        return None
    chosen = [each for each in one.candidates if each.verdict == "chosen"]
    if chosen:
        return shapes.verdict(chosen[0])
    return CandidateVerdict(backend=one.backend, verdict="chosen", model=one.model, tier=one.tier)


async def _project_tokens(engine: "Engine", root: str | None) -> int:
    """
    Tokens of the project, no more than the largest context that is compared with it.

    Raises:
        Invalid: It is no directory.
    """
    if root is None:
        return 0
    contexts = (one.context_tokens or 0 for one in engine.settings.policy.backends.values())
    enough = max(contexts, default=0) + 1
    try:
        if not os.path.isabs(root):
            raise Invalid(f"project_root: {root!r} is relative; give the absolute path")
        return await anyio.to_thread.run_sync(partial(project_tokens, root, enough=enough))
    except (OSError, ValueError) as error:
        raise Invalid(f"project_root: {root!r} is not a directory that can be read") from error


async def suggest(engine: "Engine", params: SuggestParams, caller: Caller) -> SuggestResult:
    if params.project_root is not None:
        require_readable(params.project_root, caller.authority, engine.settings, engine.world)
    await engine.readiness.look(engine.settings.policy.backends)
    now = engine.clock.now()
    snapshot = engine.snapshot()
    entries = health_entries(snapshot, engine.settings.policy, now=now)
    task = rules.Task(
        goal=params.goal,
        size=params.project_size,
        complexity=params.complexity,
        scope=params.scope,
        project_tokens=await _project_tokens(engine, params.project_root),
    )
    states = {BackendId(name): entry.state for name, entry in entries.items()}
    found = rules.suggest(
        engine.settings.policy,
        task,
        states,
        snapshot.meters,
        now=now,
        missing={BackendId(name) for name, entry in entries.items() if entry.reason in NOT_SET_UP},
    )
    return SuggestResult(
        suggestion=found.backend,
        reason=found.reason,
        eta_s=found.eta_s,
        estimate_s=found.estimate_s,
        eta_display=None if found.eta_s is None else rules.duration(found.eta_s),
        scores={name: float(points) for name, points in found.scores.items()},
        rate_limits={
            name: CapUse(used=cap.used, cap=cap.cap, unit=cap.unit, window_s=cap.window_s)
            for name, cap in found.caps.items()
        },
        available=found.available,
        unhealthy={name: entry for name, entry in entries.items() if entry.state not in USABLE},
        was_fallback=found.was_fallback,
    )


async def interactive_failed(
    engine: "Engine", params: InteractiveFailedParams, caller: Caller
) -> InteractiveFailedResult:
    backend = _backend_of(engine, params, caller)
    if backend is None:
        return InteractiveFailedResult()
    evidence = Evidence(text=params.text, stream="jsonl", code=params.error)
    answer = await interactive.failed(engine, backend, evidence, turn=params.turn)
    snapshot, policy = engine.snapshot(), engine.settings.policy
    return InteractiveFailedResult(
        backend=backend,
        failure=None if answer is None else shapes.failure(answer.failure),
        health=health_entry(snapshot, policy, backend, now=engine.clock.now()),
        next=None if answer is None or answer.next is None else answer.next.backend,
    )


async def interactive_plan(
    engine: "Engine", params: InteractivePlanParams, caller: Caller
) -> InteractivePlanResult:
    backend = _backend_of(engine, params, caller)
    if backend is None:
        return InteractivePlanResult()
    now = engine.clock.now()
    windows = convert(params.windows, tuple[Figure, ...], from_attributes=True)
    seen = tuple(structs.replace(one, at=now, source="statusline") for one in windows)
    await interactive.figures(engine, backend, seen)
    entries = health_entries(engine.snapshot(), engine.settings.policy, now=now)
    return InteractivePlanResult(
        backend=backend, health=entries.get(backend), others=_others(engine, backend, entries)
    )


def _backend_of(
    engine: "Engine", params: InteractiveFailedParams | InteractivePlanParams, caller: Caller
) -> "BackendId | None":
    """None: no backend of ours, or an attempt, of which the engine itself reads what it says."""
    if not caller.authority.is_person:
        return None
    return interactive.backend_of(engine.settings, engine.world, params.agent, params.home)


def _others(
    engine: "Engine", backend: "BackendId", entries: dict[str, HealthEntry]
) -> dict[str, HealthEntry]:
    chain = candidates_for(engine.settings.policy, backend=backend, role=None, chain=None)
    names = dict.fromkeys(str(one.backend) for one in chain)
    return {name: entries[name] for name in names if name != backend and name in entries}


HANDLERS: tuple[Handler[Any, Any], ...] = (
    Handler(RESOLVE, resolve),
    Handler(PREPARE, prepare),
    Handler(REPORT, report),
    Handler(SUGGEST, suggest),
    Handler(INTERACTIVE_FAILED, interactive_failed),
    Handler(INTERACTIVE_PLAN, interactive_plan),
)
