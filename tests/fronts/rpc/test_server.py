"""A real socket, peers that misbehave, and others who must not notice."""

import asyncio
import contextlib
import json
import socket as sockets
from typing import Any

import anyio
import pytest
from tests.support.front import HANG_S, Peer, front

from fallbackd.fronts.rpc.connection import ConnectionLimits

PING = b'{"jsonrpc":"2.0","id":1,"method":"daemon.ping"}\n'


async def test_a_request_in_single_bytes_is_answered() -> None:
    async with front() as served, served.peer() as peer:
        for at in range(len(PING)):
            await peer.send(PING[at : at + 1])
        assert (await peer.line())["id"] == 1


async def test_many_requests_in_one_piece_are_all_answered_in_order() -> None:
    async with front() as served, served.peer() as peer:
        count = 2000
        lines = b"".join(
            b'{"jsonrpc":"2.0","id":%d,"method":"daemon.ping"}\n' % at for at in range(count)
        )

        async def read() -> None:
            assert [(await peer.line())["id"] for _ in range(count)] == list(range(count))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await peer.send(lines)


async def test_work_that_waits_does_not_hold_up_other_answers() -> None:
    async with front() as served, served.peer() as peer:
        await peer.ask("slow", "delegate", prompt="x", wait="finished")
        await peer.ask("fast", "daemon.ping")
        assert (await peer.line())["id"] == "fast"
        await served.engine.asked.wait()
        served.engine.end("d1", state="succeeded", text="answer")
        found = await peer.line()
        assert (found["id"], found["result"]["text"]) == ("slow", "answer")


@pytest.mark.parametrize(
    "garbage",
    [
        bytes(range(256)) * 40 + b"\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n",
        b"{" * 50_000 + b"\n",
        b'{"jsonrpc":"2.0","id":1,"method":"\xc3\x28"}\n',
        b"null\ntrue\n[]\n[[]]\n",
    ],
)
async def test_garbage_is_answered_by_errors_and_the_connection_lives(garbage: bytes) -> None:
    async with front() as served, served.peer() as other, served.peer() as peer:
        await peer.send(garbage)
        await peer.ask("after", "daemon.ping")
        errors = []
        while True:
            found = await peer.line()
            each = found if isinstance(found, list) else [found]
            if each[0]["id"] == "after":
                break
            errors += each
        assert errors
        assert all(one["error"]["code"] in (-32700, -32600) for one in errors)
        assert (await other.call("daemon.ping"))["result"]


async def test_a_line_of_the_longest_size_is_taken_and_a_longer_one_is_not() -> None:
    limits = ConnectionLimits(max_line_bytes=10_000)
    async with front(limits) as served:
        async with served.peer() as peer:
            body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "daemon.ping"})
            await peer.send(body.ljust(10_000) + "\n")
            assert (await peer.line())["id"] == 1
            await peer.send(body.ljust(10_001) + "\n")
            found = await peer.line()
            assert found["error"]["code"] == -32600
            assert found["error"]["data"]["max_bytes"] == 10_000
            assert await peer.is_closed()
        async with served.peer() as other:
            assert (await other.call("daemon.ping"))["result"]


async def test_a_peer_that_still_sends_its_endless_line_can_read_why_it_ends() -> None:
    async with front() as served, served.peer() as peer:

        async def flood() -> None:
            try:
                for _ in range(100):
                    await peer.send(b"x" * 65_536)
            except anyio.BrokenResourceError:
                pass

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(flood)
            assert (await peer.line())["error"]["code"] == -32600
            assert await peer.is_closed()


async def test_half_a_line_and_silence_disturb_nobody() -> None:
    async with front() as served, served.peer() as silent, served.peer() as other:
        await silent.send(PING[:20])
        assert (await other.call("daemon.ping"))["result"]
        await silent.send(PING[20:])
        assert (await silent.line())["id"] == 1


async def test_work_goes_on_when_its_caller_vanishes() -> None:
    async with front() as served:
        async with served.peer() as peer:
            await peer.ask(1, "delegate", prompt="x", wait="finished")
            with anyio.fail_after(HANG_S):
                await served.engine.asked.wait()
        await served.until(connections=0)
        async with served.peer() as other:
            found = await other.call("delegation.get", delegation="d1")
            assert found["result"]["state"] == "running"


