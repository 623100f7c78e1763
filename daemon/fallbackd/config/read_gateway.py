"""`[gateway]`: the local HTTP endpoint."""

from typing import Literal

from msgspec import Struct

from fallbackd.config.fields import Say, read
from fallbackd.config.schema import GatewayTable


class Gateway(Struct, frozen=True, kw_only=True):
    enabled: bool = False
    port: int = 41411
    hold: Literal["commit", "whole"] = "commit"
    hold_whole: tuple[str, ...] = ()
    hold_s: float = 45.0
    allow_metered: bool = False
    max_body_mb: int = 32


def read_gateway(raw: object, say: Say) -> Gateway:
    plain = Gateway()
    return Gateway(
        **read(raw, GatewayTable, "gateway", say, in_use=lambda one: getattr(plain, one))
    )
