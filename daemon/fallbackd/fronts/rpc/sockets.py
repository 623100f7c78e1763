"""
Bytes from and to a socket that does not block.

Not by the streams of anyio: where one of those is cancelled amid a wait, in the very moment in
which the socket becomes ready or is shut down, asyncio logs a traceback of `InvalidStateError`.
"""

import socket

import anyio
import anyio.lowlevel


async def receive(peer: socket.socket, max_bytes: int) -> bytes:
    """
    What has come, at least one byte.

    Raises:
        anyio.EndOfStream: The peer sends no more.
        OSError: The connection is broken.
    """
    await anyio.lowlevel.checkpoint()
    while True:
        try:
            data = peer.recv(max_bytes)
        except BlockingIOError:
            await anyio.wait_readable(peer)
            continue
        if not data:
            raise anyio.EndOfStream
        return data


async def send(peer: socket.socket, data: bytes) -> None:
    """
    Returns when the socket has taken all of it.

    Raises:
        OSError: The connection is broken.
    """
    await anyio.lowlevel.checkpoint()
    left = memoryview(data)
    while left:
        try:
            left = left[peer.send(left) :]
        except BlockingIOError:
            await anyio.wait_writable(peer)
