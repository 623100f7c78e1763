"""
Screens of the command line in a real terminal, 80 and 40 columns wide, as files that were read.

A daemon that is scripted answers with fixed records, so that only clock times differ from run to
run; they are replaced by words of the same width. `FALLBACKD_SCREENS=write` writes the files anew:
read what has changed.
"""

import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.client.scripted import Peer, serving
from tests.e2e.tmux import Tmux, tmux_server
from tests.support.command import client_argv, client_environ

SCREENS = Path(__file__).parent / "screens"
DONE = "screen is complete"
LINES = 24


@pytest.fixture
def tmux() -> Iterator[Tmux]:
    with tmux_server() as one:
        yield one


def records(at: float) -> dict[str, Any]:
    """What the scripted daemon knows. Ages lie in the middle of a minute: they stay the same."""
    two_hours, day = 2 * 3600 + 5 * 60 + 30, 26 * 3600
    running = {
        "delegation": "d19ab1c2d3e4f5061728",
        "state": "running",
        "requested": "codex",
        "active": "codex",
        "phase": "command_execution",
        "cwd": "/srv/projects/shop/backend",
        "prompt": "Find out why the checkout test is slow and make it fast",
        "created_at": at - two_hours,
    }
    blocked = {
        "delegation": "d19ab2c2d3e4f5061728",
        "state": "queued",
        "requested": "claude",
        "active": "claude",
        "blocked_by": "d19ab1c2d3e4f5061728",
        "cwd": "/srv/projects/shop/backend",
        "prompt": "Write the release notes",
        "created_at": at - two_hours,
    }
    ended = {
        "delegation": "d19a01c2d3e4f5061728",
        "state": "succeeded",
        "requested": "codex",
        "active": "claude",
        "served_by": "claude",
        "cwd": "/srv/文書/報告書",
        "prompt": "報告書を要約してください。三つの要点だけを書くこと。",
        "fallback_reason": "usage_limit: codex hit its usage limit",
        "created_at": at - day - 40,
        "ended_at": at - day,
    }
    failed = {
        "delegation": "d19902c2d3e4f5061728",
        "state": "failed",
        "requested": "gemini",
        "active": "gemini",
        "cwd": None,
        "prompt": "Translate README.md",
        "message": "exited without an answer or an error message",
        "created_at": at - 3 * day - 40,
        "ended_at": at - 3 * day,
    }
    health = {
        "claude": {"state": "healthy"},
        "codex": {
            "state": "rate_limited",
            "reason": "usage_limit",
            "detail": "the weekly limit of the plan is used up",
            "until_at": at + two_hours,
            "count": 2,
        },
        "gemini": {"state": "broken", "reason": "not_installed"},
        "ローカル": {"state": "cooldown", "reason": "server_error", "until_at": at + two_hours},
    }
    attempts = [
        {
            "attempt": f"{ended['delegation']}.1",
            "backend": "codex",
            "state": "failed",
            "started_at": at - day - 40,
            "ended_at": at - day - 30,
            "exit_code": 1,
            "failure": {
                "reason": "usage_limit",
                "evidence": "You've hit your usage limit. Try again later.",
            },
        },
        {
            "attempt": f"{ended['delegation']}.2",
            "backend": "claude",
            "state": "succeeded",
            "started_at": at - day - 30,
            "ended_at": at - day,
        },
    ]
    hop = {
        "at": at - day - 30,
        "from": "codex",
        "to": "claude",
        "trigger": "reactive",
        "reason": "usage_limit",
    }
    candidates = [
        {"backend": "codex", "verdict": "tried", "reason": "usage_limit"},
        {"backend": "claude", "verdict": "chosen"},
        {"backend": "gemini", "verdict": "not_installed"},
    ]
    whole = {**ended, "attempts": attempts, "hops": [hop], "candidates": candidates}
    window = {"unit": "percent", "used_percent": 63.0, "fresh": True, "age_s": 12.0}
    limits = [
        {**window, "window_s": 18000.0, "resets_at": at + two_hours, "source": "event"},
        {**window, "window_s": 604800.0, "used_percent": 41.0, "source": "event"},
    ]
    session = {"last_active_at": at - two_hours, "original": "codex", "current": "claude"}
    return {
        "plan": {"claude": {"state": "healthy", "limits": limits}},
        "sessions": [{"session": "parser", **session}],
        "running": running,
        "active": [running, blocked],
        "ended": [ended, failed],
        "whole": {**whole, "text": "一、売上は増えた。\n二、費用は減った。\n三、来年も続ける。"},
        "status": {
            "daemon": {
                "version": "0.2",
                "pid": 4711,
                "uptime_s": two_hours,
                "state": "running",
                "socket": "/run/user/1000/fallbackd/control.sock",
            },
            "health": health,
            "sessions": [],
            "delegations": {
                "running": 1,
                "waiting": 0,
                "queued": 1,
                "finished_total": 2,
                "active": [running, blocked],
            },
            "questions": [],
        },
    }


