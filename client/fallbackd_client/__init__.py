"""
Talk to a running fallbackd: a blocking client, an async client, a command line.

The public names are loaded on first use, so that `fallbackd_client.wire` and the command line
stay as light as what they need.
"""

TYPE_CHECKING = False  # `typing` costs more than the rest of this module together
if TYPE_CHECKING:
    from fallbackd_client.aio import AsyncClient as AsyncClient
    from fallbackd_client.client import Client as Client
    from fallbackd_client.errors import ClientError as ClientError
    from fallbackd_client.errors import NoDaemon as NoDaemon
    from fallbackd_client.errors import NotSendable as NotSendable
    from fallbackd_client.errors import ProtocolError as ProtocolError
    from fallbackd_client.errors import RequestTooLarge as RequestTooLarge
    from fallbackd_client.errors import RpcError as RpcError

__version__ = "0.2.0"

_HOMES = {
    "AsyncClient": "aio",
    "Client": "client",
    "ClientError": "errors",
    "NoDaemon": "errors",
    "NotSendable": "errors",
    "ProtocolError": "errors",
    "RequestTooLarge": "errors",
    "RpcError": "errors",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = __import__(f"{__name__}.{home}", fromlist=[name])
    return getattr(module, name)
