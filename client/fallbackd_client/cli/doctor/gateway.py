"""The gateway: whether it answers in each protocol, and the programs that are pointed at it."""

from __future__ import annotations

import errno
import os
import re

from fallbackd_client.cli.doctor.findings import ERROR, WARNING, Finding, Machine, command
from fallbackd_client.cli.doctor.ports import listeners
from fallbackd_client.errors import ClientError
from fallbackd_client.gateway.asking import (
    Silent,
    WrongToken,
    is_open,
    not_listening,
    serves,
    unanswered,
)
from fallbackd_client.gateway.tools import TOOLS
from fallbackd_client.settings import jsonc
from fallbackd_client.settings.editing import Command
from fallbackd_client.settings.jsonc import Unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from fallbackd_client.calls import Json
    from fallbackd_client.client import Client
    from fallbackd_client.gateway.tools import Tool
    from fallbackd_client.settings.editing import Part

_ANSWER_S = 5.0
_TOKEN = re.compile(r"[!-~]{1,4096}")
"""What can stand in a header."""
_LISTS = command("fallbackd-client", "gateway", "list")


def look_at_gateway(machine: Machine, client: Client) -> list[Finding] | None:
    """
    Nothing that it asks reaches a provider.

    Returns: None where the daemon does not say how the gateway is configured.
    """
    try:
        config = client.call("config.get", {}, timeout_s=_ANSWER_S).get("config") or {}
        # Asked now: a port that was taken since the first look would be sent the token.
        daemon = client.call("status", {}, timeout_s=_ANSWER_S).get("daemon") or {}
    except ClientError:
        return None
    gateway: dict[str, Json] = config.get("gateway") or {}
    port = gateway.get("port") if gateway.get("enabled") else None
    port = port if isinstance(port, int) else None
    elsewhere, pointed = _tools(machine, port)
    if port is None:
        return elsewhere
    if (why := not_listening(daemon)) is not None:
        return [_taken(machine, port, why), *elsewhere]
    found = _calls(machine, port)
    if not found:
        found = [one for tool, text in pointed if (one := _as_set_up(machine, port, tool, text))]
    return elsewhere + found


def look_at_callers(machine: Machine) -> list[Finding]:
    """Where no daemon answers: the programs whose calls to the gateway fail meanwhile."""
    found = []
    for tool, _, port in _pointed(machine):
        if is_open(port):  # by a daemon with another socket, or a foreign program
            continue
        undo = _set_up(tool, "--undo")
        what = f"{tool.name} asks the gateway, and nothing listens at port {port}: its calls fail"
        what = f"{what} until the daemon runs; to set it back: {undo}"
        found.append(Finding("gateway", ERROR, what))
    return found


def _pointed(machine: Machine) -> Iterator[tuple[Tool, str, int]]:
    """The programs that are set up for the gateway, their settings, and the port there."""
    for tool in TOOLS.values():
        text = machine.read(tool.file(machine.environ))
        try:
            port = None if text is None else tool.port(text)
        except Unreadable:  # the program says so itself
            continue
        if text is not None and port is not None:
            yield tool, text, port


def _tools(machine: Machine, port: int | None) -> tuple[list[Finding], list[tuple[Tool, str]]]:
    """What is pointed at another port, and the programs that ask this one, with their settings."""
    found, pointed = [], []
    for tool, text, named in _pointed(machine):
        if named == port:
            pointed.append((tool, text))
            continue
        if port is None:
            what = f"{tool.name} is set up for the gateway, which is off: its calls fail"
            fix = _set_up(tool, "--undo")
        else:
            what = f"{tool.name} asks the gateway at port {named}, and it listens at {port}"
            fix = _set_up(tool)
        found.append(Finding("gateway", ERROR, what, fix))
    return found, pointed


def _set_up(tool: Tool, *options: str) -> str:
    return command("fallbackd-client", "gateway", "setup", tool.name, *options, "--yes")


def _taken(machine: Machine, port: int, why: str) -> Finding:
    """
    Args:
        why: The words of the daemon.
    """
    if f"port {port}: {os.strerror(errno.EADDRINUSE)}" not in why:
        return Finding("gateway", ERROR, why)
    known = listeners(machine)
    who = " and ".join(dict.fromkeys(one.told(machine) for one in known if one.port == port))
    who = who or "another program"
    what = f"{why}: {who} has it; end that program, or give the gateway another [gateway] port"
    ports = {one.port for one in known}
    free = next(one for one in (*range(port + 1, 65536), *range(port, 0, -1)) if one not in ports)
    fix = command("fallbackd-client", "config", "set", "gateway.port", str(free))
    return Finding("gateway", ERROR, what, fix)


def _calls(machine: Machine, port: int) -> list[Finding]:
    token = (machine.read(os.path.join(machine.state_dir, "gateway.token")) or "").strip()
    try:
        is_served = serves(port, token)
        missing = unanswered(port, token)
    except Silent as error:
        what = f"the gateway cannot be used at port {port}: {error}"
        return [Finding("gateway", ERROR, what, command("fallbackd-client", "status"))]
    if missing:
        what = f"the gateway does not answer calls in {', '.join(missing)}"
        return [Finding("gateway", ERROR, what, _LISTS)]
    if not is_served:
        what = "the gateway has no backend to ask: configure one of a kind that ends in -http"
        return [Finding("gateway", WARNING, what)]
    return []


def _as_set_up(machine: Machine, port: int, tool: Tool, text: str) -> Finding | None:
    """What a call would meet that is made as `gateway setup` has written it for this program."""
    try:
        token = _token(machine, tool, text)
        if token is None:
            return None
        missing = [one for one in tool.others(machine.environ) if _changes(machine, one)]
        if missing:
            raise Unreadable(f"{missing[0].path} does not choose the key that its settings hold")
        if serves(port, token, api=tool.api):
            return None
    except WrongToken:
        wrong = "its settings hold another token than the gateway's"
    except (Silent, Unreadable) as error:
        wrong = str(error)
    else:
        what = f"no backend of the gateway answers {tool.name}: it speaks {tool.api}"
        fix = "configure one that does, or let a chain translate"
        return Finding("gateway", WARNING, f"{what}; {fix}")
    what = f"{tool.name} cannot ask the gateway: {wrong}"
    return Finding("gateway", ERROR, what, _set_up(tool))


def _changes(machine: Machine, part: Part) -> bool:
    """
    Raises:
        Unreadable: The file cannot be understood.
    """
    text = machine.read(part.path) or ""
    return bool(jsonc.load(part.put(text)) != jsonc.load(text))


def _token(machine: Machine, tool: Tool, text: str) -> str | None:
    """
    None: a person has written it in a way of their own.

    Raises:
        Unreadable: It cannot be had, or is none.
    """
    held = tool.token(text)
    if isinstance(held, Command):
        ran = machine.run(held.program, *held.arguments)
        if ran.status or not _TOKEN.fullmatch(ran.out.strip()):  # what it says may be a secret
            raise Unreadable(f"`{command(held.program, *held.arguments)}` prints no token")
        return ran.out.strip()
    if held is not None and not _TOKEN.fullmatch(held):
        raise Unreadable("what its settings hold is no token")
    return held