def delegates(**named: int) -> bytes:
    request = {"jsonrpc": "2.0", **named, "method": "delegate", "params": {"prompt": "x"}}
    return json.dumps(request).encode() + b"\n"


async def test_work_is_begun_when_its_caller_asks_for_no_answer_and_vanishes() -> None:
    async with front() as served:
        with sockets.socket(sockets.AF_UNIX) as hasty:
            hasty.connect(served.path)
            hasty.sendall(delegates())
        with anyio.fail_after(HANG_S):
            await served.engine.asked.wait()
        assert [work.prompt for work in served.engine.works] == ["x"]
        await served.until(connections=0)


async def test_no_work_is_begun_for_a_caller_that_gave_up_before_its_request_was_read() -> None:
    """A daemon that was held still: its caller was told that nothing answers, and asks again."""
    async with front() as served:
        with sockets.socket(sockets.AF_UNIX) as hasty:
            hasty.connect(served.path)
            hasty.sendall(delegates(id=1))
        with anyio.fail_after(HANG_S):
            while not served.engine.unwanted:
                await anyio.sleep(0.005)
        await served.until(connections=0)
        assert not served.engine.works


async def test_no_work_is_begun_for_a_caller_that_gives_up_while_it_is_prepared() -> None:
    at_it, go_on = anyio.Event(), anyio.Event()

    async def prepare() -> None:
        at_it.set()
        await go_on.wait()

    async with front() as served:
        served.engine.before_delegate = prepare
        async with served.peer() as peer:
            await peer.ask(1, "delegate", prompt="x")
            with anyio.fail_after(HANG_S):
                await at_it.wait()
        await served.until(connections=0)
        go_on.set()
        with anyio.fail_after(HANG_S):
            while not served.engine.unwanted:
                await anyio.sleep(0.005)
        assert not served.engine.works


async def test_a_caller_that_only_closes_its_sending_side_gets_its_answer() -> None:
    async with front() as served, served.peer() as peer:
        await peer.ask(1, "delegate", prompt="x", wait="finished")
        await peer.stream.send_eof()
        with anyio.fail_after(HANG_S):
            await served.engine.asked.wait()
        served.engine.end("d1", state="succeeded", text="late")
        assert (await peer.line())["result"]["text"] == "late"
        assert await peer.is_closed()


async def test_a_connection_too_many_is_told_so_and_closed() -> None:
    async with front(ConnectionLimits(max_connections=2)) as served:
        async with served.peer() as one, served.peer() as two:
            assert (await one.call("daemon.ping"))["result"]
            assert (await two.call("daemon.ping"))["result"]
            async with served.peer() as third:
                assert (await third.line())["error"]["code"] == -32008
                assert await third.is_closed()
        await served.until(connections=0)
        async with served.peer() as again:
            assert (await again.call("daemon.ping"))["result"]


async def test_a_stranger_is_turned_away() -> None:
    async with front(allowed_uids=frozenset({4_000_000})) as served:
        async with served.peer() as peer:
            assert await peer.is_closed()
        assert served.server.connections == 0


async def test_too_many_waiting_requests_of_one_connection_are_refused() -> None:
    async with front(ConnectionLimits(max_in_flight=3)) as served, served.peer() as peer:
        for at in range(4):
            await peer.ask(at, "delegate", prompt="x", wait="finished")
        found = await peer.line()
        assert (found["id"], found["error"]["code"]) == (3, -32008)
        assert (await peer.call("daemon.ping"))["result"]


async def test_a_peer_that_sends_and_never_reads_is_slowed_down_not_stored() -> None:
    limits = ConnectionLimits(max_outbox_bytes=20_000, send_s=HANG_S)
    async with front(limits) as served, served.peer() as greedy, served.peer() as other:
        sent = 0
        with anyio.move_on_after(1.0):
            while True:
                await greedy.send(PING * 100)
                sent += 100
        # Nothing is read any more, so that sending has come to a stop, far from what was meant.
        assert 0 < sent < 200_000
        assert (await other.call("daemon.ping"))["result"]


