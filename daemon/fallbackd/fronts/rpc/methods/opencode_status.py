"""`opencode.status`."""

from typing import TYPE_CHECKING

from fallbackd.core import records as state
from fallbackd.core.rescue import Rescue
from fallbackd.engine.requests import Unknown
from fallbackd.fronts.opencode.words import status_words
from fallbackd.fronts.rpc.host import Session
from fallbackd_client.wire.methods.opencode_status import METHOD as METHOD
from fallbackd_client.wire.methods.opencode_status import (
    Params,
    PeriodLine,
    RescueLine,
    Result,
    ServerLine,
)

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine


async def handle(engine: "Engine", params: Params, session: Session) -> Result:
    front = session.host.opencode
    one: state.Session | None = None
    if params.session is not None:
        try:
            one = await engine.session(params.session)
        except Unknown:
            one = None  # nothing has happened in it yet
    directory = params.directory or ("" if one is None else one.project)
    warnings = () if front is None else await front.warned(directory)
    return Result(
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
        text=status_words(engine, params.session, one, verbose=params.verbose, warnings=warnings),
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
