"""Every command where a terminal or a pipe gives it little: narrow, no colour, no UTF-8, closed."""

import fcntl
import os
import pty
import struct
import subprocess
import termios
from pathlib import Path

import anyio
import anyio.to_thread
from tests.support.agents import backend_script, ok
from tests.support.command import client_argv, client_environ
from tests.support.daemon import HANG_S, Daemon, running

from fallbackd_client.cli import exits
from fallbackd_client.cli.commands import COMMANDS

WORDS = {
    "accounts": "accounts",
    "answer": "answer q1 stop",
    "call": "call status",
    "cancel": "cancel @last",
    "classify": "classify --kind codex /dev/null",
    "completions": "completions bash",
    "config": "config show",
    "continue": "continue --dry-run --from claude --to codex",
    "delegate": "delegate --backend mine hi",
    "doctor": "doctor",
    "drain": "drain --help",
    "events": "events --count 1 --after 0",
    "explain": "explain @last",
    "gateway": "gateway list",
    "health": "health",
    "hooks": "hooks status",
    "limits": "limits",
    "list": "list",
    "log": "log @last",
    "mcp": "mcp --help",
    "metrics": "metrics",
    "notify": "notify --help",
    "ping": "ping",
    "prepare": "prepare --help",
    "questions": "questions",
    "reply": "reply @last again",
    "report": "report --help",
    "resolve": "resolve",
    "restore": "restore /nowhere",
    "retry": "retry @last",
    "service": "service status",
    "sessions": "sessions",
    "setup": "setup --dry-run --no-service",
    "share": "share status",
    "show": "show @last",
    "shutdown": "shutdown --help",
    "standby": "standby --help",
    "stats": "stats",
    "status": "status",
    "statusline": "statusline",
    "suggest": "suggest hi",
    "undrain": "undrain",
    "usage": "usage",
    "wait": "wait @last",
}
TABLES = ("list", "sessions", "usage", "health", "resolve", "accounts", "explain")
"""What is cut at the edge of the terminal."""
POOR = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "NO_COLOR": "1"}


def environ_of(daemon: Daemon) -> dict[str, str]:
    return client_environ(daemon.socket, {**daemon.env, **POOR, "TERM": "xterm"})


def ran_into_closed_pipe(daemon: Daemon, words: str) -> tuple[int, str]:
    reads, writes = os.pipe()
    os.close(reads)
    try:
        done = subprocess.run(
            client_argv(*words.split()),
            env=environ_of(daemon),
            cwd=daemon.work_dir,
            stdin=subprocess.DEVNULL,
            stdout=writes,
            stderr=subprocess.PIPE,
            text=True,
            timeout=HANG_S,
            check=False,
        )
    finally:
        os.close(writes)
    return done.returncode, done.stderr


def ran_on_narrow_terminal(daemon: Daemon, words: str) -> tuple[int, str]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
    process = subprocess.Popen(
        client_argv(*words.split()),
        env=environ_of(daemon),
        cwd=daemon.work_dir,
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    try:
        while data := os.read(ours, 65_536):
            shown += data
    except OSError:  # its end is closed
        pass
    finally:
        os.close(ours)
    return process.wait(timeout=HANG_S), shown.decode("ascii").replace("\r", "")


async def test_every_command_survives_a_closed_pipe_and_a_narrow_plain_terminal(
    tmp_path: Path,
) -> None:
    assert set(WORDS) == {one.name for one in COMMANDS}
    known = {value for value in vars(exits).values() if isinstance(value, int)} | {141}
    async with running(tmp_path, backend_script(tmp_path / "bin", "mine", ok("hi"))) as daemon:
        await daemon.client.delegate("a prompt of some length", backend="mine", wait="finished")
        limit = anyio.CapacityLimiter(4)

        async def look(name: str) -> None:
            words = WORDS[name]
            run = anyio.to_thread.run_sync
            code, said = await run(ran_into_closed_pipe, daemon, words, limiter=limit)
            assert "Traceback" not in said, f"{words}: {said}"
            assert code in known, f"{words}: {code} {said}"
            code, shown = await run(ran_on_narrow_terminal, daemon, words, limiter=limit)
            assert "Traceback" not in shown, f"{words}: {shown}"
            assert code in known, f"{words}: {code} {shown}"
            assert "\\u" not in shown, f"{words}: {shown}"
            if name not in ("delegate", "reply", "retry", "wait"):  # a line is drawn anew
                assert "\x1b" not in shown, f"{words}: {shown!r}"
            if name in TABLES:
                assert max(map(len, shown.splitlines())) <= 40, f"{words}:\n{shown}"

        async with anyio.create_task_group() as tasks:
            for name in WORDS:
                tasks.start_soon(look, name)
