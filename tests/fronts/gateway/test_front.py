"""What the gateway answers where its own parts fail."""

import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx2
import pytest
from structlog.testing import capture_logs
from tests.support.daemon import HANG_S
from tests.support.gateway import KINDS
from tests.support.running_engine import agent, engine_in, settings

from fallbackd.backends.passage import error_body
from fallbackd.core.protocol import HttpRequest, HttpResponse
from fallbackd.fronts.gateway.front import GatewayFront
from fallbackd.ports.transport import PassedOn, TakePiece

PIECE = b'data: {"choices":[{"index":0,"delta":{"content":"said"}}]}\n\n'
SAID = [{"role": "user", "content": "say it"}]
ASKED = {"model": "one", "messages": SAID, "input": SAID, "contents": SAID, "stream": True}
PATHS = {
    "chat_completions": "/v1/chat/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "generate_content": "/v1beta/models/one:streamGenerateContent?alt=sse",
}


class Failing:
    """A way out with a defect. See `ports.passing.PassedOn`."""

    def __init__(self, request: HttpRequest, *, says: bytes) -> None:
        self._pieces = [says] if says else []

    async def head(self) -> HttpResponse | None:
        if not self._pieces:
            raise RuntimeError("a defect")
        return HttpResponse(status=200, headers={"content-type": "text/event-stream"}, gone=True)

    async def read(self) -> bytes | None:
        if not self._pieces:
            raise RuntimeError("a defect")
        return self._pieces.pop()

    async def flow(self, take: TakePiece) -> bool:
        while (data := await self.read()) is not None:
            if not take(data):
                return False
        return True

    @property
    def exit(self) -> HttpResponse:
        return HttpResponse(status=200, gone=True)

    @property
    def stated(self) -> None:
        return None

    def masked(self, data: bytes) -> bytes:
        return data

    async def aclose(self) -> None: ...


@asynccontextmanager
async def front(
    place: Path, mode: str, fails: Callable[[HttpRequest], PassedOn]
) -> AsyncIterator[httpx2.AsyncClient]:
    kind, path = KINDS[mode]
    one = agent(
        "one",
        kind=kind,
        options={"base_url": f"http://127.0.0.1:1{path}", "api_mode": mode},
        model="m",
        cost="local",
    )

    async def pass_on(request: HttpRequest) -> PassedOn:
        return fails(request)

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        base_url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with engine_in(place, settings(one)) as engine, anyio.create_task_group() as tasks:
            gateway = GatewayFront(engine, pass_on, token=lambda: "token", allowed_uids=frozenset())
            tasks.start_soon(gateway.serve, listener)
            async with httpx2.AsyncClient(
                base_url=base_url,
                headers={"x-api-key": "token"},
                timeout=HANG_S,
                trust_env=False,
            ) as client:
                yield client
            tasks.cancel_scope.cancel()


@pytest.mark.parametrize("mode", KINDS)
async def test_a_defect_before_the_answer_is_logged_and_told_in_the_words_of_the_api(
    tmp_path: Path, mode: str
) -> None:
    with capture_logs() as logs:
        async with front(tmp_path, mode, lambda one: Failing(one, says=b"")) as client:
            answers = [await client.post(PATHS[mode], json=ASKED) for _ in range(2)]
    for answer in answers:
        assert answer.status_code == 500
        assert answer.headers["x-fallbackd-exchange"]
        error = answer.json()["error"]
        assert "defect" not in error["message"]
        like = error_body(mode, 500, error["message"], "internal")  # type: ignore[arg-type]
        assert json.loads(answer.content) == like
    failed = [one for one in logs if one["event"] == "gateway.answer_failed"]
    assert len(failed) == 2
    assert failed[0]["exc_info"]


async def test_a_defect_in_the_middle_of_an_answer_leaves_it_without_an_end(
    tmp_path: Path,
) -> None:
    with capture_logs() as logs:
        async with front(
            tmp_path, "chat_completions", lambda one: Failing(one, says=PIECE)
        ) as client:
            with pytest.raises(httpx2.RemoteProtocolError):
                await client.post(PATHS["chat_completions"], json=ASKED)
    assert [one["event"] for one in logs if one["log_level"] == "error"] == [
        "gateway.answer_failed"
    ]
