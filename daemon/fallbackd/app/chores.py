"""What is looked at again and again while the daemon lives."""

import anyio
import structlog

from fallbackd.app import private, wiring
from fallbackd.engine.api import Engine
from fallbackd.fronts.rpc.endpoint import EndpointTaken, EndpointUnusable, SocketEndpoint
from fallbackd.fronts.rpc.server import RpcServer
from fallbackd.lib import heap
from fallbackd.lib.clock import SystemClock
from fallbackd.ports.store import Store

SOCKET_LOOK_S = 2.0
PLACES_LOOK_S = 2.0
MANY_CONNECTIONS = 50
"""When so many have gone, their memory is given back."""
ALIVE_EVERY_S = 600.0

log = structlog.get_logger("daemon")


async def say_alive(store: Store, clock: SystemClock) -> None:
    while True:
        await wiring.say_alive(store, clock)
        await anyio.sleep(ALIVE_EVERY_S)


async def keep_socket(endpoint: SocketEndpoint, server: RpcServer) -> None:
    """Cleaners of temporary directories delete sockets; new callers need one."""
    told = ""
    while True:
        await anyio.sleep(SOCKET_LOOK_S)
        if endpoint.is_in_place():
            continue
        try:
            endpoint.restore()
        except (EndpointTaken, EndpointUnusable) as error:
            if str(error) != told:
                told = str(error)
                log.error("socket.lost", socket=endpoint.path, error=told)
            continue
        told = ""
        server.replace(endpoint.listener)
        log.warning("socket.restored", socket=endpoint.path)


async def keep_private(guard: private.Guard, engine: Engine, server: RpcServer) -> None:
    crowd = heap.Crowd(MANY_CONNECTIONS)
    while True:
        engine.hold_work(private.EXPOSED, guard.look())
        await anyio.sleep(PLACES_LOOK_S)
        if crowd.has_left(server.connections):
            heap.trim()
