"""`opencode.announce`."""

from typing import TYPE_CHECKING

from fallbackd.fronts.opencode.front import BadServer, OpencodeFront
from fallbackd.fronts.rpc.errors import RpcError
from fallbackd.fronts.rpc.host import Session
from fallbackd_client.wire import codes
from fallbackd_client.wire.methods.opencode_announce import METHOD as METHOD
from fallbackd_client.wire.methods.opencode_announce import Params, Result

if TYPE_CHECKING:
    from fallbackd.engine.loop import Engine


async def handle(engine: "Engine", params: Params, session: Session) -> Result:
    front = front_of(session)
    try:
        is_known = await front.announce(params.url, password=params.password)
    except BadServer as error:
        raise RpcError(
            codes.NOT_PERMITTED, f"`url`: {error}.", data={"path": "url", "kind": "server"}
        ) from error
    return Result(url=params.url.rstrip("/"), known=is_known, daemon=session.host.version)


def front_of(session: Session) -> OpencodeFront:
    front = session.host.opencode
    if front is None:
        raise RpcError(
            codes.DRAINING,
            "No opencode servers are watched now; ask again when the daemon is up.",
            data={"kind": "draining"},
        )
    return front
