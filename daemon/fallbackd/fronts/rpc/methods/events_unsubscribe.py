"""`events.unsubscribe`."""

from typing import TYPE_CHECKING

from fallbackd.fronts.rpc.host import Session
from fallbackd_client.wire.methods.events_unsubscribe import METHOD as METHOD
from fallbackd_client.wire.methods.events_unsubscribe import Params, Result

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine


def handle(engine: "Engine", params: Params, session: Session) -> Result:
    return Result(ended=session.subscriptions.end(session, params.subscription))
