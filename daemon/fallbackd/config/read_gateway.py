"""`[gateway]`: the local HTTP endpoint."""

from collections.abc import Mapping
from typing import Literal
from urllib.parse import urlsplit

from msgspec import Struct

from fallbackd.backends import http_calls
from fallbackd.backends.spec import Options
from fallbackd.config.fields import Say, join, read
from fallbackd.config.schema import GatewayTable
from fallbackd.core.ids import BackendId


class Gateway(Struct, frozen=True, kw_only=True):
    enabled: bool = False
    port: int = 41411
    hold: Literal["commit", "whole"] = "commit"
    hold_whole: tuple[str, ...] = ()
    hold_s: float = 45.0
    commit_on_reasoning: bool = True
    allow_metered: bool = False
    max_body_mb: int = 32


def read_gateway(raw: object, say: Say) -> Gateway:
    plain = Gateway()
    return Gateway(
        **read(raw, GatewayTable, "gateway", say, in_use=lambda one: getattr(plain, one))
    )


def warn_of_circles(gateway: Gateway, backends: Mapping[BackendId, Options], say: Say) -> None:
    """A backend whose address is the gateway's own would ask itself."""
    if not gateway.enabled:
        return
    for name, options in backends.items():
        try:
            parts = urlsplit(options.base_url or "")
            is_own = parts.port == gateway.port and http_calls.is_loopback(parts.hostname or "")
        except ValueError:
            continue  # said where the address is read
        if is_own:
            say(
                join(join("backends", name), "base_url"),
                f"is the gateway's own address (port {gateway.port}): what it is asked comes back, "
                "and is refused. Give it the provider's address, or move [gateway] port.",
            )
