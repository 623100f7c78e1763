"""Usage, by backend and period."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from msgspec import structs

from fallbackd.api import shapes
from fallbackd.api.handler import Handler
from fallbackd.api.host import Caller
from fallbackd.core import meter
from fallbackd.core.ids import BackendId
from fallbackd.core.policy import Backend, Policy
from fallbackd.core.records import Meter
from fallbackd.core.scopes import backend_scope, find_backend
from fallbackd.engine.requests import Unknown
from fallbackd.ports.store import Selection
from fallbackd_client.wire.methods.usage import USAGE, UsageParams, UsageResult
from fallbackd_client.wire.shapes import UsageRow

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine


HOUR_S = 3600.0
MAX_DELEGATIONS = 1000
"""Of a session, the latest ones."""
NO_SINCE = (
    "since_at has no effect together with session: what a session has used is kept as a whole,"
    " not by time"
)


async def usage(engine: "Engine", params: UsageParams, caller: Caller) -> UsageResult:
    if params.backend is not None and not _is_known(engine, BackendId(params.backend)):
        known = ", ".join(engine.settings.policy.backends)
        raise Unknown(f"There is no backend {params.backend!r}. Known backends: {known}.")
    if params.session is not None:
        one = await engine.session(params.session)
        made = await engine.delegations(Selection(session=one.session), limit=MAX_DELEGATIONS)
        rows: Iterable[UsageRow] = shapes.session_usage(one, made)
    else:
        rows = _of_backends(
            engine.settings.policy,
            engine.snapshot().meters.values(),
            since_at=params.since_at,
            now=engine.clock.now(),
        )
    is_timeless = params.session is not None and params.since_at is not None
    return UsageResult(
        usage=tuple(one for one in rows if params.backend in (None, one.backend)),
        warnings=(NO_SINCE,) if is_timeless else (),
    )


def _is_known(engine: "Engine", name: BackendId) -> bool:
    """Configured, or on record from when it was."""
    return (
        find_backend(engine.settings.policy, name) is not None
        or name in engine.snapshot().meters
        or backend_scope(name) in engine.snapshot().health
    )


def _of_days(one: Meter, period: str, first: int, *, cost: str | None) -> UsageRow:
    used = meter.together(one.days, from_day=first)
    return UsageRow(
        backend=one.backend,
        period=period,
        since_at=first * meter.DAY_S,
        attempts=used.attempts,
        successes=used.successes,
        failures=used.failures,
        input_tokens=used.usage.input_tokens,
        output_tokens=used.usage.output_tokens,
        cost_usd=used.usage.cost_usd,
        cost=cost,
    )


def _of_backends(
    policy: Policy, meters: Iterable[Meter], *, since_at: float | None, now: float
) -> Iterable[UsageRow]:
    """Minutes are kept for one hour, days (UTC) for a month: `since_at` reaches back no further."""
    begin_at = max(now - HOUR_S, since_at or 0.0)
    today = meter.day_of(now)
    periods = {"day": today, "week": today - 6}
    if since_at is not None:
        periods["since"] = meter.day_of(since_at)
    for one in meters:
        if one == Meter(backend=one.backend, hour=one.hour):
            continue  # it was passed over, and never called
        backend = find_backend(policy, one.backend)
        cost = None if backend is None else backend.cost
        yield _of_hour(one, backend, begin_at)
        for period, first in periods.items():
            yield _of_days(one, period, first, cost=cost)
        yield UsageRow(
            backend=one.backend,
            period="total",
            cost=cost,
            attempts=one.attempts,
            successes=one.successes,
            failures=one.failures,
            input_tokens=one.totals.input_tokens,
            output_tokens=one.totals.output_tokens,
            cost_usd=one.totals.cost_usd,
        )


def _of_hour(one: Meter, backend: Backend | None, begin_at: float) -> UsageRow:
    """The last hour, beside the cap that counts in it."""
    spent = meter.spent_since(one, begin_at)
    ends = [(good, bad) for minute, good, bad in one.ends if (minute + 1) * 60.0 > begin_at]
    row = UsageRow(
        backend=one.backend,
        period="hour",
        since_at=begin_at,
        attempts=sum(count for minute, count, _ in one.starts if (minute + 1) * 60.0 > begin_at),
        successes=sum(good for good, _ in ends),
        failures=sum(bad for _, bad in ends),
        input_tokens=spent.input_tokens,
        output_tokens=spent.output_tokens,
        cost_usd=spent.cost_usd,
    )
    if backend is None:
        return row
    cap = backend.hourly_cap or backend.shown_cap
    return structs.replace(
        row,
        cost=backend.cost,
        cap=None if cap is None else float(cap),
        unit=None if cap is None else "tokens" if backend.cap_unit == "tokens" else "requests",
    )


HANDLERS: tuple[Handler[Any, Any], ...] = (Handler(USAGE, usage),)
