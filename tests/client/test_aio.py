import socket
import threading
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from tests.client.scripted import Failing, Peer, answering, serving

from fallbackd_client.aio import AsyncClient
from fallbackd_client.errors import NoDaemon, ProtocolError, RequestTooLarge, RpcError
from fallbackd_client.wire.methods.daemon import DAEMON_PING, DaemonPingParams

PONG = {"version": "1", "pid": 7, "at": 1.0}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "control.sock"


def hang_up(peer: Peer) -> None:
    peer.read()


async def test_calls_at_once_share_a_connection_and_get_answers_in_any_order(path: Path) -> None:
    def script(peer: Peer) -> None:
        requests = [peer.read() for _ in range(3)]
        for request in reversed(requests):
            assert request is not None
            peer.answer(request, request["params"]["n"])

    found: dict[int, Any] = {}
    with serving(path, script) as server:
        async with AsyncClient(str(path)) as client:

            async def one(number: int) -> None:
                found[number] = await client.call("status", {"n": number})

            with anyio.fail_after(60):
                async with anyio.create_task_group() as calls:
                    for number in range(3):
                        calls.start_soon(one, number)
    assert found == {0: 0, 1: 1, 2: 2}
    assert server.accepted == 1


async def test_a_request_that_is_not_answered_in_time_is_not_begun_later(path: Path) -> None:
    """Its connection is closed, which the daemon sees; other calls of it are made on another."""
    closed = threading.Event()

    def hold(peer: Peer) -> None:
        while peer.read() is not None:
            pass
        closed.set()

    found: list[Any] = []
    with serving(path, hold, answering({"status": "here"})) as server:
        async with AsyncClient(str(path)) as client, anyio.create_task_group() as calls:

            async def look() -> None:
                found.append(await client.call("status"))

            calls.start_soon(look)
            with pytest.raises(NoDaemon) as raised:
                await client.call("delegate", {"prompt": "x"}, timeout_s=0.05)
            assert await anyio.to_thread.run_sync(closed.wait, 60)
    sent = next(one for one in server.requests if one["method"] == "delegate")
    assert raised.value.request_id == sent["params"]["request_id"]
    assert found == ["here"]


async def test_an_error_of_the_daemon_is_raised(path: Path) -> None:
    with serving(path, answering({"health": Failing(-32001, "no such")})):
        async with AsyncClient(str(path)) as client:
            with pytest.raises(RpcError, match="no such") as raised:
                await client.call("health")
    assert raised.value.code == -32001


async def test_only_what_is_safe_is_repeated_after_a_loss(path: Path) -> None:
    script = answering({"delegate": "done"})
    with serving(path, hang_up, hang_up, script) as server:
        async with AsyncClient(str(path)) as client:
            with pytest.raises(NoDaemon) as raised:
                await client.call("report", {"backend": "codex"})
            assert await client.call("delegate", {"prompt": "x"}) == "done"
    assert raised.value.cause == "closed"
    assert server.methods() == ["report", "delegate", "delegate"]
    assert len({one["params"].get("request_id") for one in server.requests[1:]}) == 1


async def test_a_daemon_that_dies_in_the_middle_of_its_answers_is_asked_again(path: Path) -> None:
    def half(peer: Peer) -> None:
        requests = [peer.read() for _ in range(3)]
        assert requests[0] is not None
        peer.raw(b'{"jsonrpc":"2.0","id":%d,"result":{"te' % requests[0]["id"])

    answers = {"delegate": lambda params: params["request_id"], "status": "here"}
    found: dict[str, Any] = {}
    with serving(path, half, answering(answers)):
        async with AsyncClient(str(path)) as client:

            async def one(name: str) -> None:
                found[name] = await client.call("delegate", {"prompt": "x", "request_id": name})

            with anyio.fail_after(60):
                async with anyio.create_task_group() as calls:
                    for name in ("a", "b", "c"):
                        calls.start_soon(one, name)
    assert found == {"a": "a", "b": "b", "c": "c"}


async def test_the_call_after_a_loss_waits_for_the_daemon_too(path: Path) -> None:
    async with AsyncClient(str(path), connect_s=0, reconnect_s=60) as client:
        with serving(path, hang_up), pytest.raises(NoDaemon):
            await client.call("config.reload")
        found: list[Any] = []

        async def ask() -> None:
            found.append(await client.call("report", {"backend": "codex"}))

        with anyio.fail_after(60):
            async with anyio.create_task_group() as calls:
                calls.start_soon(ask)
                await anyio.lowlevel.checkpoint()  # it finds nobody there
                with serving(path, answering({"report": "taken"})):
                    while not found:
                        await anyio.sleep(0.01)
    assert found == ["taken"]


