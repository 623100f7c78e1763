"""
A chat API on loopback whose pieces say when they were written: `max_tokens` of them, `top_p`
seconds apart. Prints its port.
"""

import asyncio
import json
import time

from tests.benchmarks.chat_provider import length_of


async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        asked = json.loads(await reader.readexactly(length_of(head)))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n")
        writer.write(b"transfer-encoding: chunked\r\n\r\n")
        for _ in range(asked["max_tokens"]):
            said = str(time.perf_counter())
            choices = [{"delta": {"content": said}, "finish_reason": None}]
            write(writer, json.dumps({"choices": choices}))
            await asyncio.sleep(asked["top_p"])
        write(writer, json.dumps({"choices": [{"delta": {}, "finish_reason": "stop"}]}))
        write(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")
        await writer.drain()
    except (ConnectionError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()


def write(writer: asyncio.StreamWriter, text: str) -> None:
    data = f"data: {text}\n\n".encode()
    writer.write(b"%x\r\n%s\r\n" % (len(data), data))


async def main() -> None:
    server = await asyncio.start_server(connected, "127.0.0.1", 0, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
