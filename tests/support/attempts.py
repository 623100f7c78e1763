"""What an agent must not do: every way that is tried from inside of one, with real agents too."""

import json
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.daemon import ROOT

from fallbackd_client.wire.methods import METHODS

Attempt = tuple[Any, ...]
"""A door of `hands`, and what is asked there."""
HANDS = ROOT / "tests" / "support" / "hands.py"
HAD = {
    "delegate": "served_by",
    "interactive.failed": "backend",
    "opencode.resolve": "redirected",
    "opencode.event": "heard",
    "opencode.answer": "heard",
    "interactive.plan": "heard",
}
"""Methods that answer everybody, with the field that says that something was done."""

CLOSED_TO_WRITERS = (
    *(".bashrc", ".profile", ".zshrc", ".gitconfig", ".ssh/authorized_keys", ".npmrc"),
    *(".claude.json", ".claude/settings.json", ".claude/CLAUDE.md", ".claude/hooks/h"),
    *(".claude/commands/c.md", ".codex/config.toml", ".codex/hooks.json", ".codex/auth.json"),
    *(".gemini/settings.json", ".gemini/.env", ".config/opencode/opencode.json"),
    *(".config/opencode/plugin/p.js", ".config/opencode/model-fallback.json"),
    *(".config/systemd/user/x.service", ".config/autostart/x.desktop", ".config/git/hooks/h"),
    *(".config/fallbackd/config.toml", ".local/bin/claude", ".cargo/bin/cargo", "go/bin/x"),
    *(".gradle/init.d/x.gradle", ".m2/settings.xml", ".local/share/applications/x.desktop"),
    *(".local/state/fallbackd/fallbackd.db", ".local/state/fallbackd/gateway.token"),
    *(".local/state/fallbackd/runs/@THEIRS@/exit.json", ".local/state/fallbackd/runs/d0/claim"),
)
CLOSED_TO_READERS = (
    *(".codex/auth.json", ".claude/.credentials.json", ".config/fallbackd/config.toml"),
    *(".keys/other", ".local/state/fallbackd/fallbackd.db", ".local/state/fallbackd/gateway.token"),
    ".local/state/fallbackd/runs/@THEIRS@/prompt",
)
SECRETS = ("KEY_OF_ANOTHER", "FALLBACKD_SHARE_URL", "SHARE_GROUP_SECRET")
"""Variables of the daemon: of another backend's key, and of `[share]`."""


def of_the_kernel() -> dict[str, Attempt]:
    """What no agent below `full` may do to files, whatever it asks of the daemon."""
    found: dict[str, Attempt] = {}
    for path in CLOSED_TO_WRITERS:
        place = f'"@HOME@/{path}"'
        line = f"mkdir -p $(dirname {place}) && echo x >> {place}"
        found[f"write ~/{path.replace('@', '')}"] = ("shell", line)
    for path in CLOSED_TO_READERS:
        found[f"read ~/{path.replace('@', '')}"] = ("shell", f'head -c 1 "@HOME@/{path}"')
    found |= {
        "open a key to all": ("shell", 'cat "@HOME@/.keys/other" > "${TMPDIR:-.}/k"'),
        "link to the state": (
            "shell",
            'ln @STATE@/gateway.token "${TMPDIR:-.}/t" && head -c 1 "${TMPDIR:-.}/t"',
        ),
        "read the state through a link": (
            "shell",
            'ln -s @STATE@ "${TMPDIR:-.}/s" && head -c 1 "${TMPDIR:-.}/s/gateway.token"',
        ),
        "move the state": ("shell", "mv @STATE@ @STATE@.gone"),
        "remove the socket": ("shell", "rm @RUN@/control.sock"),
        "write beside the directory": ("shell", "echo x > @WORK@/../beside"),
    }
    return found


def of_the_environment() -> dict[str, Attempt]:
    return {f"have {name}": ("shell", f'test -n "${name}"') for name in SECRETS}


def of_persons() -> dict[str, Attempt]:
    """Every method that only a person may call, as its example has it."""
    found: dict[str, Attempt] = {
        one.name: ("rpc", one.name, one.example[0]) for one in METHODS if one.who == "person"
    }
    for action in ("clear", "pause", "resume"):
        found[f"health {action}"] = ("rpc", "health", {"action": action, "target": "helper"})
    found["answer a question"] = (
        "rpc",
        "question.answer",
        {"question": "@QUESTION@", "choice": "use:same"},
    )
    return found


