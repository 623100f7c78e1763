"""Servers of opencode, and the plugin in them."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from fallbackd.api import shapes
from fallbackd.api.errors import ApiError
from fallbackd.api.handler import Handler
from fallbackd.api.host import Caller
from fallbackd.api.opencode_servers import (
    BadServer,
    NotWatched,
    OpencodeServers,
    Plugin,
    is_usable,
)
from fallbackd.api.opencode_words import announced_problem, status_words
from fallbackd.core import records as state
from fallbackd.core.rescue import Rescue
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

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine


async def opencode_announce(
    engine: "Engine", params: OpencodeAnnounceParams, caller: Caller
) -> OpencodeAnnounceResult:
    front = front_of(caller)
    directory = params.directory or ""
    try:
        if not caller.authority.is_person:
            raise NotWatched
        if params.plugin and not _is_at(caller, params.url):
            is_known = link_of(caller) is not None
            url = _attach(front, caller, directory=directory)
            via: Literal["url", "plugin"] = "plugin"
        else:
            is_known = await front.announce(
                params.url, password=params.password, directory=directory
            )
            url, via = params.url.rstrip("/"), "url"
            if params.plugin:
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
    """Of an opencode whose plugin is at the other end of a connection."""
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
