"""The end of what a peer sends, met without reading it."""

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing

import anyio
import anyio.lowlevel
import pytest
from tests.support.daemon import HANG_S

from fallbackd.fronts.gateway.server import HangUpWatch


def unix_pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair()


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        peer = socket.create_connection(listener.getsockname())
        return listener.accept()[0], peer


both = pytest.mark.parametrize("pair", [unix_pair, tcp_pair])
Pair = Callable[[], tuple[socket.socket, socket.socket]]


@asynccontextmanager
async def watched(own: socket.socket) -> AsyncIterator[tuple[HangUpWatch, list[str], anyio.Event]]:
    told: list[str] = []
    heard = anyio.Event()

    def tell() -> None:
        told.append("gone")
        heard.set()

    watch = HangUpWatch(own, tell)
    try:
        with anyio.fail_after(HANG_S):
            yield watch, told, heard
    finally:
        watch.close()


@both
@pytest.mark.parametrize("leaves", ["closes", "closes its side"])
async def test_a_peer_that_leaves_is_noticed_once_behind_bytes_that_are_not_read(
    pair: Pair, leaves: str
) -> None:
    own, peer = pair()
    with closing(own), closing(peer):
        async with watched(own) as (_, told, heard):
            peer.sendall(b"x" * 10_000)
            for _ in range(9):
                await anyio.lowlevel.checkpoint()
            assert told == []
            if leaves == "closes":
                peer.close()
            else:
                peer.shutdown(socket.SHUT_WR)
            await heard.wait()
            for _ in range(9):
                await anyio.lowlevel.checkpoint()
            assert told == ["gone"]
        assert own.recv(10_000) == b"x" * 10_000


@both
async def test_nothing_is_told_behind_the_end_of_the_watch(pair: Pair) -> None:
    own, peer = pair()
    with closing(own), closing(peer):
        async with watched(own) as (watch, told, _), watched(own) as (_, _, heard):
            watch.close()
            watch.close()
            peer.close()
            await heard.wait()  # the other one
            assert told == []