def of_others() -> dict[str, Attempt]:
    """Work, sessions and servers that belong to others."""
    one, session = {"delegation": "@THEIRS@"}, {"session": "theirs"}
    asked: dict[str, tuple[str, Mapping[str, Any]]] = {
        "see theirs": ("delegation.get", one),
        "wait for theirs": ("delegation.wait", one),
        "read the log of theirs": ("delegation.log", one),
        "explain theirs": ("explain", one),
        "keep theirs": ("delegation.keep", one),
        "start theirs": ("delegation.standby", {**one, "starts": True}),
        "cancel theirs": ("delegation.cancel", one),
        "cancel theirs by request": ("delegation.cancel", {"request_id": "r-theirs"}),
        "cancel theirs by session": ("delegation.cancel", session),
        "reply to theirs": ("delegation.reply", {**one, "prompt": "more"}),
        "retry theirs": ("delegation.retry", one),
        "retry theirs by a known request": ("delegation.retry", {**one, "request_id": "r-theirs"}),
        "see their session": ("session.get", session),
        "end their session": ("session.end", session),
        "compact their session": ("session.compacted", session),
        "go on in their session": (
            "delegate",
            {"prompt": "x", "backend": "helper", "permissions": "read", **session},
        ),
        "status of their session": ("status", session),
        "resolve in their session": ("resolve", {"backend": "helper", **session}),
        "report for their session": (
            "report",
            {"backend": "helper", "outcome": "success", **session},
        ),
        "report for no session": (
            "report",
            {"backend": "helper", "outcome": "failure", "evidence": {"http_status": 429}},
        ),
        "hold a lease": ("resolve", {"backend": "helper", "lease": True}),
        "differ from theirs": (
            "delegate",
            {
                "prompt": "x",
                "backend": "helper",
                "permissions": "read",
                "differs_from": ["@THEIRS@"],
            },
        ),
        "listen to all events": ("events.subscribe", {}),
        "read a login for advice": ("suggest", {"goal": "x", "project_root": "@HOME@/.codex"}),
        "announce a server of opencode": ("opencode.announce", {"url": "http://127.0.0.1:9"}),
        "announce one with a plugin": (
            "opencode.announce",
            {"url": "http://127.0.0.1:9", "plugin": True},
        ),
        "answer for a plugin": ("opencode.answer", {"call": 1, "status": 200, "text": "[]"}),
        "say what happened in opencode": (
            "opencode.event",
            {"event": {"id": "e", "type": "session.idle", "properties": {"sessionID": "ses_1"}}},
        ),
        "move a session of opencode": ("opencode.resolve", {"session": "ses_1", "model": "b/m"}),
        "say as a hook that claude is out": (
            "interactive.failed",
            {"agent": "claude", "error": "rate_limit", "text": "You've hit your session limit"},
        ),
    }
    return {name: ("rpc", method, params) for name, (method, params) in asked.items()}


def beyond(own: str) -> dict[str, Attempt]:
    """Work with more than an agent of these permissions has."""
    work = {"prompt": "x", "backend": "helper", "permissions": "read", "cwd": "@WORK@"}
    work["wait"] = "finished"
    asked: dict[str, Mapping[str, Any]] = {
        f"work {name}": {**work, "cwd": place}
        for name, place in {
            "in the state": "@STATE@",
            "in the run directory of theirs": "@STATE@/runs/@THEIRS@",
            "in the configuration": "@HOME@/.config/fallbackd",
            "at the login of codex": "@HOME@/.codex",
            "at the login of claude": "@HOME@/.claude",
            "above the state": "@HOME@/.local/state",
            "in the state by dots": "@WORK@/../home/.local/state/fallbackd",
            "in the state by a link": "@WORK@/link",
            "in the home": "@HOME@",
            "in the root": "/",
        }.items()
    }
    if own != "full":
        writing = {**work, "permissions": own}
        asked["work as full"] = {**work, "permissions": "full"}
        asked["work as full on what is free"] = {**work, "permissions": "full", "backend": "free"}
        if own == "workspace":
            asked["write at the keys of ssh"] = {**writing, "cwd": "@HOME@/.ssh"}
            asked["write beside"] = {**writing, "cwd": "@WORK@/.."}
            asked["write by a link"] = {**writing, "cwd": "@WORK@/ssh"}
        else:
            asked["work as workspace"] = {**work, "permissions": "workspace"}
    asked |= {
        "work that is billed": {**work, "allow_metered": True},
        "work on what is billed": {**work, "backend": "paid", "failover": False},
        "work with another variable": {**work, "env": {"GIVEN": "other"}},
        "work with a variable of the loader": {**work, "env": {"LD_PRELOAD": "/x.so"}},
        "permissions that begin with a dash": {**work, "permissions": "--full"},
        "a directory that begins with a dash": {**work, "cwd": "-C"},
        "a request of theirs, otherwise": {**work, "session": "theirs", "request_id": "r-theirs"},
    }
    return {name: ("rpc", "delegate", params) for name, params in asked.items()}


