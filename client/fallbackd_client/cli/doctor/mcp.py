"""The MCP server as the settings of each agent start it: whether it is there and answers."""

from __future__ import annotations

import json
import os

from fallbackd_client.cli.doctor.findings import ERROR, Finding, Machine, command
from fallbackd_client.mcp.install.clients import CLIENTS, Client
from fallbackd_client.settings.jsonc import Unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.calls import Json

_HELLO: dict[str, Json] = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "fallbackd-client doctor", "version": "1"},
}
_ASKED: tuple[tuple[str, dict[str, Json]], ...] = (("initialize", _HELLO), ("tools/list", {}))


def look_at_mcp(machine: Machine) -> list[Finding]:
    """Agents without an entry are left alone: not every one has to have it."""
    found = []
    for agent in CLIENTS.values():
        words = _entry(machine, agent)
        if words is None:
            continue
        wrong = _what_is_wrong(machine, words)
        if wrong:
            what = f"{agent.name} cannot start the MCP server of fallbackd: {wrong}"
            fix = command("fallbackd-client", "mcp", "install", agent.name, "--yes")
            found.append(Finding("mcp", ERROR, what, fix))
    return found


def _entry(machine: Machine, agent: Client) -> list[str] | None:
    text = machine.read(agent.file(machine.environ))
    try:
        return None if text is None else agent.installed(text)
    except Unreadable:  # the agent says so itself
        return None


def _what_is_wrong(machine: Machine, words: list[str]) -> str:
    """Empty where it lists its tools."""
    if not words:
        return "its entry holds no command line"
    program = words[0]
    if os.path.isabs(program) and not os.access(program, os.X_OK):
        return f"{program} is not there"
    if machine.which(program) is None:
        return f"{program} is not on PATH"
    asked = "".join(
        json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}) + "\n"
        for number, (method, params) in enumerate(_ASKED)
    )
    ran = machine.run(*words, given=asked)
    if _lists_tools(ran.out):
        return ""
    said = (ran.err or ran.out).strip().splitlines()
    return f"`{command(*words)}` does not answer" + (f": {said[-1][:200]}" if said else "")


def _lists_tools(out: str) -> bool:
    for line in out.splitlines():
        try:
            answer = json.loads(line)
        except ValueError:
            return False
        if isinstance(answer, dict) and answer.get("id") == len(_ASKED) - 1:
            result = answer.get("result")
            return isinstance(result, dict) and bool(result.get("tools"))
    return False