class Scripted:
    """The daemon's side of every screen."""

    def __init__(self, *, may_end: threading.Event | None = None) -> None:
        self.may_end = may_end
        """Until then the work that is waited for runs; None: it has ended."""

    def __call__(self, peer: Peer) -> None:
        while (request := peer.read()) is not None:
            method, params = request["method"], request.get("params") or {}
            found = records(time.time())
            match method:
                case "status":
                    peer.answer(request, found["status"])
                case "delegation.list":
                    lines = found["ended"] if params.get("ended") else found["active"]
                    peer.answer(request, {"lines": lines[: params.get("limit", 100)]})
                case "health":
                    peer.answer(request, {"health": {**found["status"]["health"], **found["plan"]}})
                case "session.list":
                    peer.answer(request, {"sessions": found["sessions"]})
                case "exchange.list":
                    peer.answer(request, {"exchanges": [], "known": 0})
                case "delegate":
                    begun = {"state": "running", "created_at": found["running"]["created_at"]}
                    peer.answer(request, {**found["whole"], **begun, "hops": []})
                case "delegation.get":
                    going_on = {"state": "running", "phase": "writing"}
                    going_on["created_at"] = found["running"]["created_at"]
                    is_over = self.may_end is None or self.may_end.is_set()
                    peer.answer(request, {**found["whole"], **({} if is_over else going_on)})
                case "events.subscribe":
                    peer.answer(request, {"subscription": "s1", "seq": 7})
                    self._tell(peer, found)
                case "delegation.wait":
                    assert self.may_end is not None
                    self.may_end.wait(60)
                    peer.answer(request, found["whole"])

    def _tell(self, peer: Peer, found: dict[str, Any]) -> None:
        name = found["whole"]["delegation"]
        hop = found["whole"]["hops"][0]
        for kind, fields in (
            ("delegation.hopped", hop),
            ("attempt.started", {"backend": "claude"}),
            ("attempt.phase", {"phase": "writing"}),
            ("attempt.text", {"text": "要約を書いています。\nFirst I read the 報告書, then"}),
        ):
            peer.event(**{"at": 1.0, **fields, "kind": kind, "delegation": name})


def local_ten_o_clock() -> str:
    """A zone in which it is about ten: what lies two hours ahead is on the same day."""
    offset = (time.gmtime().tm_hour - 10) % 24
    return f"HERE{offset if offset <= 12 else offset - 24}"


def shown(
    tmux: Tmux, socket: str, width: int, *arguments: str, program: tuple[str, ...] | None = None
) -> Callable[[], str]:
    """
    Run a command in a window so wide. What it gives is what the window shows by then.

    Args:
        program: Another one than the command line.
    """
    env = client_environ(socket, {"TZ": local_ten_o_clock(), "NO_COLOR": "1", "HOME": "/home/me"})
    argv = [*(program or client_argv(*arguments))]
    words = " ".join(f"'{one}'" for one in argv)
    values = [flag for name, value in env.items() for flag in ("-e", f"{name}={value}")]
    tmux.run(
        *("-f", "/dev/null", "new-session", "-d", "-s", "screen", "-x", str(width)),
        *("-y", str(LINES), *values, f"{words}; echo '{DONE}'; exec sleep 1000"),
    )
    return lambda: tmux.run("capture-pane", "-p", "-t", "screen")


def compared(name: str, width: int, screen: str) -> None:
    text = screen.split(DONE)[0]
    text = re.sub(r"\d\d:\d\d:\d\d", "HH:MM:SS", text)
    text = re.sub(r"\d\d:\d\d:…", "HH:MM:…", text)
    text = re.sub(r"\d{4}-\d\d-\d\d", "YYYY-MM-DD", text)
    text = "\n".join(line.rstrip() for line in text.splitlines()).rstrip() + "\n"
    path = SCREENS / f"{name}-{width}.txt"
    if os.environ.get("FALLBACKD_SCREENS") == "write":
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("width", [80, 40])
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("status", ("status",)),
        ("list", ("list",)),
        ("explain", ("explain", "d19a01c2d3e4f5061728")),
        ("show", ("show", "d19a01c2d3e4f5061728")),
        ("health", ("health",)),
        ("limits", ("limits",)),
        ("sessions", ("sessions",)),
    ],
)
async def test_a_screen_is_the_one_that_was_read(
    tmp_path: Path, tmux: Tmux, name: str, arguments: tuple[str, ...], width: int
) -> None:
    with serving(tmp_path / "control.sock", Scripted()):
        shown(tmux, str(tmp_path / "control.sock"), width, *arguments)
        compared(name, width, await tmux.until("screen", DONE))


@pytest.mark.parametrize("width", [80, 40])
async def test_the_screen_of_the_doctor_is_the_one_that_was_read(
    tmp_path: Path, tmux: Tmux, width: int
) -> None:
    """Its findings are given: what it would find here is about the machine of the test."""
    program = (sys.executable, "-m", "tests.e2e.doctor_screen")
    shown(tmux, str(tmp_path / "control.sock"), width, program=program)
    compared("doctor", width, await tmux.until("screen", DONE))


@pytest.mark.parametrize("width", [80, 40])
async def test_delegate_shows_what_goes_on_and_leaves_the_hop_and_the_answer(
    tmp_path: Path, tmux: Tmux, width: int
) -> None:
    may_end = threading.Event()
    with serving(tmp_path / "control.sock", Scripted(may_end=may_end)):
        shown(tmux, str(tmp_path / "control.sock"), width, "delegate", "x", "--cwd", "/tmp")
        compared(
            "delegate-working",
            width,
            await tmux.until("screen", "writing · 2h 5m? ?·? ?(…|First)|2h…|2h 5…"),
        )
        may_end.set()
        compared("delegate", width, await tmux.until("screen", DONE))


@pytest.mark.parametrize("width", [80, 40])
async def test_watching_redraws_in_place(tmp_path: Path, tmux: Tmux, width: int) -> None:
    with serving(tmp_path / "control.sock", Scripted()) as server:
        screen = shown(tmux, str(tmp_path / "control.sock"), width, "status", "--watch")
        await tmux.until("screen", "fallbackd 0.2")
        while server.methods().count("status") < 4:
            time.sleep(0.05)
        assert tmux.run("display", "-p", "-t", "screen", "#{history_size}").strip() == "0"
        assert screen().startswith("fallbackd 0.2")
        compared("watch", width, screen())
