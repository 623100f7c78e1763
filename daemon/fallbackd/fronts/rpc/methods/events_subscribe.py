"""`events.subscribe`."""

from typing import TYPE_CHECKING, get_args

from msgspec import UNSET

from fallbackd.fronts.rpc.errors import refuse_unknown
from fallbackd.fronts.rpc.host import Session
from fallbackd_client.wire.methods.events_subscribe import METHOD as METHOD
from fallbackd_client.wire.methods.events_subscribe import EventKind, Params, Result

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine


def handle(engine: "Engine", params: Params, session: Session) -> Result:
    refuse_unknown("event kind", params.kinds or (), get_args(EventKind))
    # Not `async`: so the answer is written before the first event can be.
    name, seq, warning = session.subscriptions.open(
        session,
        kinds=None if params.kinds is None else frozenset(params.kinds),
        session=params.session,
        since=params.since,
    )
    return Result(subscription=name, seq=seq, warning=UNSET if warning is None else warning)
