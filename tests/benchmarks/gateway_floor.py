"""
What a gateway cannot do without: the bare pass-through, a look at the request, the two decisions
of the engine, and a look at the answer. No token, no routes, no conversations, no time limits, no
record, and no second backend. `python -m tests.benchmarks.gateway_floor PORT PLACE` prints its own
port; what it stores is in PLACE.
"""

import asyncio
import logging
import signal
import sys
from contextlib import suppress
from pathlib import Path

import structlog
from tests.benchmarks import gateway_bare
from tests.support.daemon import in_process

from fallbackd.backends.passage import AnswerWatch, read_body
from fallbackd.core.events import Reported, ResolveRequested
from fallbackd.core.ids import BackendId
from fallbackd.core.policy import Entry
from fallbackd.core.protocol import HttpResponse
from fallbackd.engine import callers
from fallbackd.engine.api import Engine

BACKEND = """\
[backends.chat]
kind = "openai-http"
base_url = "http://127.0.0.1:{port}/v1"
api_mode = "chat_completions"
model = "m"
cost = "local"
"""
CHAIN = (Entry(backend=BackendId("chat")),)
_PLAIN_END = HttpResponse(status=200, gone=True)


class WatchedUpstream(gateway_bare.Upstream):
    """Reads what passes, and says when it is over."""

    def watch(self) -> asyncio.Future[AnswerWatch]:
        self.watched = AnswerWatch("chat_completions")
        self.ended = asyncio.get_running_loop().create_future()
        return self.ended

    def on_body(self, data: bytes) -> None:
        self.watched.feed(data)
        super().on_body(data)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self.ended.set_result(self.watched)


class DecidingCaller(gateway_bare.Caller):
    """Asks the engine before a request leaves, and tells it what became of the answer."""

    engine: Engine

    def on_message_complete(self) -> None:
        body = b"".join(self.pieces)
        self.task = asyncio.ensure_future(self.answered(self.outgoing(), body))

    async def answered(self, data: bytes, body: bytes) -> None:
        try:
            await self.answer(data, body)
        except BaseException:  # the next call of this connection fails, and the benchmark with it
            self.transport.abort()
            raise

    async def answer(self, data: bytes, body: bytes) -> None:
        read_body(body)
        asked = ResolveRequested(chain=CHAIN)
        found = await callers.resolve(self.engine, asked, lease=True, outlives="nothing")
        started_at = self.engine.clock.now()
        line = gateway_bare.kept.pop() if gateway_bare.kept else await self.connected()
        assert isinstance(line, WatchedUpstream)
        ended = line.watch()
        line.ask(self.transport, data)
        watched = await ended
        if watched.finish(_PLAIN_END) is not None:
            raise RuntimeError("no answer")
        said = Reported(
            chain=CHAIN,
            backend=BackendId("chat"),
            model=found.model,
            lease=found.lease_id,
            turn=found.turn,
            outcome="success",
            usage=watched.usage,
            started_at=started_at,
        )
        await callers.report(self.engine, said, outlives="nothing")


async def main(upstream: int, place: Path) -> None:
    quiet = structlog.make_filtering_bound_logger(logging.ERROR)
    structlog.configure(wrapper_class=quiet)  # standard output is for the port
    running = asyncio.current_task()
    assert running is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    async with in_process(place, BACKEND.format(port=upstream)) as daemon:
        DecidingCaller.engine = daemon.engine
        await gateway_bare.serve(lambda: DecidingCaller(upstream, WatchedUpstream))


if __name__ == "__main__":
    with suppress(asyncio.CancelledError):
        asyncio.run(main(int(sys.argv[1]), Path(sys.argv[2])))
