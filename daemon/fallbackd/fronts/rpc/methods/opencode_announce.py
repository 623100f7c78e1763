"""`opencode.announce`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fallbackd.fronts.opencode.front import BadServer, OpencodeFront, is_usable
from fallbackd.fronts.opencode.plugin_link import PluginLink
from fallbackd.fronts.rpc.errors import RpcError
from fallbackd.fronts.rpc.host import Session
from fallbackd.lib.listeners import listens
from fallbackd_client.wire import codes
from fallbackd_client.wire.envelope import encode_notification
from fallbackd_client.wire.methods.opencode_announce import METHOD as METHOD
from fallbackd_client.wire.methods.opencode_announce import Params, Result

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine


async def handle(engine: "Engine", params: Params, session: Session) -> Result:
    front = front_of(session)
    directory = params.directory or ""
    try:
        if params.plugin and not _is_at(session, params.url):
            is_known = link_of(session) is not None
            name = _attach(front, session, directory=directory)
            return Result(url=name, known=is_known, daemon=session.host.version, via="plugin")
        is_known = await front.announce(params.url, password=params.password, directory=directory)
    except BadServer as error:
        raise RpcError(
            codes.NOT_PERMITTED, f"`url`: {error}.", data={"path": "url", "kind": "server"}
        ) from error
    return Result(url=params.url.rstrip("/"), known=is_known, daemon=session.host.version)


def _is_at(session: Session, url: str) -> bool:
    """
    An opencode without a port names one all the same, at which another one may listen. The
    caller is a part of the process that it announces.
    """
    return is_usable(url) and session.peer_pid is not None and listens(session.peer_pid, url)


def _attach(front: OpencodeFront, session: Session, *, directory: str) -> str:
    name = f"plugin:{session.peer_pid or 0}:{directory}"

    def tell(call: Mapping[str, Any]) -> None:
        session.write(encode_notification("opencode.call", call))

    if front.attach(name, session.number, tell, directory=directory):
        session.on_close(lambda: front.detach(name, session.number))
    return name


def link_of(session: Session) -> PluginLink | None:
    """Of an opencode whose plugin is at the other end of a connection."""
    front = session.host.opencode
    return None if front is None else front.attached(session.number)


def front_of(session: Session) -> OpencodeFront:
    front = session.host.opencode
    if front is None:
        raise RpcError(
            codes.DRAINING,
            "No opencode servers are watched now; ask again when the daemon is up.",
            data={"kind": "draining"},
        )
    return front
