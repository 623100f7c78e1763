"""Events: subscriptions on a connection."""

from typing import TYPE_CHECKING, Any, get_args

from msgspec import UNSET

from fallbackd.api.errors import ApiError, refuse_unknown
from fallbackd.api.handler import Handler
from fallbackd.api.host import Caller
from fallbackd_client.wire.methods.events import (
    EVENTS_SUBSCRIBE,
    EVENTS_UNSUBSCRIBE,
    EventKind,
    EventsSubscribeParams,
    EventsSubscribeResult,
    EventsUnsubscribeParams,
    EventsUnsubscribeResult,
)

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine


def events_subscribe(
    engine: "Engine", params: EventsSubscribeParams, caller: Caller
) -> EventsSubscribeResult:
    refuse_unknown("event kind", params.kinds or (), get_args(EventKind))
    if params.text_since is not None and params.delegation is None:
        raise ApiError("invalid_params", "`text_since` needs `delegation`: name whose text it is")
    if params.delegation is None and not caller.authority.is_person:
        raise ApiError(
            "not_permitted",
            "`delegation`: name one that you have begun; you are asking from"
            f" {caller.authority.place}",
        )
    # Not `async`: so the answer is written before the first event can be.
    name, seq, warning = caller.subscriptions.open(caller, params)
    return EventsSubscribeResult(
        subscription=name, seq=seq, warning=UNSET if warning is None else warning
    )


def events_unsubscribe(
    engine: "Engine", params: EventsUnsubscribeParams, caller: Caller
) -> EventsUnsubscribeResult:
    return EventsUnsubscribeResult(ended=caller.subscriptions.end(caller, params.subscription))


HANDLERS: tuple[Handler[Any, Any], ...] = (
    Handler(EVENTS_SUBSCRIBE, events_subscribe),
    Handler(EVENTS_UNSUBSCRIBE, events_unsubscribe),
)
