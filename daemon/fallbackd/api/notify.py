"""Notifications: try whether they arrive."""

from typing import TYPE_CHECKING, Any

from fallbackd.api.errors import ApiError
from fallbackd.api.handler import Handler
from fallbackd.api.host import Caller
from fallbackd_client.wire.methods.notify import (
    NOTIFY_TEST,
    Delivery,
    NotifyTestParams,
    NotifyTestResult,
)

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine


async def notify_test(
    engine: "Engine", params: NotifyTestParams, caller: Caller
) -> NotifyTestResult:
    found = await caller.host.notify_test()
    if not found:
        raise ApiError(
            "invalid_params",
            "no notifications are configured; set command or url in [notify] of the configuration,"
            ' for example: command = ["notify-send", "{title}", "{text}"]',
        )
    return NotifyTestResult(
        deliveries=tuple(
            Delivery(way=way, ok=problem is None, detail=problem or "delivered")
            for way, problem in found.items()
        )
    )


HANDLERS: tuple[Handler[Any, Any], ...] = (Handler(NOTIFY_TEST, notify_test, waits=True),)
