"""Servers of opencode, and the plugin in them."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from fallbackd.api import shapes
from fallbackd.api.handler import ApiError, Handler
from fallbackd.api.host import (
    BadServer,
    Caller,
    NotWatched,
    OpencodeServers,
    Plugin,
    is_usable,
)
from fallbackd.core import records as state
from fallbackd.core.decision_log import model_words
from fallbackd.core.opencode.session import Unprotected
from fallbackd.core.protocol import Usage
from fallbackd.core.reasons import NOT_SET_UP
from fallbackd.core.records import Rescue, Session
from fallbackd.core.routing.suggest import duration
from fallbackd.core.views import health_entries, health_entry
from fallbackd.engine.api import Engine
from fallbackd.engine.opencode import Watched
from fallbackd.engine.requests import Unknown
from fallbackd.lib.processes import listens
from fallbackd_client.wire.methods.opencode import (
    OPENCODE_ANNOUNCE,
    OPENCODE_ANSWER,
    OPENCODE_EVENT,
    OPENCODE_RESOLVE,
    OPENCODE_STATUS,
    OpencodeAnnounceParams,
    OpencodeAnnounceResult,
    OpencodeAnswerParams,
    OpencodeAnswerResult,
    OpencodeEventParams,
    OpencodeEventResult,
    OpencodeResolveParams,
    OpencodeResolveResult,
    OpencodeStatusParams,
    OpencodeStatusResult,
    PeriodLine,
    RescueLine,
    ServerLine,
)
from fallbackd_conversations.opencode_versions import line_of
from fallbackd_conversations.redact import excerpt

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine

MAX_HOPS = 20
MAX_WARNINGS = 20
_STATES: Mapping[Unprotected | None, str] = {
    None: "enabled",
    "switched_off": "disabled",
    "no_chain": "enabled, but no fallback chain is configured",
}
_PROBLEMS: Mapping[Unprotected, str] = {
    "switched_off": "`enabled` is false in model-fallback.json, or in [opencode] of config.toml",
    "no_chain": "no fallback chain is configured; put one into"
    " ~/.config/opencode/model-fallback.json",
}
_SIGNS = {"healthy": "✓", "cooldown": "~"}
_WORDS = {"cooldown": "recovery in", "rate_limited": "out for", "broken": "out for"}


def announced_problem(unprotected: Unprotected | None, warnings: Sequence[str]) -> str | None:
    """Return the problem to show to the user of an opencode when it is announced."""
    found = [] if unprotected is None else [_PROBLEMS[unprotected]]
    found += [_plain(one) for one in warnings[:1]]
    if len(warnings) > 1:
        found.append(f"{len(warnings) - 1} more warnings: /fallback-status")
    return "; ".join(found) or None


def status_words(
    engine: Engine,
    name: str | None,
    session: Session | None,
    *,
    verbose: bool,
    warnings: Sequence[str] = (),
    unprotected: Unprotected | None = None,
) -> str:
    """
    Args:
        name: Of the session that was asked for, whether it is on record or not.
        warnings: About the files that configure its project.
        unprotected: Why no failed turn of its project would be moved.
    """
    now = engine.clock.now()
    lines = ["## Model Fallback Status", "", f"**Fallback:** {_STATES[unprotected]}"]
    if name is not None:
        lines += ["", "### Current Session", "", f"- Session ID: {_plain(name)}"]
    if name is not None and session is None:
        lines.append("- Nothing has been seen of it yet")
    if session is not None:
        lines += _session(session)
    if warnings:
        lines += ["", "### Configuration Warnings", ""]
        lines += [f"- {_plain(one)}" for one in warnings[:MAX_WARNINGS]]
    lines += ["", "### Model Health", "", *_health(engine, session, now=now)]
    if verbose and session is not None:
        lines += _usage(session)
    return "\n".join(lines) + "\n"


def _session(session: Session) -> list[str]:
    lines = [
        f"- Agent: {_plain(session.role or 'unknown')}",
        f"- Original model: {model_words(session.original)}",
        f"- Current model: {model_words(session.current)}",
        f"- Fallback depth: {session.depth}",
    ]
    if session.rescue is not None:
        rescue = session.rescue
        lines.append(
            f"- Under way: {model_words(rescue.left)} → {model_words(rescue.to)}, at"
            f" {rescue.step} ({rescue.reason})"
        )
    hops = [
        f"- {_clock(hop.at)} — {model_words(hop.from_backend)} → {model_words(hop.to_backend)}"
        f" ({hop.reason}, {hop.trigger})"
        for hop in session.hops[-MAX_HOPS:]
    ]
    return [*lines, "", "### Fallback History", "", *(hops or ["- None"])]


def _health(engine: Engine, session: Session | None, *, now: float) -> list[str]:
    policy, snapshot = engine.settings.policy, engine.snapshot()
    entries = health_entries(snapshot, policy, now=now, only="unhealthy")
    for known in () if session is None else (session.original, session.current):
        if known not in entries:
            entries[str(known)] = health_entry(known, snapshot, policy, now=now)
    found = []
    for name, entry in entries.items():
        if "/" not in name and entry["reason"] in NOT_SET_UP:
            continue  # a program that was never set up
        if entry["state"] == "healthy" and not entry["count"]:
            continue
        found.append(_health_line(name, entry))
    return found or ["- All models healthy (no issues detected)"]


def _health_line(name: str, entry: dict[str, Any]) -> str:
    sign = _SIGNS.get(entry["state"], "✗")
    line = f"- {sign} {model_words(name)}: {entry['state']}"
    if entry["reason"]:
        line += f" ({entry['reason']})"
    if entry["seconds_remaining"] is not None:
        left = duration(entry["seconds_remaining"])
        line += f", {_WORDS.get(entry['state'], 'for')} {left}"
    if entry["count"]:
        line += f" [{entry['count']} failure{'s' if entry['count'] != 1 else ''}]"
    return line


def _usage(session: Session) -> list[str]:
    total = [used for _, used in session.usage]
    costs = [one.cost_usd for one in total if one.cost_usd is not None]
    whole = Usage(
        input_tokens=sum(one.input_tokens for one in total),
        output_tokens=sum(one.output_tokens for one in total),
        cost_usd=sum(costs) if costs else None,
    )
    lines = ["", "### Usage Summary", "", f"- Total: {_spent(whole)}", "", "**By model period:**"]
    ends = [_clock(one.from_at) for one in session.periods[1:]]
    for one, end in zip(session.periods, [*ends, "now"], strict=False):
        when = f"{_clock(one.from_at)} to {end}"
        lines.append(f"- {model_words(one.backend)}, {when}: {_spent(one.usage)}")
    return lines


def _spent(usage: Usage) -> str:
    cost = 0.0 if usage.cost_usd is None else usage.cost_usd
    return f"{usage.input_tokens} tokens in, {usage.output_tokens} out, ${cost:.6f}"


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S UTC")


def _plain(text: str) -> str:
    return excerpt(text, max_chars=200)


async def opencode_announce(
    engine: "Engine", params: OpencodeAnnounceParams, caller: Caller
) -> OpencodeAnnounceResult:
    front = front_of(caller)
    directory = params.directory or ""
    try:
        if not caller.authority.is_person:
            raise NotWatched
        is_at = params.plugin and _is_at(caller, params.url)
        # A plugin of version 2 makes no calls for us.
        if params.plugin and not is_at and line_of(params.version) != 2:
            is_known = link_of(caller) is not None
            url = _attach(front, caller, directory=directory)
            via: Literal["url", "plugin"] = "plugin"
        else:
            is_known = await front.announce(
                params.url, password=params.password, directory=directory
            )
            url, via = params.url.rstrip("/"), "url"
            if is_at:
                _enter(front, caller, url)
    except NotWatched as error:
        raise ApiError(
            "not_permitted", f"Not watched: {error}.", data={"kind": "attempt"}
        ) from error
    except BadServer as error:
        raise ApiError(
            "not_permitted", f"`url`: {error}.", data={"path": "url", "kind": "server"}
        ) from error
    warnings = await front.warned(directory)
    unprotected = Watched(engine).why_unprotected(directory)
    return OpencodeAnnounceResult(
        url=url,
        known=is_known,
        daemon=caller.host.version,
        via=via,
        protected=unprotected is None,
        problem=announced_problem(unprotected, warnings),
    )


def _is_at(caller: Caller, url: str) -> bool:
    """
    An opencode without a port names one all the same, at which another one may listen. The
    caller is a part of the process that it announces.
    """
    return is_usable(url) and caller.peer_pid is not None and listens(caller.peer_pid, url)


def _attach(front: OpencodeServers, caller: Caller, *, directory: str) -> str:
    name, pid = f"plugin:{caller.peer_pid or 0}:{directory}", caller.peer_pid
    if front.attach(name, caller.number, _calls_to(caller), directory=directory, pid=pid):
        caller.on_close(lambda: front.detach(name, caller.number))
    return name


def _enter(front: OpencodeServers, caller: Caller, url: str) -> None:
    if front.enter(url, caller.number, _calls_to(caller)):
        caller.on_close(lambda: front.detach(url, caller.number))


def _calls_to(caller: Caller) -> Callable[[Mapping[str, Any]], None]:
    return lambda call: caller.notify("opencode.call", call)


def link_of(caller: Caller) -> Plugin | None:
    """Return the link to an opencode whose plugin is at the other end of a connection."""
    front = caller.host.opencode
    return None if front is None else front.attached(caller.number)


def front_of(caller: Caller) -> OpencodeServers:
    front = caller.host.opencode
    if front is None:
        raise ApiError(
            "draining",
            "No opencode servers are watched now; ask again when the daemon is up.",
            data={"kind": "draining"},
        )
    return front


def opencode_answer(
    engine: "Engine", params: OpencodeAnswerParams, caller: Caller
) -> OpencodeAnswerResult:
    link = link_of(caller)
    if link is not None:
        link.answered(params.call, status=params.status, text=params.text, more=params.more)
    return OpencodeAnswerResult(heard=link is not None)


def opencode_event(
    engine: "Engine", params: OpencodeEventParams, caller: Caller
) -> OpencodeEventResult:
    link = link_of(caller)
    if link is not None:
        link.hear(params.event, directory=params.directory or "")
    return OpencodeEventResult(heard=link is not None)


async def opencode_resolve(
    engine: "Engine", params: OpencodeResolveParams, caller: Caller
) -> OpencodeResolveResult:
    link, front = link_of(caller), front_of(caller)
    if not caller.authority.is_person:
        return OpencodeResolveResult(model=params.model, redirected=False)
    found = await front.redirect(
        server=(params.server or "") if link is None else link.url,
        session=params.session,
        directory=params.directory or "",
        agent=params.agent,
        model=params.model,
    )
    return OpencodeResolveResult(
        model=found.model or params.model,
        redirected=found.model is not None,
        reason=found.reason,
        retry_at=found.retry_at,
        candidates=tuple(shapes.verdict(one) for one in found.verdicts),
    )


async def opencode_status(
    engine: "Engine", params: OpencodeStatusParams, caller: Caller
) -> OpencodeStatusResult:
    front = caller.host.opencode
    one: state.Session | None = None
    if params.session is not None:
        try:
            one = await engine.session(params.session)
        except Unknown:
            one = None  # nothing has happened in it yet
    directory = params.directory or ("" if one is None else one.project)
    warnings = () if front is None else await front.warned(directory)
    return OpencodeStatusResult(
        servers=tuple(
            ServerLine(
                url=each.url,
                up=each.is_up,
                announced=each.is_announced,
                version=each.version,
                problem=each.problem or None,
            )
            for each in (() if front is None else front.states())
        ),
        rescue=None if one is None or one.rescue is None else _rescue(one.rescue),
        periods=() if one is None else periods(one),
        text=status_words(
            engine,
            params.session,
            one,
            verbose=params.verbose,
            warnings=warnings,
            unprotected=Watched(engine).why_unprotected(directory),
        ),
    )


def _rescue(one: Rescue) -> RescueLine:
    return RescueLine(
        step=one.step, from_=one.left, to=one.to, reason=one.reason, since_at=one.began_at
    )


def periods(one: state.Session) -> tuple[PeriodLine, ...]:
    ends = [each.from_at for each in one.periods[1:]]
    return tuple(
        PeriodLine(
            model=each.backend,
            from_at=each.from_at,
            to_at=to_at,
            input_tokens=each.usage.input_tokens,
            output_tokens=each.usage.output_tokens,
            cost_usd=each.usage.cost_usd,
        )
        for each, to_at in zip(one.periods, [*ends, None], strict=False)
    )


HANDLERS: tuple[Handler[Any, Any], ...] = (
    Handler(OPENCODE_ANNOUNCE, opencode_announce),
    Handler(OPENCODE_ANSWER, opencode_answer),
    Handler(OPENCODE_EVENT, opencode_event),
    Handler(OPENCODE_RESOLVE, opencode_resolve),
    Handler(OPENCODE_STATUS, opencode_status),
)
