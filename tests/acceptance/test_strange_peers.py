"""What a caller may ask that hides where it comes from: no more than the process that connected."""

import array
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from tests.support.agents import program
from tests.support.daemon import HANG_S, Daemon, running

from fallbackd_client.errors import RpcError

TALK = """
import array, json, os, socket, subprocess, sys, time
def connected():
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(60)
    peer.connect(SOCKET)
    return peer
def ask(peer, method="daemon.ping"):
    peer.sendall(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method}).encode() + b"\\n")
    answer = json.loads(peer.makefile().readline())
    return answer.get("result") or answer["error"]
def without_parent(work):
    # In a process whose parent has exited before it works.
    read, write = os.pipe()
    if os.fork() == 0:
        parent = os.getpid()
        if os.fork() == 0:
            while os.getppid() == parent:
                time.sleep(0.01)
            os.write(write, json.dumps(work()).encode())
        os._exit(0)
    os.close(write)
    return json.loads(os.read(read, 9999))
def after_the_parent(peer):
    return without_parent(lambda: ask(peer))
def elsewhere(*wrap):
    # Of a program in another environment, session or namespace; what this machine refuses is left.
    own = [sys.executable, "-I", __file__, "ping"]
    done = subprocess.run([*wrap, *own], capture_output=True, text=True)
    return json.loads(done.stdout or subprocess.check_output(own, text=True))
def passed_on(place):
    peer = connected()
    with socket.socket(socket.AF_UNIX) as out:
        out.connect(place)
        handles = array.array("i", [peer.fileno()])
        out.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, handles)])
        out.recv(1)
    return ask(peer)
"""
SPACE = ["--pid", "--fork"] if os.geteuid() == 0 else ["-Ur", "--pid", "--fork"]
WAYS = {
    "a double fork": "without_parent(lambda: ask(connected()))",
    "a parent that exits between connecting and asking": "after_the_parent(connected())",
    "a session of its own": 'elsewhere("setsid", "-w")',
    "no environment": 'elsewhere("env", "-i")',
    "namespaces of its own": f'elsewhere("unshare", {", ".join(map(repr, SPACE))})',
    "namespaces within such": f'elsewhere(*["unshare", *{SPACE!r}] * 2)',
}


def with_agent(tmp_path: Path) -> str:
    path = program(tmp_path / "bin", "agent", "exit 1")
    return f'[backends.agent]\nkind = "generic-cli"\ncommand = ["{path}"]\n'


async def said_inside(daemon: Daemon, code: str) -> tuple[str, Any]:
    """The attempt of a confined agent that may only read, and what it prints, as JSON."""
    talk = f'print(json.dumps(ask(connected()) if sys.argv[1:] == ["ping"] else {code}))'
    done = await begun_inside(daemon, talk, permissions="read")
    assert done["state"] == "succeeded", done
    return done["attempts"][0]["attempt"], json.loads(done["text"])


async def begun_inside(daemon: Daemon, code: str, **params: Any) -> dict[str, Any]:
    path = daemon.bin_dir / "agent.py"
    path.write_text(TALK.replace("SOCKET", repr(daemon.socket), 1) + code)
    program(daemon.bin_dir, "agent", f"exec {sys.executable} -I {path}")
    given = {"backend": "agent", "prompt": "x", "cwd": str(daemon.work_dir), **params}
    done: dict[str, Any] = await daemon.client.call("delegate", {**given, "wait": "finished"})
    return done


@pytest.mark.parametrize("way", WAYS)
async def test_a_process_inside_an_attempt_stays_inside(tmp_path: Path, way: str) -> None:
    async with running(tmp_path, with_agent(tmp_path)) as daemon:
        attempt, pong = await said_inside(daemon, WAYS[way])
        assert (pong["attempt"], pong["permissions"]) == (attempt, "read")


async def test_a_connection_that_is_passed_to_a_process_outside_gives_it_no_more(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, with_agent(tmp_path)) as daemon:
        place = daemon.runtime_dir / "taker"
        with socket.socket(socket.AF_UNIX) as taker:
            taker.bind(str(place))
            taker.listen()

            def take() -> socket.socket:
                taker.settimeout(HANG_S)
                with taker.accept()[0] as peer:
                    passed = _received(peer)
                    answers.extend([ask(passed), ask(passed, "config.get")])
                    peer.send(b"x")
                    return passed

            answers: list[Any] = []
            kept: list[socket.socket] = []
            async with anyio.create_task_group() as tasks:

                async def taking() -> None:
                    kept.append(await anyio.to_thread.run_sync(take))

                tasks.start_soon(taking)
                attempt, pong = await said_inside(daemon, f"passed_on({str(place)!r})")
        with kept[0] as passed:
            work = {"prompt": "x", "backend": "agent", "cwd": str(daemon.work_dir)}
            late = await anyio.to_thread.run_sync(lambda: ask(passed, "delegate", **work))
        assert pong["attempt"] == answers[0]["attempt"] == attempt
        assert answers[0]["permissions"] == "read"
        assert "only a person may do this" in answers[1]["message"]
        assert f"the attempt {attempt} from which this comes has ended" in late["message"]