async def test_a_peer_that_takes_nothing_for_too_long_is_dropped() -> None:
    limits = ConnectionLimits(max_outbox_bytes=20_000, send_s=0.2)
    async with front(limits) as served, served.peer() as other:
        async with served.peer() as greedy:
            try:
                with anyio.fail_after(HANG_S):
                    while True:
                        await greedy.send(PING * 100)
            except anyio.BrokenResourceError:
                pass
            await served.until(connections=1)
        assert (await other.call("daemon.ping"))["result"]


async def test_an_answer_larger_than_the_socket_buffer_comes_whole() -> None:
    async with front() as served, served.peer() as peer:
        text = "ä" * 3_000_000
        await peer.ask(1, "delegate", prompt="x", wait="finished")
        with anyio.fail_after(HANG_S):
            await served.engine.asked.wait()
        served.engine.end("d1", state="succeeded", text=text)
        assert (await peer.line())["result"]["text"] == text


async def test_a_peer_that_resets_in_the_middle_of_an_answer_disturbs_nobody() -> None:
    async with front() as served, served.peer() as other:
        raw = sockets.socket(sockets.AF_UNIX)
        raw.connect(served.path)
        raw.setblocking(False)
        assert raw.send(PING * 1000) > 0
        raw.close()
        assert (await other.call("daemon.ping"))["result"]
        await served.until(connections=1)


