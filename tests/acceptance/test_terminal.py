"""The command line on a terminal, as a person sees it."""

import os
import pty
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from tests.support.agents import THROTTLED, backend_script, chain
from tests.support.command import client_argv, client_environ, run_client
from tests.support.daemon import HANG_S, Daemon, running

EVIL = r"""cat >/dev/null
printf '\033]0;owned\007\033[31mred\033[0m\033[2J \302\2331m \342\200\256 end\n'
printf 'error \033[5mline\033[0m\n' >&2
while [ ! -e "$HOME/goes" ]; do sleep 0.05; done
printf 'last\r\n'"""
OURS = re.compile(rb"\r|\n|\x1b\[\d*(?:;\d+)*[mAHJK]|\x1b\[\?(?:7|25)[hl]")
"""What the command line itself sends to a terminal."""


class Terminal:
    """A command on a terminal of its own, and everything that the terminal was sent."""

    def __init__(self, process: subprocess.Popen[bytes], fd: int) -> None:
        self.process = process
        self.seen = b""
        self._fd = fd

    async def until(self, words: str) -> None:
        with anyio.fail_after(HANG_S):
            while words not in self.seen.decode(errors="replace"):
                await anyio.wait_readable(self._fd)
                self._read()

    async def ends(self) -> int:
        """What it wrote last may come after its end: the terminal passes it on in its own time."""
        with anyio.fail_after(HANG_S):
            while not self._read():
                await anyio.wait_readable(self._fd)
            return await anyio.to_thread.run_sync(self.process.wait)

    def _read(self) -> bool:
        """Whether the other end is closed."""
        try:
            while data := os.read(self._fd, 65_536):
                self.seen += data
        except BlockingIOError:
            return False  # nothing more now
        except OSError:
            pass
        return True

    def plain(self) -> bytes:
        return OURS.sub(b"", self.seen)


@contextmanager
def terminal(daemon: Daemon, *arguments: str, **env: str) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)
    process = subprocess.Popen(
        client_argv(*arguments),
        env=client_environ(daemon.socket, {"TERM": "xterm", **env}),
        cwd=daemon.work_dir,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        # As at a terminal: tests that run in the background have it ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def config_of(tmp_path: Path) -> str:
    bin_dir = tmp_path / "bin"
    return (
        backend_script(bin_dir, "first", THROTTLED)
        + backend_script(bin_dir, "evil", EVIL)
        + chain("first", "evil")
    )


async def newest(daemon: Daemon) -> dict[str, Any]:
    found: dict[str, Any] = (await daemon.client.call("delegation.list"))["delegations"][0]
    return found


def assert_harmless(shown: bytes) -> None:
    text = shown.decode()
    assert all(one.isprintable() or one in "\n\t" for one in text), repr(text)


async def test_progress_the_hop_and_a_harmless_answer_are_shown(tmp_path: Path) -> None:
    async with running(tmp_path, config_of(tmp_path)) as daemon:
        with terminal(daemon, "delegate", "x", "--backend", "first") as shown:
            await shown.until("first is rate-limited")
            await shown.until("continuing with evil")
            (daemon.home / "goes").touch()
            assert await shown.ends() == 0
        assert_harmless(shown.plain())
        assert b"red" in shown.plain()
        assert b"last" in shown.plain()
        assert b"owned" not in shown.plain()


async def test_ctrl_c_tells_how_to_find_the_work_which_goes_on(tmp_path: Path) -> None:
    async with running(tmp_path, config_of(tmp_path)) as daemon:
        with terminal(daemon, "delegate", "x", "--backend", "first") as shown:
            await shown.until("continuing with evil")
            shown.process.send_signal(signal.SIGINT)
            assert await shown.ends() == 130
        begun = await newest(daemon)
        assert begun["delegation"].encode() in shown.plain()
        assert b"Traceback" not in shown.plain()
        assert begun["state"] == "running"
        (daemon.home / "goes").touch()
        ran = await run_client(daemon.socket, "wait", begun["delegation"])
        assert ran.code == 0
        assert "last" in ran.out


async def test_the_log_is_followed_to_the_end_without_control_characters(tmp_path: Path) -> None:
    async with running(tmp_path, config_of(tmp_path)) as daemon:
        begun = await daemon.client.call(
            "delegate", {"prompt": "x", "backend": "evil", "settle_s": 60}
        )
        with terminal(daemon, "log", "-f", begun["delegation"]) as shown:
            await shown.until("red")
            (daemon.home / "goes").touch()
            await shown.until("last")
            assert await shown.ends() == 0
        assert_harmless(shown.plain())
        assert b"owned" not in shown.plain()


async def test_a_watched_status_follows_what_happens(tmp_path: Path) -> None:
    async with running(tmp_path, config_of(tmp_path)) as daemon:
        with terminal(daemon, "status", "--watch", NO_COLOR="1") as shown:
            await shown.until("BACKEND")
            await daemon.client.call(
                "health", {"action": "mark", "target": "evil", "reason": "\x1b[31mwords\x07"}
            )
            await shown.until("broken")
            await shown.until("manual: words")
            shown.process.send_signal(signal.SIGINT)
            assert await shown.ends() in (0, 130)
        assert_harmless(shown.plain())
        assert not re.search(rb"\x1b\[3\dm", shown.seen), "no colour where none is wanted"
        assert b"Traceback" not in shown.plain()
        assert b"words: words" not in shown.plain()


async def test_colours_are_for_terminals_only(tmp_path: Path) -> None:
    async with running(tmp_path, config_of(tmp_path)) as daemon:
        with terminal(daemon, "health") as coloured:
            assert await coloured.ends() == 0
        with terminal(daemon, "health", NO_COLOR="1") as plain:
            assert await plain.ends() == 0
        piped = await run_client(daemon.socket, "health")
        assert b"\x1b[" in coloured.seen
        assert b"\x1b[" not in plain.seen
        assert "\x1b[" not in piped.out
        assert "evil" in piped.out


async def test_an_interruption_begins_a_line_of_its_own(tmp_path: Path) -> None:
    async with running(tmp_path, config_of(tmp_path)) as daemon:
        await daemon.client.call("health", {"action": "pause", "target": "first"})
        with terminal(daemon, "events", "--since", "0") as shown:
            await shown.until("\n")
            shown.process.send_signal(signal.SIGINT)
            assert await shown.ends() == 130
            assert shown.seen.endswith(b"\r\n\r\ninterrupted\r\n")


async def test_events_end_with_the_reader_of_their_pipe(tmp_path: Path) -> None:
    async with running(tmp_path, config_of(tmp_path)) as daemon:
        await daemon.client.call("health", {"action": "pause", "target": "first"})
        process = subprocess.Popen(
            client_argv("events", "--since", "0"),
            env=client_environ(daemon.socket, {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            assert process.stdout is not None
            with anyio.fail_after(HANG_S):
                await anyio.to_thread.run_sync(process.stdout.readline)
            process.stdout.close()
            with anyio.fail_after(HANG_S):
                assert await anyio.to_thread.run_sync(process.wait) == 1
            assert process.stderr is not None
            assert process.stderr.read() == b""
        finally:
            process.kill()
            process.communicate()
