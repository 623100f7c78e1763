"""Peers that misbehave disturb nobody, and lose nothing of what was accepted."""

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import anyio
from tests.support.agents import ECHO, backend_script
from tests.support.command import client_argv, client_environ
from tests.support.daemon import HANG_S, in_process, running
from tests.support.wire import Wire, wire

MIB = 2**20
WAITS = 'cat >/dev/null; echo begun; while [ ! -e "$HOME/goes" ]; do sleep 0.05; done; echo end'


async def last_line(line: Wire) -> Any:
    """The answer to something bad, after which the connection is closed."""
    answer = await line.line()
    try:
        await line.line()
    except anyio.EndOfStream:
        return answer
    raise AssertionError("the connection was not closed")


async def test_a_line_beyond_the_limit_is_answered_and_the_connection_closed(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, backend_script(tmp_path / "bin", "echo", ECHO)) as daemon:
        async with wire(daemon.socket) as line, anyio.create_task_group() as tasks:

            async def flood() -> None:
                request = {"jsonrpc": "2.0", "id": 1, "method": "delegate"}
                request["params"] = {"prompt": "x" * (5 * MIB), "backend": "echo"}  # type: ignore[assignment]
                try:
                    await line.stream.send(json.dumps(request).encode() + b"\n")
                except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                    pass  # it was closed before all was read

            tasks.start_soon(flood)
            answer = await last_line(line)
        assert answer["error"]["code"] == -32600
        assert "file" in answer["error"]["message"]
        assert (await daemon.client.call("delegation.list"))["delegations"] == []


async def test_bad_lines_are_answered_one_by_one(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon, wire(daemon.socket) as line:
        deep = b"[" * 100_000 + b"]" * 100_000
        nested = b'{"jsonrpc":"2.0","id":1,"method":"daemon.ping","params":' + b'{"a":' * 50_000
        for bad in (
            deep,
            nested + b"1" + b"}" * 50_001,
            b'{"jsonrpc":"2.0","id":1,"method":"daemon.ping\xff\xfe"}',
            b'{"jsonrpc":"2.0","id":1,',
            b"hello",
            b"\x00\x01\x02",
        ):
            await line.stream.send(bad + b"\n")
            answer = await line.line()
            assert answer["error"]["code"] in (-32700, -32600, -32602), bad[:40]
            assert "Traceback" not in json.dumps(answer)
        for odd in (b"5", b"null", b"[]", b"{}", b'{"jsonrpc":"2.0","id":1}', b'"x"'):
            await line.stream.send(odd + b"\n")
            assert (await line.line())["error"]["code"] == -32600, odd
        await line.send({"id": 7, "method": "no.such"})
        assert (await line.line())["error"]["code"] == -32601
        assert (await line.call("daemon.ping"))["result"]["pid"] == daemon.pid
    assert "Traceback" not in daemon.log()


async def test_deep_json_inside_of_params_is_bounded(tmp_path: Path) -> None:
    async with running(tmp_path, backend_script(tmp_path / "bin", "echo", ECHO)) as daemon:
        async with wire(daemon.socket) as line:
            deep = "[" * 5000 + "]" * 5000
            await line.stream.send(
                (
                    '{"jsonrpc":"2.0","id":1,"method":"delegate","params":{"prompt":"x",'
                    f'"backend":"echo","metadata":{{"deep":{deep}}}}}}}\n'
                ).encode()
            )
            answer = await line.line()
            assert answer["error"]["code"] in (-32700, -32602)
            assert (await line.call("daemon.ping"))["result"]["pid"] == daemon.pid
        assert "Traceback" not in daemon.log()


async def test_half_a_line_and_then_silence_holds_nobody_up(tmp_path: Path) -> None:
    config = backend_script(tmp_path / "bin", "echo", ECHO)
    async with running(tmp_path, config) as daemon, wire(daemon.socket) as silent:
        await silent.stream.send(b'{"jsonrpc":"2.0","id":1,"method":"delegate","par')
        done = await daemon.client.call(
            "delegate", {"prompt": "hello", "backend": "echo", "wait": "finished"}
        )
        assert done["text"] == "hello"
        assert await daemon.stop() == 0


async def test_a_client_that_vanishes_does_not_stop_the_work(tmp_path: Path) -> None:
    async with running(tmp_path, backend_script(tmp_path / "bin", "slow", WAITS)) as daemon:
        call = {"prompt": "x", "backend": "slow", "wait": "finished", "request_id": "mine"}
        async with wire(daemon.socket) as line:
            await line.send({"id": 1, "method": "delegate", "params": call})
            with anyio.fail_after(HANG_S):
                while not (await daemon.client.call("delegation.list"))["delegations"]:
                    await anyio.sleep(0.05)
        found = (await daemon.client.call("delegation.list"))["delegations"][0]
        assert found["state"] == "running"
        (daemon.home / "goes").touch()
        answer = await daemon.client.call("delegate", call)
        assert answer["delegation"] == found["delegation"]
        assert (answer["state"], answer["text"]) == ("succeeded", "begun\nend")
        assert len(answer["attempts"]) == 1


async def test_a_killed_command_line_does_not_stop_the_work(tmp_path: Path) -> None:
    async with running(tmp_path, backend_script(tmp_path / "bin", "slow", WAITS)) as daemon:
        waiting = subprocess.Popen(
            client_argv("delegate", "x", "--backend", "slow", "--request-id", "mine"),
            env=client_environ(daemon.socket),
            cwd=daemon.work_dir,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            with anyio.fail_after(HANG_S):
                while not (await daemon.client.call("delegation.list"))["delegations"]:
                    await anyio.sleep(0.05)
        finally:
            waiting.send_signal(signal.SIGKILL)
            waiting.wait()
        (daemon.home / "goes").touch()
        found = (await daemon.client.call("delegation.list"))["delegations"][0]
        done = await daemon.client.call("delegation.wait", {"delegation": found["delegation"]})
        assert (done["state"], done["request_id"]) == ("succeeded", "mine")


async def test_a_subscriber_that_does_not_read_is_dropped_and_the_other_misses_nothing(
    tmp_path: Path,
) -> None:
    """Case 000-113."""
    total = 3_000
    async with (
        in_process(tmp_path) as daemon,
        wire(daemon.socket) as silent,
        wire(daemon.socket) as reader,
    ):
        await silent.call("events.subscribe", {"kinds": ["config.reloaded"]})
        seqs: list[int] = []
        is_reading = anyio.Event()

        async def read() -> None:
            answer = await reader.call("events.subscribe", {"kinds": ["config.reloaded"]})
            assert "result" in answer
            is_reading.set()
            while len(seqs) < total:
                seqs.append((await reader.line())["params"]["seq"])

        async def happen() -> None:
            await daemon.engine.note_config(accepted=True, fields={"path": "x" * 3000})

        with anyio.fail_after(HANG_S * 3):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(read)
                await is_reading.wait()
                for _ in range(total // 500):
                    async with anyio.create_task_group() as burst:
                        for _ in range(500):
                            burst.start_soon(happen)
                assert (await daemon.client.call("daemon.ping"))["version"]
        assert len(set(seqs)) == total
        assert seqs == list(range(seqs[0], seqs[0] + total))
        told: list[dict[str, Any]] = []
        while not told or told[-1]["kind"] == "config.reloaded":
            told.append((await silent.line())["params"])
        assert told[-1]["kind"] == "subscription.dropped"
        assert len(told) < total
