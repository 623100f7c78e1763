"""
The least that a pass-through can be with the libraries of the gateway: no token, no choice, no
health, no look at the answer. `python -m tests.benchmarks.gateway_bare PORT` prints its own port.
"""

import os
import sys

import anyio
import anyio.abc
import h11
import httptools

READ_BYTES = 65536
kept: list[anyio.abc.SocketStream] = []


class Head:
    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.pieces: list[bytes] = []
        self.has_head = self.is_over = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self.has_head = True

    def on_body(self, data: bytes) -> None:
        self.pieces.append(data)

    def on_message_complete(self) -> None:
        self.is_over = True


async def passed(stream: anyio.abc.SocketStream, upstream: int) -> None:
    http = h11.Connection(h11.SERVER)
    async with stream:
        while True:
            body, request = bytearray(), None
            while True:
                event = http.next_event()
                if event is h11.NEED_DATA:
                    try:
                        http.receive_data(await stream.receive(READ_BYTES))
                    except anyio.EndOfStream:
                        return
                elif isinstance(event, h11.Request):
                    request = event
                elif isinstance(event, h11.Data):
                    body += event.data
                else:
                    break
            if request is None:
                return
            await answered(http, stream, request, bytes(body), upstream)
            if http.our_state is not h11.DONE:
                return
            http.start_next_cycle()


async def answered(
    http: h11.Connection,
    stream: anyio.abc.SocketStream,
    request: h11.Request,
    body: bytes,
    upstream: int,
) -> None:
    line = kept.pop() if kept else await anyio.connect_tcp("127.0.0.1", upstream)
    head = b"".join(b"%s: %s\r\n" % one for one in request.headers)
    await line.send(b"POST %s HTTP/1.1\r\n%s\r\n" % (request.target, head) + body)
    found = Head()
    parser = httptools.HttpResponseParser(found)
    begun = b""
    is_begun = False
    while not found.is_over:
        parser.feed_data(await line.receive(READ_BYTES))
        if found.has_head and not is_begun:
            is_begun = True
            status = parser.get_status_code()
            begun = http.send(h11.Response(status_code=status, headers=found.headers)) or b""
        for piece in found.pieces:
            begun += http.send(h11.Data(data=piece)) or b""
        found.pieces.clear()
        if found.is_over:
            begun += http.send(h11.EndOfMessage()) or b""
        if begun:
            await stream.send(begun)
            begun = b""
    kept.append(line)


async def main(upstream: int) -> None:
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
    print(listener.extra(anyio.abc.SocketAttribute.local_port), flush=True)
    await listener.serve(lambda stream: passed(stream, upstream))


if __name__ == "__main__":
    os.environ.pop("PYTHONASYNCIODEBUG", None)
    anyio.run(main, int(sys.argv[1]))
