"""Records of the core as the shapes of the wire. The wire is a promise, the core is not."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import UNSET, UnsetType, convert, structs

from fallbackd.api.handler import ApiError
from fallbackd.backends import KINDS
from fallbackd.config.fields import Problem
from fallbackd.core import decision, failures, reasons, views
from fallbackd.core import protocol as exchange
from fallbackd.core import records as state
from fallbackd.core.callers.lease import Resolution
from fallbackd.core.ids import BackendId
from fallbackd.core.policy import Entry, Policy
from fallbackd.core.reasons import Reason
from fallbackd.core.records import Rescue, Verdict
from fallbackd.engine.runs import KeptAnswer
from fallbackd.lib.alike import alike
from fallbackd_client.wire import shapes as wire
from fallbackd_client.wire.methods.callers import Lease
from fallbackd_client.wire.methods.delegations import ChainEntry
from fallbackd_client.wire.shapes import (
    CandidateVerdict,
    Fix,
    SessionConversation,
    SessionTurn,
    SessionView,
    UsageRow,
)

_WITH = " with: "
_DISABLED = Fix(kind="configuration", text="enable it in the configuration")
_BY_WORD = {one.value: one.row.fix for one in Reason if one.row.fix is not None}


def fix_of(one: Verdict, failed: Reason | None = None) -> Fix | None:
    """
    Args:
        failed: Why it has failed here, which counts more than its state.

    Returns:
        None: Waiting helps, or it needs no help.
    """
    if failed is not None:
        return _worded(failed.row.fix, one)
    if one.verdict == "disabled":
        return _DISABLED
    return _worded(_BY_WORD.get(one.reason or "") or _BY_WORD.get(one.verdict), one)


def _worded(fix: reasons.Fix | None, one: Verdict) -> Fix | None:
    if fix is None:
        return None
    kind = KINDS.get(one.kind)
    text = fix.text
    if kind is not None and fix.command == "login" and kind.setup.login:
        account = f"{one.account} " if one.account else ""
        text = f"log in{_WITH}{account}{kind.setup.login}"
    elif kind is not None and fix.command == "install" and kind.setup.install:
        text = f"install it{_WITH}{kind.setup.install}"
    return Fix(kind=fix.kind, text=text)


def none_installed(candidates: Sequence[CandidateVerdict], path: str | None) -> str | None:
    """
    Say which agents were looked for, where, and how to install one.

    Returns:
        None: Something else is in the way too.
    """
    if not candidates or any(one.verdict != "not_installed" for one in candidates):
        return None
    names = list(dict.fromkeys(one.backend for one in candidates))
    where = f"on the daemon's PATH ({path or 'not set'})"
    command = _first_command(candidates)
    if len(names) == 1:
        return f"{names[0]} is not {where}; install it" + (_WITH + command if command else "")
    example = f", for example{_WITH}{command}" if command else ""
    return f"none of {', '.join(names)} is {where}; install one{example}"


def _first_command(candidates: Sequence[CandidateVerdict]) -> str:
    known = (one.fix.text.partition(_WITH)[2] for one in candidates if one.fix is not None)
    return next((one for one in known if one), "")


TIERS = frozenset({"primary", "model", "api", "in_session"})


def chain(given: str | tuple[str | ChainEntry, ...] | None) -> tuple[Entry, ...] | str | None:
    """The name of a configured chain, or the entries of one that the caller made."""
    if given is None or isinstance(given, str):
        return given
    return tuple(_entry(one, at) for at, one in enumerate(given))


def entries(
    given: str | tuple[str | ChainEntry, ...] | None, policy: Policy
) -> tuple[Entry, ...] | None:
    """Return the same with the entries of a named chain."""
    found = chain(given)
    if not isinstance(found, str):
        return found
    if found not in policy.chains:
        known = ", ".join(sorted(policy.chains)) or "none"
        raise ApiError(
            "invalid_params",
            f"`chain`: there is no chain {found!r}. Known chains: {known}.",
            data={"path": "chain"},
        )
    return policy.chains[found]


def _entry(one: str | ChainEntry, at: int) -> Entry:
    if isinstance(one, str):
        return Entry(backend=BackendId(one))
    if one.tier is not None and one.tier not in TIERS:
        raise ApiError(
            "invalid_params",
            f"`chain[{at}].tier`: {one.tier!r} is not a tier. Use one of {', '.join(sorted(TIERS))}"
            ", or leave it out.",
            data={"path": f"chain[{at}].tier"},
        )
    return Entry(
        backend=BackendId(one.backend),
        model=one.model,
        tier=one.tier,  # type: ignore[arg-type] # checked above
        effort=one.effort,
    )


ANSWER_GONE = "The answer was removed with its run directory, to keep within `max_runs_bytes`."


def failure(one: failures.Failure | None) -> wire.Failure | None:
    return None if one is None else convert(one, wire.Failure, from_attributes=True)


def attempt(one: state.Attempt) -> wire.Attempt:
    return convert(one, wire.Attempt, from_attributes=True)


def hop(one: state.Hop) -> wire.Hop:
    return wire.Hop(
        at=one.at,
        from_=one.from_backend,
        to=one.to_backend,
        trigger=one.trigger,
        reason=one.reason,
        evidence=one.evidence or None,
        tier_from=one.tier_from,
        tier_to=one.tier_to,
        from_model=one.from_model,
        to_model=one.to_model,
    )


def verdict(one: state.Verdict, failed: failures.Reason | None = None) -> wire.CandidateVerdict:
    """
    Args:
        failed: Why it has failed for this work.
    """
    return wire.CandidateVerdict(
        backend=one.backend,
        model=one.model,
        verdict=one.verdict,
        reason=one.reason or "",
        detail=one.detail,
        state=one.state,  # type: ignore[arg-type] # the same words, typed on the wire only
        until_at=one.until_at,
        tier=one.tier,
        credential=one.credential,
        scope=one.scope,
        fix=fix_of(one, failed),
    )


def usage(one: exchange.Usage) -> wire.TokenUsage:
    return convert(one, wire.TokenUsage, from_attributes=True)


def answered(
    one: state.Delegation, answer: KeptAnswer | None, *, path: str | None
) -> wire.Delegation:
    """
    A delegation with its answer, or with the reason why there is none any more.

    Args:
        path: On which the daemon finds programs.
    """
    shown = delegation(one, text=None if answer is None else answer.text)
    if one.state == "refused" and (why := none_installed(shown.candidates, path)) is not None:
        return structs.replace(shown, message=why)
    if one.state == "succeeded" and answer is None:
        return structs.replace(shown, warnings=(*shown.warnings, ANSWER_GONE))
    if answer is None or answer.is_whole:
        return shown
    return structs.replace(
        shown,
        text_truncated=True,
        text_path=answer.path,
        warnings=(*shown.warnings, f"the answer is cut here; all of it is in {answer.path}"),
    )


def question(one: state.Question) -> wire.Question:
    return convert(one, wire.Question, from_attributes=True)


def delegation(one: state.Delegation, *, text: str | None = None) -> wire.Delegation:
    """
    Args:
        text: The answer, which is not part of the record.
    """
    failed = {
        each.backend: each.failure.reason for each in one.attempts if each.failure is not None
    }
    logs = [each.log_path for each in one.attempts if each.log_path is not None]
    return alike(
        wire.Delegation,
        one,
        cwd=one.cwd or None,
        fallback_from=views.fallback_from(one),
        fallback_reason=views.fallback_reason(one),
        requested_platform=one.requested,
        active_platform=one.active,
        tiers_attempted=_tiers(one),
        attempts=tuple(attempt(each) for each in one.attempts),
        hops=tuple(hop(each) for each in one.hops),
        candidates=tuple(verdict(each, failed.get(each.backend)) for each in one.verdicts),
        text=text,
        failure=failure(one.failure),
        question=question(one.questions[-1]) if one.questions else None,
        handed_back=convert(one.handed_back, wire.HandedBack | None, from_attributes=True),
        standby=standby(one),
        usage=usage(one.usage),
        log_path=logs[-1] if logs else None,
        metadata=one.metadata or None,
        model=one.attempts[-1].model if one.attempts else None,
    )


def standby(one: state.Delegation) -> wire.Standby | None:
    """Terms of work that waits for a backend now; None: it does not."""
    if not one.on_standby or one.standby is None or one.waiting is None:
        return None
    until_at = one.waiting.until_at
    return alike(
        wire.Standby,
        one.standby,
        since_at=one.waiting.since_at,
        expects_at=None if until_at >= one.standby.limit_at else until_at,
    )


def _tiers(one: state.Delegation) -> tuple[str, ...]:
    """The tiers that were tried, in their order."""
    tiers = dict.fromkeys(each.tier for each in one.attempts if each.tier is not None)
    if one.state == "handed_back":
        tiers["in_session"] = None
    return tuple(tiers)


def delegation_line(one: state.Delegation, *, prompt: str | None = None) -> wire.DelegationLine:
    """
    Args:
        prompt: How the prompt begins, which is not part of the record.
    """
    return alike(
        wire.DelegationLine,
        one,
        cwd=one.cwd or None,
        hops=len(one.hops),
        fallback_reason=views.fallback_reason(one),
        prompt=prompt,
        standby=standby(one),
    )


def session(one: state.Session) -> SessionView:
    return SessionView(
        session=one.session,
        role=one.role,
        original=one.original,
        current=one.current,
        current_model=one.current_model,
        depth=one.depth,
        running=one.running,
        last_fallback_at=one.last_fallback_at,
        last_active_at=one.last_used_at,
        hops=tuple(hop(each) for each in one.hops),
        notices=one.notices_sent,
        notices_sent=one.notices_sent,
        ignored_reports=one.ignored_reports,
        server=one.server or None,
        directory=one.project or None,
        conversation=None
        if one.past.conversation is None
        else SessionConversation(
            backend=one.past.conversation.backend, id=one.past.conversation.id
        ),
        rescue=None if one.rescue is None else rescue_words(one.rescue),
    )


def session_turn(one: state.Delegation, *, prompt: str | None, answer: str | None) -> SessionTurn:
    return SessionTurn(
        delegation=one.delegation,
        backend=one.served_by,
        ended_at=one.ended_at,
        prompt=prompt,
        answer=answer,
    )


def rescue_words(one: Rescue) -> str:
    return f"{one.step}: {one.left} → {one.to} ({one.reason})"


def session_usage(one: state.Session, made: Iterable[state.Delegation]) -> tuple[UsageRow, ...]:
    """
    Args:
        made: The delegations of the session, whose attempts are counted.
    """
    ends = Counter(
        (each.backend, each.state)
        for delegation in made
        for each in delegation.attempts
        if each.ended_at is not None
    )
    used = dict(one.usage)
    rows = []
    for backend in dict.fromkeys((*used, *(each for each, _ in ends))):
        spent = used.get(backend, exchange.Usage())
        rows.append(
            UsageRow(
                backend=backend,
                period="total",
                since_at=one.created_at,
                session=one.session,
                attempts=sum(count for (each, _), count in ends.items() if each == backend),
                successes=ends[backend, "succeeded"],
                failures=ends[backend, "failed"],
                input_tokens=spent.input_tokens,
                output_tokens=spent.output_tokens,
                cost_usd=spent.cost_usd,
            )
        )
    borders = [each.from_at for each in one.periods[1:]]
    for period, until_at in zip(one.periods, [*borders, None], strict=False):
        rows.append(
            UsageRow(
                backend=period.backend,
                period="model",
                since_at=period.from_at,
                until_at=until_at,
                session=one.session,
                input_tokens=period.usage.input_tokens,
                output_tokens=period.usage.output_tokens,
                cost_usd=period.usage.cost_usd,
            )
        )
    return tuple(rows)


def lease(one: Resolution | None, *, asked: bool) -> Lease | UnsetType | None:
    """Absent where the caller did not ask for it, null where none is needed."""
    if not asked:
        return UNSET
    if one is None or one.lease_id is None:
        return None
    if one.lease_generation is None or one.lease_expires_at is None:
        return None
    return Lease(
        id=one.lease_id,
        generation=one.lease_generation,
        expires_at=one.lease_expires_at,
        owner=one.lease_owner,
    )


def owner(said: str | None, pid: int | None) -> str | None:
    """Name the holder of a lease, for people."""
    return said if said is not None or pid is None else f"process {pid}"


def event(one: decision.Journaled) -> dict[str, Any]:
    """An event as `events.subscribe` promises it; fields that it does not carry are absent."""
    return {"seq": one.seq, **noted(one.note)}


def noted(note: decision.Note) -> dict[str, Any]:
    """Return the same without a place in the journal."""
    found: dict[str, Any] = {"at": note.at, "kind": note.kind}
    named = {"delegation": note.delegation, "session": note.session, "backend": note.backend}
    found.update((name, value) for name, value in named.items() if value is not None)
    found.update((name, value) for name, value in note.fields.items() if name not in found)
    return found


def problems(found: Iterable[Problem]) -> tuple[wire.ConfigProblem, ...]:
    return tuple(wire.ConfigProblem(path=one.path, message=one.message) for one in found)


def evidence(one: wire.Evidence) -> exchange.Evidence:
    """Convert a caller's evidence to that of the classifier."""
    return exchange.Evidence(
        text=one.text or "",
        stream=one.stream or _stream_of(one),
        exit_code=one.exit_code,
        http_status=one.http_status,
        headers={name.lower(): value for name, value in (one.headers or {}).items()},
        body=one.body,
        exception=one.exception,
    )


def _stream_of(one: wire.Evidence) -> str:
    if one.http_status is not None or one.headers:
        return "http"
    return "exception" if one.exception is not None else "unknown"