async def test_another_listener_takes_over_and_connections_stay() -> None:
    async with front() as served, served.peer() as before:
        assert (await before.call("daemon.ping"))["result"]
        path = served.path + "2"
        with sockets.socket(sockets.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen()
            served.server.replace(listener)
            async with await anyio.connect_unix(path) as stream:
                await stream.send(PING)
                with anyio.fail_after(HANG_S):
                    assert b'"pid"' in await stream.receive()
            assert (await before.call("daemon.ping"))["result"]


async def test_silent_connections_give_their_place_to_those_who_ask() -> None:
    async with (
        front(ConnectionLimits(max_connections=3, silent_s=0.0)) as served,
        served.peer() as first,
        served.peer() as garbage,
        served.peer() as silent,
    ):
        assert (await first.call("daemon.ping"))["result"]
        await garbage.send("hello\n")
        assert "error" in await garbage.line()
        await served.until(connections=3)
        async with served.peer() as fourth:
            assert (await fourth.call("daemon.ping"))["result"]
            assert await silent.is_closed()
            async with served.peer() as fifth:
                assert (await fifth.call("daemon.ping"))["result"]
                assert await garbage.is_closed()
                async with served.peer() as sixth:  # all that are left have asked
                    assert (await sixth.line())["error"]["code"] == -32008
        assert (await first.call("daemon.ping"))["result"]


async def test_who_has_asked_and_idles_gives_its_place_too_and_who_waits_does_not() -> None:
    async with (
        front(ConnectionLimits(max_connections=3, silent_s=0.0, idle_s=0.0)) as served,
        served.peer() as waits,
        served.peer() as listens,
        served.peer() as idle,
    ):
        await waits.ask(1, "delegate", prompt="x", wait="finished")
        with anyio.fail_after(HANG_S):
            await served.engine.asked.wait()
        assert (await listens.call("events.subscribe"))["result"]
        assert (await idle.call("daemon.ping"))["result"]
        async with served.peer() as newcomer:
            assert (await newcomer.call("daemon.ping"))["result"]
            assert await idle.is_closed()
        served.engine.end("d1", state="succeeded", text="late")
        assert (await waits.line())["result"]["text"] == "late"


async def test_a_line_that_never_ends_is_told_so_and_closed() -> None:
    async with (
        front(ConnectionLimits(line_s=0.2)) as served,
        served.peer() as half,
        served.peer() as other,
    ):
        await half.send('{"jsonrpc":"2.0","id":1,')
        found = await half.line()
        assert found["error"]["code"] == -32600
        assert "0.2 s" in found["error"]["message"]
        assert await half.is_closed()
        assert (await other.call("daemon.ping"))["result"]


async def test_unfinished_lines_of_all_together_are_bounded_and_the_oldest_goes() -> None:
    limits = ConnectionLimits(max_connections=4, max_lines_bytes=400_000)
    async with front(limits) as served, served.peer() as small:
        await small.send("x" * 1000)
        async with served.peer() as first, served.peer() as second, served.peer() as third:
            for number, greedy in enumerate((first, second), start=1):
                await greedy.send("x" * 150_000)
                with anyio.fail_after(HANG_S):
                    while served.server.held_bytes < 1000 + number * 150_000:
                        await anyio.sleep(0.005)
            await third.send("x" * 150_000)
            assert await first.is_closed()
            await second.send(" \n")
            assert "error" in await second.line()
            assert served.server.held_bytes < 400_000
            await small.send("\n")
            assert "error" in await small.line()


async def test_answers_that_nobody_reads_are_bounded_for_one_connection() -> None:
    limits = ConnectionLimits(max_unsent_bytes=1_000_000, send_s=HANG_S)
    async with front(limits) as served, served.peer() as other:
        async with served.peer() as greedy:
            for at in range(6):
                await greedy.ask(at, "delegate", prompt="x", wait="finished")
            with anyio.fail_after(HANG_S):
                while len(served.engine.works) < 6:
                    await anyio.sleep(0.005)
            for at in range(6):
                served.engine.end(f"d{at + 1}", state="succeeded", text="x" * 400_000)
            await served.until(connections=1)
        assert served.server.held_bytes == 0
        assert (await other.call("daemon.ping"))["result"]


async def test_who_reads_least_goes_when_much_is_unsent_to_all() -> None:
    limits = ConnectionLimits(max_unsent_bytes_of_all=1_000_000, send_s=HANG_S)
    async with front(limits) as served, served.peer() as reads:
        async with served.peer() as greedy, served.peer() as modest:
            await greedy.ask(1, "delegate", prompt="x", wait="finished")
            await modest.ask(2, "delegate", prompt="x", wait="finished")
            with anyio.fail_after(HANG_S):
                while len(served.engine.works) < 2:
                    await anyio.sleep(0.005)
            served.engine.end("d2", state="succeeded", text="x" * 400_000)
            served.engine.end("d1", state="succeeded", text="x" * 1_200_000)
            await served.until(connections=2)
            assert (await modest.line())["id"] == 2
        assert (await reads.call("daemon.ping"))["result"]


async def test_many_waiting_requests_of_all_leave_each_connection_its_share() -> None:
    limits = ConnectionLimits(max_in_flight_of_all=2, fair_in_flight=1)
    async with front(limits) as served, served.peer() as greedy, served.peer() as modest:
        for at in range(3):
            await greedy.ask(at, "delegate", prompt="x", wait="finished")
        found = await greedy.line()
        assert (found["id"], found["error"]["code"]) == (2, -32008)
        await modest.ask("m", "delegate", prompt="x", wait="finished")
        await modest.ask("n", "delegate", prompt="x", wait="finished")
        found = await modest.line()
        assert (found["id"], found["error"]["code"]) == ("n", -32008)


async def test_an_http_request_is_turned_down_with_its_body() -> None:
    async with front() as served, served.peer() as peer:
        await peer.send("POST /x HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await peer.send(PING)
        assert (await peer.line())["error"]["code"] == -32600
        assert await peer.is_closed()


async def test_a_dropped_flood_of_unread_answers_leaves_no_traceback() -> None:
    limits = ConnectionLimits(
        max_outbox_bytes=1_000_000, max_unsent_bytes_of_all=3_000_000, send_s=HANG_S
    )
    loop = asyncio.get_running_loop()
    broken: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: broken.append(context))
    ask = b'{"jsonrpc":"2.0","id":1,"method":"rpc.discover"}\n' * 20

    async def flood(peer: Peer) -> None:
        with contextlib.suppress(anyio.BrokenResourceError):
            while True:
                await peer.send(ask)

    async with front(limits) as served, contextlib.AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(served.peer()) for _ in range(12)]
        async with anyio.create_task_group() as tasks:
            for peer in peers:
                tasks.start_soon(flood, peer)
            with anyio.fail_after(HANG_S):
                while served.server.connections > 2:
                    await anyio.sleep(0.005)
            tasks.cancel_scope.cancel()
    assert broken == []
