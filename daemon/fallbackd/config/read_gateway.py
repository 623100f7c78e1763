"""`[gateway]`: the local HTTP endpoint."""

from collections.abc import Collection
from typing import Literal
from urllib.parse import urlsplit

from msgspec import Struct, structs

from fallbackd.backends import ENDPOINTS, http_calls
from fallbackd.backends.spec import Options
from fallbackd.config.fields import Say, guess, join, read, show
from fallbackd.config.read_backends import Backends
from fallbackd.config.schema import GatewayTable
from fallbackd.core.policy import Backend

HOLD_S = 45.0
MAX_MEMORY_MB = 256
"""A daemon takes some 50 MiB by itself, on machines of 2 GiB beside the agents that it starts. This
is room for 40 requests of 3 MiB, pictures included, or four of 32 MiB."""


class Gateway(Struct, frozen=True, kw_only=True):
    enabled: bool = False
    port: int = 41411
    hold: Literal["commit", "whole"] = "commit"
    hold_whole: tuple[str, ...] = ()
    hold_s: float = HOLD_S
    commit_on_reasoning: bool = True
    keepalive_s: float | None = None
    allow_metered: bool = False
    max_body_mb: int = 32
    max_memory_mb: int = MAX_MEMORY_MB


def read_gateway(raw: object, say: Say) -> Gateway:
    plain = Gateway()
    return Gateway(
        **read(raw, GatewayTable, "gateway", say, in_use=lambda one: getattr(plain, one))
    )


def check_held(gateway: Gateway, known: Collection[str], say: Say) -> None:
    """
    Args:
        known: Names of chains, roles and backends.
    """
    for name in gateway.hold_whole:
        if name not in known:
            near = guess(name, known)
            say(
                "gateway.hold_whole",
                f"{show(name)} is no chain and no role; it has no effect.{near}",
            )


def without_circles(gateway: Gateway, found: Backends, say: Say) -> Backends:
    """Nothing is sent to a backend whose address is the gateway's own: it would ask itself."""
    if not gateway.enabled:
        return found
    backends, options = dict(found.backends), dict(found.options)
    for backend in found.backends.values():
        if backend.lacks is not None or not _is_own(gateway, backend, options[backend.id]):
            continue
        here = join(join("backends", backend.id), "base_url")
        lacks = f"its address is that of the gateway (port {gateway.port}), and what it is asked"
        lacks += f" would come back: set {here} to the provider's address, or [gateway] port to"
        lacks += " another"
        say(here, f"{lacks}. Until then nothing is sent.")
        backends[backend.id] = structs.replace(backend, lacks=lacks)
        options[backend.id] = structs.replace(options[backend.id], lacks=lacks)
    return structs.replace(found, backends=backends, options=options)


def _is_own(gateway: Gateway, backend: Backend, options: Options) -> bool:
    """Its address was accepted, or is the one that its kind has by itself."""
    endpoint = ENDPOINTS.get(backend.kind)
    if endpoint is None:
        return False
    parts = urlsplit(options.base_url or endpoint.base_url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return port == gateway.port and http_calls.is_loopback(parts.hostname or "")
