"""`usage`: of each backend in the last hour and altogether, or of one session."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fallbackd.core.policy import Policy
from fallbackd.core.state import Meter
from fallbackd.fronts.rpc import shapes
from fallbackd.fronts.rpc.host import Session
from fallbackd_client.wire.methods.usage import METHOD as METHOD
from fallbackd_client.wire.methods.usage import Params, Result
from fallbackd_client.wire.shapes import UsageRow

if TYPE_CHECKING:
    from fallbackd.engine.loop import Engine

HOUR_S = 3600.0


async def handle(engine: "Engine", params: Params, session: Session) -> Result:
    if params.session is not None:
        rows: Iterable[UsageRow] = shapes.session_usage(await engine.session(params.session))
    else:
        rows = _of_backends(
            engine.settings.policy,
            engine.snapshot().meters.values(),
            since_at=params.since_at,
            now=engine.clock.now(),
        )
    return Result(
        usage=tuple(one for one in rows if params.backend in (None, one.backend)),
    )


def _of_backends(
    policy: Policy, meters: Iterable[Meter], *, since_at: float | None, now: float
) -> Iterable[UsageRow]:
    """Minutes are kept for one hour: `since_at` reaches back no further."""
    begin_at = max(now - HOUR_S, since_at or 0.0)
    for one in meters:
        recent = [each for each in one.starts if (each[0] + 1) * 60.0 > begin_at]
        backend = policy.backends.get(one.backend)
        is_tokens = backend is not None and backend.cap_unit == "tokens"
        cap = None if backend is None else backend.hourly_cap or backend.shown_cap
        yield UsageRow(
            backend=one.backend,
            period="hour",
            since_at=begin_at,
            attempts=sum(each[1] for each in recent),
            cap=None if cap is None else float(cap),
            unit=None if cap is None else ("tokens" if is_tokens else "requests"),
        )
        yield UsageRow(
            backend=one.backend,
            period="total",
            input_tokens=one.totals.input_tokens,
            output_tokens=one.totals.output_tokens,
            cost_usd=one.totals.cost_usd,
        )
