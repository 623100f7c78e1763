"""The request that leaves for a backend: address, credential, and how often it has gone round."""

from collections.abc import Mapping

from msgspec import Struct

from fallbackd.backends import passage
from fallbackd.backends.passage import Passage
from fallbackd.core.ids import BackendId
from fallbackd.core.protocol import HttpRequest
from fallbackd.engine.api import Engine
from fallbackd.engine.credentials import carrying, credential_of
from fallbackd.fronts.gateway.answers import Refusal
from fallbackd.fronts.gateway.translate.translation import Translation

HOP = "x-fallbackd-hop"
"""How often a request has passed a daemon like this one: one that comes back goes round."""


class OutwardCall(Struct, frozen=True, kw_only=True):
    """What a backend is sent."""

    asked: Passage
    model: str | None
    headers: Mapping[str, str]
    body: bytes
    translation: Translation | None = None


def next_hop(named: Mapping[str, str]) -> str:
    """
    The value of `HOP` for what leaves.

    Raises:
        Refusal: It goes round in a circle.
    """
    hops = named.get(HOP, "0")
    if not hops.isdecimal() or int(hops) >= 2:
        raise Refusal(508, "this request has come back to where it began", "loop")
    return str(int(hops) + 1)


def request_to(
    engine: Engine, backend: BackendId, credential: str | None, call: OutwardCall
) -> HttpRequest:
    """
    Args:
        credential: Its label.

    Raises:
        fallbackd.backends.spec.NotConfigured: No address, or a key that would leave in the clear.
        fallbackd.backends.passage.Unreadable: The model cannot be put into the body.
    """
    kind = engine.world.kinds[engine.settings.policy.backends[backend].kind]
    assert kind.endpoint is not None
    options = engine.settings.options_of(backend)
    reference = credential_of(options, credential)
    environ = engine.world.environ
    request = passage.call_of(
        kind.endpoint,
        options,
        call.asked,
        model=call.model,
        headers=call.headers,
        body=call.body,
        credential=reference,
        inherited={name: environ[name] for name in kind.reads_env if name in environ},
    )
    carried = carrying(request, reference, options)
    assert isinstance(carried, HttpRequest)
    return carried