def _received(peer: socket.socket) -> socket.socket:
    _, sent, _, _ = peer.recvmsg(1, socket.CMSG_SPACE(array.array("i").itemsize))
    (handle,) = array.array("i", sent[0][2])
    passed = socket.socket(fileno=handle)
    passed.settimeout(HANG_S)
    return passed


def ask(peer: socket.socket, method: str = "daemon.ping", **params: Any) -> Any:
    call = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    peer.sendall(json.dumps(call).encode() + b"\n")
    with peer.makefile() as lines:
        answer = json.loads(lines.readline())
    return answer.get("result") or answer["error"]


LEAVES = """
import socket, sys
peer = socket.socket(socket.AF_UNIX, fileno=int(sys.argv[2]))
peer.connect(sys.argv[1])
"""


async def test_a_process_that_has_exited_before_it_was_looked_at_may_ask_next_to_nothing(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, with_agent(tmp_path)) as daemon:
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(HANG_S)
            daemon.send(signal.SIGSTOP)
            try:
                subprocess.run(
                    [sys.executable, "-I", "-c", LEAVES, daemon.socket, str(peer.fileno())],
                    pass_fds=[peer.fileno()],
                    check=True,
                    timeout=HANG_S,
                )
            finally:
                daemon.send(signal.SIGCONT)

            def asked() -> list[Any]:
                work = {"prompt": "x", "backend": "agent", "cwd": str(daemon.work_dir)}
                return [ask(peer), ask(peer, "delegate", **work), ask(peer, "config.get")]

            pong, *refused = await anyio.to_thread.run_sync(asked)
        assert (pong.get("attempt"), pong["permissions"]) == (None, None)
        for one in refused:
            assert one["data"]["kind"] == "not_permitted"
            assert "it has exited already" in one["message"]


KILLS = """
def kills(place):
    # The supervisor, as a program that carries no mark by which it would be ended.
    if sys.argv[1:] != ["ping", "kills"]:
        own = [sys.executable, "-I", __file__, "ping", "kills"]
        subprocess.run(["env", "-i", "setsid", "-f", *own])
        time.sleep(600)  # the supervisor would end what is left of an agent that has ended
    above = os.getppid()
    while "fallbackd-run" not in open(f"/proc/{above}/comm").read():
        above = int(open(f"/proc/{above}/stat").read().rpartition(")")[2].split()[1])
    with open(place + ".pid", "w") as file:
        file.write(str(os.getpid()))
    os.kill(above, 9)
    while os.path.exists(f"/proc/{above}"):
        time.sleep(0.01)
    with open(place + ".new", "w") as file:
        json.dump([ask(connected()), ask(connected(), "config.get")], file)
    os.rename(place + ".new", place)
    os._exit(0)
"""


async def test_an_agent_that_kills_its_supervisor_becomes_no_person(tmp_path: Path) -> None:
    async with running(tmp_path, with_agent(tmp_path)) as daemon:
        place = tmp_path / "said"
        work = {"permissions": "full", "failover": False}
        code = KILLS + f"kills({str(place)!r})"
        await begun_inside(daemon, code, **work)
        asks = tmp_path / "said.pid"
        with anyio.fail_after(HANG_S):
            while not asks.exists() or Path(f"/proc/{asks.read_text()}").exists():
                await anyio.sleep(0.05)
        if not place.exists():
            return  # the daemon has ended it in time
        pong, refused = json.loads(place.read_text())
        assert (pong.get("attempt"), pong["permissions"]) == (None, None)
        assert "was killed" in refused["message"]


@pytest.mark.root
async def test_a_process_that_the_daemon_cannot_see_may_ask_next_to_nothing(
    tmp_path: Path,
) -> None:
    wrapper = (str(shutil.which("unshare")), "--pid", "--fork", "--mount-proc", "--kill-child")
    async with running(tmp_path, with_agent(tmp_path), wrapper=wrapper) as daemon:
        pong = await daemon.client.call("daemon.ping")
        assert (pong.get("attempt"), pong["permissions"], pong["pid"]) == (None, None, 1)
        with pytest.raises(RpcError, match="give both one PID namespace"):
            await daemon.client.call("config.get")
        children = Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGTERM)
        await daemon.wait()