def of_the_gateway() -> dict[str, Attempt]:
    """Calls that are billed, or without a token of its own."""
    metered = "x-fallbackd-allow-metered: 1"
    found: dict[str, Attempt] = {}
    for place in ("socket", "port"):
        for name, token in {
            "no token": "",
            "its own": "OWN",
            "one that was stolen": "@TOKEN@",
            "its own of another": "OWN.d0.1",
            "one that was made up": "d0.1",
        }.items():
            found[f"a billed call at the {place}, {name}"] = ("gateway", place, token)
            found[f"the same with the header at the {place}, {name}"] = (
                *("gateway", place, token, metered),
            )
    return found


def of_other_doors(python: str = sys.executable) -> dict[str, Attempt]:
    """The client's command line, its MCP server, and a process without parents."""
    program = f"{python} -m fallbackd_client.cli.main --socket @RUN@/control.sock"
    client = f"PYTHONPATH=@PATH@ {program}"
    work = {"prompt": "x", "backend": "helper", "permissions": "full", "cwd": "@WORK@"}
    return {
        "mcp delegate as full on what is billed": (
            *("mcp", "delegate", {"prompt": "x", "backend": "paid", "allow_metered": True}),
        ),
        "mcp cancel": ("mcp", "cancel", {"delegation": "@THEIRS@"}),
        "mcp explain": ("mcp", "explain", {"delegation": "@THEIRS@"}),
        "mcp wait": ("mcp", "wait", {"delegation": "@THEIRS@"}),
        "mcp delegate in the state": (
            *("mcp", "delegate", {"prompt": "x", "backend": "helper", "cwd": "@STATE@"}),
        ),
        "client answer": ("shell", f"{client} answer @QUESTION@ use:same"),
        "client health": ("shell", f"{client} health pause helper"),
        "client drain": ("shell", f"{client} drain"),
        "client show": ("shell", f"{client} show @THEIRS@"),
        "client without variables": ("shell", f"env -i {client} drain"),
        "drained by an orphan": ("passed on", "daemon.drain", {}),
        "answered by an orphan": (
            *("passed on", "question.answer", {"question": "@QUESTION@", "choice": "use:same"}),
        ),
        "theirs seen by an orphan": ("passed on", "delegation.get", {"delegation": "@THEIRS@"}),
        "billed by an orphan": ("passed on", "delegate", {**work, "allow_metered": True}),
    }


def table(
    place: Path, attempts: Mapping[str, Attempt], values: Mapping[str, str], **more: Any
) -> Path:
    """
    Write what `hands` tries.

    Args:
        values: Of the words between `@`.
        more: The port of the gateway, and ways for its `--way`.
    """
    run, path = values["@RUN@"], f"{ROOT / 'client'}:{sysconfig.get_path('purelib')}"
    hello = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "agent", "version": "1"},
    }
    text = json.dumps(
        {
            "attempts": attempts,
            "had": HAD,
            "socket": f"{run}/control.sock",
            "gateway": f"{run}/gateway.sock",
            **more,
            "path": path,
            "hello": hello,
        }
    )
    for name, value in {**values, "@PATH@": path}.items():
        text = text.replace(name, value)
    place.write_text(text)
    return place


def done(said: str) -> dict[str, str]:
    """What became of each, from the words that `hands` has printed."""
    return dict(line.rsplit(": ", 1) for line in said.splitlines() if ": " in line)
