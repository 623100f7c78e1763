"""`hooks`: let the agents that a person has open report their limits to the daemon."""

from __future__ import annotations

import argparse
import os

from fallbackd_client.cli import exits
from fallbackd_client.cli.output import Style, UsageError, one_line, show
from fallbackd_client.cli.parsing import add_actions
from fallbackd_client.cli.setup.changes import add_change_arguments, change
from fallbackd_client.cli.share import OPENCODE_2_PLUGIN, OPENCODE_2_TOAST, OPENCODE_PLUGIN, shared

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.calls import Json
    from fallbackd_client.client import Client
    from fallbackd_client.settings.editing import Part

AGENTS = ("claude", "codex", "opencode")
_ACTIONS = {
    "install": "add what reports limits of open sessions; shows the change first",
    "uninstall": "remove it again; shows the change first",
    "status": "show where it is installed",
}


def register(parser: argparse.ArgumentParser) -> None:
    actions = add_actions(parser, _ACTIONS)
    status = actions["status"]
    status.add_argument("agent", nargs="?", choices=AGENTS, help="the agent (default: all)")
    for name in ("install", "uninstall"):
        actions[name].add_argument("agent", choices=AGENTS, help="the agent")
        add_change_arguments(actions[name])
    actions["install"].add_argument(
        "--no-statusline", action="store_true", help="claude: leave its status line as it is"
    )


def run(args: argparse.Namespace, client: Client) -> int:
    if args.action == "status":
        names = AGENTS if args.agent is None else (args.agent,)
        show(args, {name: _state(name, args, client) for name in names}, status_view)
        return exits.OK
    undo = args.action == "uninstall"
    parts = _parts(args, client, with_line=not undo and not args.no_statusline)
    shown = f"fallbackd-client hooks install {args.agent} --print"
    return change(args, args.agent, parts, undo=undo, shown_by=shown)


def _parts(args: argparse.Namespace, client: Client, *, with_line: bool) -> list[Part]:
    from fallbackd_client.interactive import hooks
    from fallbackd_client.settings.editing import own_command

    path = _place(args.agent, args, client)
    if args.agent == "codex":
        return [hooks.codex_part(path)]
    if args.agent == "opencode":
        from fallbackd_client.interactive.carrying import version_of_opencode
        from fallbackd_conversations.opencode_versions import line_of

        line = 2 if line_of(version_of_opencode(os.environ)) == 2 else 1
        plugin = shared(OPENCODE_2_PLUGIN if line == 2 else OPENCODE_PLUGIN)
        toast, screen = shared(OPENCODE_2_TOAST), os.path.join(os.path.dirname(path), "cli.json")
        if plugin is None or toast is None:
            raise UsageError("the opencode plugin is not part of this installation")
        parts = [hooks.opencode_part(path, plugin, line=line)]
        if line == 2 or os.path.exists(screen):  # the interface of version 2 has its own settings
            parts.append(hooks.opencode_part(screen, toast, line=2))
        return parts if line == 2 or args.action == "uninstall" else parts[:1]
    part = hooks.claude_part(
        path,
        own_command(args.socket, "report", "--claude-hook"),
        own_command(args.socket, "statusline") if with_line else None,
    )
    return [part]


def _place(agent: str, args: argparse.Namespace, client: Client) -> str:
    """Return the file that names us for the sake of this agent."""
    from fallbackd_client.interactive import hooks
    from fallbackd_client.mcp.install import CLIENTS

    if agent == "codex":
        from fallbackd_client.cli.commands.config import machine_of

        return machine_of(args, client).config
    if agent == "opencode":
        return CLIENTS[agent].file(os.environ)
    return hooks.claude_settings(os.environ)


def _state(agent: str, args: argparse.Namespace, client: Client) -> dict[str, Json]:
    from fallbackd_client.interactive import hooks
    from fallbackd_client.settings import jsonc
    from fallbackd_client.settings.editing import read

    path = _place(agent, args, client)
    try:
        text = read(path) or ""
        if agent == "codex":
            return {"path": path, "installed": hooks.watches_codex(text)}
        found = jsonc.load(text)
        if agent == "opencode":
            return {"path": path, "installed": hooks.has_plugin(found)}
    except jsonc.Unreadable as error:
        return {"path": path, "installed": None, "problem": str(error)}
    return {
        "path": path,
        "installed": hooks.has_hook(found),
        "statusline": hooks.has_line(found),
    }


_WORDS = {True: "installed", False: "not installed", None: "cannot be read"}


def status_view(found: dict[str, Json], style: Style) -> str:
    lines = []
    for agent, one in found.items():
        words = _WORDS[one["installed"]]
        if one["installed"] and "statusline" in one:
            words += " with status line" if one["statusline"] else " without status line"
        lines.append(f"{agent}: {words} ({one_line(one['path'])})")
        if one.get("problem"):
            lines.append(f"  {one_line(one['problem'])}")
        elif not one["installed"]:
            lines.append(style.paint(f"  $ fallbackd-client hooks install {agent}", "dim"))
    return "\n".join(lines)