async def test_a_cancelled_call_leaves_the_connection_to_the_others(path: Path) -> None:
    heard, cancelled = threading.Event(), threading.Event()

    def script(peer: Peer) -> None:
        slow = peer.read()
        assert slow is not None
        heard.set()
        assert cancelled.wait(60)
        quick = peer.read()
        assert quick is not None
        peer.answer(slow, "late")
        peer.answer(quick, "quick")

    with serving(path, script) as server:
        async with AsyncClient(str(path)) as client:
            async with anyio.create_task_group() as calls:
                calls.start_soon(client.call, "status")
                assert await anyio.to_thread.run_sync(heard.wait, 60)
                calls.cancel_scope.cancel()
            cancelled.set()
            with anyio.fail_after(60):
                assert await client.call("usage") == "quick"
    assert server.accepted == 1


async def test_no_socket_and_a_refusing_one_are_told_apart(path: Path) -> None:
    async with AsyncClient(str(path), connect_s=0) as client:
        with pytest.raises(NoDaemon) as raised:
            await client.call("status")
        assert raised.value.cause == "missing"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as left_over:
            left_over.bind(str(path))
        with pytest.raises(NoDaemon) as raised:
            await client.call("status")
        assert raised.value.cause == "refused"


async def test_an_answer_that_does_not_come_is_a_timeout(path: Path) -> None:
    def silent(peer: Peer) -> None:
        while peer.read():
            pass

    with serving(path, silent):
        async with AsyncClient(str(path)) as client:
            with pytest.raises(NoDaemon) as raised:
                await client.call("status", timeout_s=0.05)
    assert raised.value.cause == "timeout"


@pytest.mark.parametrize("line", [b"HTTP/1.1 400 Bad Request\r\n", b"\xff\n"])
async def test_something_else_that_listens_there_is_a_bad_reply(path: Path, line: bytes) -> None:
    def script(peer: Peer) -> None:
        peer.read()
        peer.raw(line)

    with serving(path, script):
        async with AsyncClient(str(path)) as client:
            with pytest.raises(NoDaemon) as raised:
                await client.call("status")
    assert raised.value.cause == "bad_reply"


async def test_a_request_beyond_the_limit_is_not_sent(path: Path) -> None:
    with serving(path, answering({"daemon.ping": PONG})) as server:
        async with AsyncClient(str(path)) as client:
            with pytest.raises(RequestTooLarge):
                await client.call("delegate", {"prompt": "x" * (5 * 1024 * 1024)})
            assert await client.call("daemon.ping") == PONG
    assert server.methods() == ["daemon.ping"]


async def test_a_typed_request_comes_back_typed(path: Path) -> None:
    with serving(path, answering({"daemon.ping": [PONG, {"pid": "seven"}]})):
        async with AsyncClient(str(path)) as client:
            assert (await client.request(DAEMON_PING, DaemonPingParams())).pid == 7
            with pytest.raises(ProtocolError):
                await client.request(DAEMON_PING, DaemonPingParams())


async def test_a_client_that_was_not_entered_says_so(path: Path) -> None:
    with pytest.raises(RuntimeError, match="async with"):
        await AsyncClient(str(path)).call("status")


async def test_events_go_on_behind_the_last_one_after_a_loss(path: Path) -> None:
    def subscribed(peer: Peer, seq: int) -> None:
        request = peer.read()
        assert request is not None
        peer.event(seq=seq, at=1.0, kind="health.moved")
        peer.answer(request, {"subscription": "s", "seq": seq})

    def first(peer: Peer) -> None:
        subscribed(peer, 5)
        peer.event(seq=6, at=1.0, kind="health.moved")

    def second(peer: Peer) -> None:
        subscribed(peer, 6)
        peer.event(seq=7, at=1.0, kind="health.moved")
        peer.event(at=1.0, kind="subscription.dropped")
        peer.read()

    def third(peer: Peer) -> None:
        subscribed(peer, 8)
        peer.read()

    with serving(path, first, second, third) as server:
        async with AsyncClient(str(path)) as client, aclosing(client.events(since=4)) as events:
            with anyio.fail_after(60):
                found = [(await anext(events))["seq"] for _ in range(4)]
    assert found == [5, 6, 7, 8]
    assert [request["params"]["since"] for request in server.requests] == [4, 6, 7]


async def test_a_subscription_that_nobody_answers_is_given_up(path: Path) -> None:
    with serving(path, hang_up):
        async with AsyncClient(str(path)) as client, aclosing(client.events()) as events:
            with pytest.raises(NoDaemon) as raised:
                await anext(events)
    assert raised.value.cause == "closed"
