"""Notifications: try whether they arrive."""

from msgspec import Struct

from fallbackd_client.wire.envelope import Method


class NotifyTestParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    pass


class Delivery(Struct, frozen=True, kw_only=True):
    """The delivery of one notification."""

    way: str
    """`command` or `url`, the key of `[notify]`."""
    ok: bool
    """Whether it arrived: the program exited with 0, or the server answered with 2xx."""
    detail: str
    """`delivered`, or why not."""


class NotifyTestResult(Struct, frozen=True, kw_only=True):
    deliveries: tuple[Delivery, ...] = ()
    """One for each way that is configured."""


NOTIFY_TEST: Method[NotifyTestParams, NotifyTestResult] = Method(
    "notify.test",
    params=NotifyTestParams,
    result=NotifyTestResult,
    read_only=False,
    who="person",
    promises="nothing",
    errors=("draining",),
    summary="Send a notification now, by each way that is configured.",
    example=({}, {"deliveries": [{"way": "command", "ok": True, "detail": "delivered"}]}),
)


METHODS = (NOTIFY_TEST,)
