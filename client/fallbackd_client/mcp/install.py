"""The MCP server in the settings of the agents: added, found, removed."""

from __future__ import annotations

import json
import os

from fallbackd_client.settings import jsonc, toml_block
from fallbackd_client.settings.editing import Command, Part

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fallbackd_client.calls import Json

SERVER = "fallbackd"
LONGEST_S = 3600
"""A call may last so long; `wait_s` ends most of them after 50 s."""


class Client:
    """
    Args:
        name: Of its program.
        file: Where its servers are kept, by environment.
        place: Of the servers in that file.
        entry: Its record of our server.
    """

    def __init__(
        self,
        name: str,
        *,
        file: Callable[[Mapping[str, str]], str],
        place: str,
        entry: Callable[[Command], dict[str, Json]],
    ) -> None:
        self.name = name
        self.file = file
        self.place = place
        self.entry = entry

    def parts(self, environ: Mapping[str, str], command: Command) -> list[Part]:
        entry, path = self.entry(command), self.file(environ)
        if self.name == "codex":
            return [_toml_part(path, entry)]
        where = (self.place, SERVER)
        parts = [
            Part(
                path,
                json.dumps({self.place: {SERVER: entry}}, indent=2),
                put=lambda text: jsonc.with_member(text, where, entry),
                take=lambda text: jsonc.without_member(text, where),
            )
        ]
        if self.name == "claude":
            parts.append(_claude_rule(environ))
        return parts

    def installed(self, text: str) -> list[str] | None:
        """
        The command line of our entry; None where there is none.

        Raises:
            Unreadable: The file cannot be understood.
        """
        found = toml_block.parse(text) if self.name == "codex" else jsonc.load(text)
        servers = found.get(self.place) if isinstance(found, dict) else None
        entry = servers.get(SERVER) if isinstance(servers, dict) else None
        if not isinstance(entry, dict):
            return None
        return _words(entry)


def _words(entry: dict[str, Json]) -> list[str]:
    """The command line of an entry; empty where it holds none."""
    command, arguments = entry.get("command"), entry.get("args") or []
    words: list[Json] = []
    if isinstance(command, list):
        words = command
    elif isinstance(arguments, list):
        words = [command, *arguments]
    return words if all(isinstance(word, str) for word in words) else []


def _home(environ: Mapping[str, str], *names: str) -> str:
    return os.path.join(environ.get("HOME") or os.path.expanduser("~"), *names)


def _config(environ: Mapping[str, str], *names: str) -> str:
    base = environ.get("XDG_CONFIG_HOME", "")
    return os.path.join(base if os.path.isabs(base) else _home(environ, ".config"), *names)


def _first(*paths: str) -> str:
    return next((path for path in paths if os.path.exists(path)), paths[0])


def _claude_file(environ: Mapping[str, str]) -> str:
    own = environ.get("CLAUDE_CONFIG_DIR")
    return os.path.join(own, ".claude.json") if own else _home(environ, ".claude.json")


def _claude_rule(environ: Mapping[str, str]) -> Part:
    own = environ.get("CLAUDE_CONFIG_DIR") or _home(environ, ".claude")
    where, rule = ("permissions", "allow"), f"mcp__{SERVER}"
    return Part(
        os.path.join(own, "settings.json"),
        json.dumps({"permissions": {"allow": [rule]}}, indent=2),
        put=lambda text: jsonc.with_element(text, where, rule),
        take=lambda text: jsonc.without_element(text, where, lambda one: bool(one == rule)),
    )


def _started(command: Command, **more: Json) -> dict[str, Json]:
    return {"command": command.program, "args": command.arguments, **more}


def _opencode_entry(command: Command) -> dict[str, Json]:
    words = [command.program, *command.arguments]
    return {"type": "local", "command": words, "enabled": True, "timeout": LONGEST_S * 1000}


def _codex_entry(command: Command) -> dict[str, Json]:
    return _started(
        command,
        # codex starts its servers with hardly any variables.
        env_vars=["XDG_RUNTIME_DIR", "FALLBACKD_SOCKET", "FALLBACKD_DELEGATION"],
        startup_timeout_sec=20,
        tool_timeout_sec=LONGEST_S,
        default_tools_approval_mode="approve",
    )


CLIENTS: Mapping[str, Client] = {
    one.name: one
    for one in (
        Client(
            "claude",
            file=_claude_file,
            place="mcpServers",
            # alwaysLoad: a headless run waits for the server before it asks the model.
            entry=lambda command: _started(
                command, type="stdio", timeout=LONGEST_S * 1000, alwaysLoad=True
            ),
        ),
        Client(
            "codex",
            file=lambda environ: os.path.join(
                environ.get("CODEX_HOME") or _home(environ, ".codex"), "config.toml"
            ),
            place="mcp_servers",
            entry=_codex_entry,
        ),
        Client(
            "opencode",
            file=lambda environ: _first(
                _config(environ, "opencode", "opencode.json"),
                _config(environ, "opencode", "opencode.jsonc"),
            ),
            place="mcp",
            entry=_opencode_entry,
        ),
        Client(
            "gemini",
            file=lambda environ: _home(environ, ".gemini", "settings.json"),
            place="mcpServers",
            entry=lambda command: _started(command, timeout=LONGEST_S * 1000, trust=True),
        ),
        Client(
            "cursor",
            file=lambda environ: _home(environ, ".cursor", "mcp.json"),
            place="mcpServers",
            entry=_started,
        ),
        Client(
            "zed",
            file=lambda environ: _config(environ, "zed", "settings.json"),
            place="context_servers",
            entry=lambda command: {"source": "custom", **_started(command, env={})},
        ),
    )
}


def _toml_part(path: str, entry: dict[str, Json]) -> Part:
    lines = [f"[mcp_servers.{SERVER}]"]
    lines += [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in entry.items()]
    return toml_block.block_part(path, "\n".join(lines), table=("mcp_servers", SERVER))
