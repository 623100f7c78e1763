"""The gateway: whether it answers in each protocol, and the programs that are pointed at it."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from fnmatch import fnmatchcase

from fallbackd_client.cli.doctor.findings import (
    ERROR,
    NOTE,
    WARNING,
    Finding,
    Machine,
    command,
    user_name,
)
from fallbackd_client.errors import ClientError
from fallbackd_client.gateway import (
    TOOLS,
    Silent,
    WrongToken,
    is_open,
    not_listening,
    serves,
    unanswered,
)
from fallbackd_client.mcp.install import CLIENTS
from fallbackd_client.settings import jsonc
from fallbackd_client.settings.editing import Command
from fallbackd_client.settings.jsonc import Unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from fallbackd_client.calls import Json
    from fallbackd_client.cli.doctor.findings import Machine
    from fallbackd_client.client import Client
    from fallbackd_client.gateway import Tool
    from fallbackd_client.mcp.install import Client as McpClient
    from fallbackd_client.settings.editing import Part

_TABLES = ("tcp", "tcp6")
_LISTENS = "0A"
"""State of a socket in `/proc/net/tcp`. Source: proc_net_tcp(5), `TCP_LISTEN` of Linux."""
_LOOPBACK = frozenset(
    {
        *("00000000", "0100007F", "0" * 32, "0" * 24 + "01000000"),
        *("0" * 16 + "FFFF0000" + one for one in ("00000000", "0100007F")),
    }
)
"""Addresses there that cover 127.0.0.1 or ::1, as a machine with little-endian words has them."""
_LOCAL, _STATE, _UID, _INODE = 1, 3, 7, 9
"""Columns there."""


class Listener:
    """
    Args:
        uid: Whose socket it is.
        inode: Of the socket, by which the process is found.
    """

    __slots__ = ("inode", "port", "uid")

    def __init__(self, port: int, uid: int, inode: str) -> None:
        self.port = port
        self.uid = uid
        self.inode = inode

    def told(self, machine: Machine) -> str:
        """The program and its process; its user alone, where that cannot be seen."""
        pid = holders(machine).get(self.inode)
        if pid is None:
            return f"a program of {user_name(self.uid)}"
        name = (machine.read(f"{machine.root}/proc/{pid}/comm") or "").strip()
        return f"{name or 'a program'} (process {pid})"


def listeners(machine: Machine) -> list[Listener]:
    """List the listeners on the loopback addresses; none where the kernel does not tell."""
    found: dict[str, Listener] = {}
    for table in _TABLES:
        text = machine.read(f"{machine.root}/proc/net/{table}") or ""
        for line in text.splitlines()[1:]:
            words = line.split()
            if len(words) <= _INODE or words[_STATE] != _LISTENS:
                continue
            address, _, port = words[_LOCAL].partition(":")
            if address in _LOOPBACK:
                inode = words[_INODE]
                found[inode] = Listener(int(port, 16), int(words[_UID]), inode)
    return list(found.values())


def holders(machine: Machine) -> dict[str, int]:
    """The first process that has each socket open, by inode, among those that we may look into."""
    found: dict[str, int] = {}
    proc = f"{machine.root}/proc"
    for pid in sorted(int(one) for one in _names(proc) if one.isdecimal()):
        for descriptor in _names(f"{proc}/{pid}/fd"):
            try:
                target = os.readlink(f"{proc}/{pid}/fd/{descriptor}")
            except OSError:  # closed meanwhile
                continue
            if target.startswith("socket:["):
                found.setdefault(target[8:-1], pid)
    return found


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


_NAMED = {
    "the service manager": ("/run/systemd/private", "*/systemd/private"),
    "D-Bus": ("/run/user/*/bus", "*/dbus-*", "/run/dbus/system_bus_socket"),
    "docker": ("*/docker.sock",),
    "podman": ("*/podman.sock",),
    "containerd": ("*/containerd.sock",),
    "another container engine": ("*/crio.sock", "*/buildkitd.sock", "*/lxd/*", "*/incus/*"),
    "libvirt": ("*/libvirt/*-sock",),
    "tmux": ("*/tmux-*/*",),
    "screen": ("*/screen/S-*/*", "*/.screen/*"),
    "zellij": ("*/zellij*/*",),
    "ssh-agent": ("*/ssh-*/agent.*", "*/.ssh/agent/*", "*/keyring/ssh", "*/gcr/ssh"),
    "gpg-agent": ("*/S.gpg-agent*",),
    "the keyring": ("*/keyring/*",),
    "X11": ("*/.X11-unix/X*",),
    "Wayland": ("*/wayland-[0-9]*",),
    "kitty": ("*kitty*",),
    "wezterm": ("*/wezterm/*",),
    "VS Code": ("*/vscode-*", "*/code-*.sock"),
    "Emacs": ("*/emacs*/*",),
    "Neovim": ("*/nvim.*",),
}
"""Programs by their usual sockets; the first that fits counts."""
_VARIABLES = {
    "SSH_AUTH_SOCK": "ssh-agent",
    "DBUS_SESSION_BUS_ADDRESS": "D-Bus",
    "DOCKER_HOST": "docker",
    "CONTAINER_HOST": "podman",
    "TMUX": "tmux",
    "KITTY_LISTEN_ON": "kitty",
    "WEZTERM_UNIX_SOCKET": "wezterm",
    "NVIM": "Neovim",
}
"""Variables that name the socket of such a program where it is elsewhere."""
_LISTENS_AT = 0x10000
"""`__SO_ACCEPTCON` among the flags of a socket. Source: `unix_seq_show` of Linux."""
_SCOPED = (6, 12)
"""The Linux whose Landlock refuses abstract sockets."""
_MOST = 6


def look_at_ways(machine: Machine, status: dict[str, Json]) -> list[Finding]:
    """
    One note that names them; nothing where agents are not confined.

    Nothing is connected to: that would start what a service manager listens for.
    """
    daemon = status.get("daemon") or {}
    confinement = str(daemon.get("confinement") or "on")
    if not confinement.startswith(("on", "partly")):
        return []
    named: dict[str, str] = {}
    others: list[Listener] = []
    own = (machine.state_dir, os.path.dirname(os.path.abspath(machine.socket)))
    elsewhere = _elsewhere(machine)
    for inode, path in _sockets(machine):
        if path.startswith(tuple(f"{each}/" for each in own)):
            continue
        if name := elsewhere.get(path) or _name(path):
            named.setdefault(name, path)
        else:
            others.append(Listener(0, machine.uid, inode))
    others += [one for one in listeners(machine) if one.uid == machine.uid]
    listening = sorted(_programs(machine, others, daemon.get("pid")))
    if not named and not listening:
        return []
    order = [*_NAMED]
    words = [f"{name} ({named[name]})" for name in sorted(named, key=order.index)]
    words += listening[:_MOST]
    if len(listening) > _MOST:
        words.append(f"{len(listening) - _MOST} more programs that listen for you")
    what = "programs that are not confined can be reached by confined agents, and asked to act for"
    what += f" them: {', '.join(words)}; agents that run as another user cannot reach yours"
    return [Finding("confinement", NOTE, what)]


def _elsewhere(machine: Machine) -> dict[str, str]:
    """Paths of sockets that variables name, and whose they are."""
    found = {}
    for variable, name in _VARIABLES.items():
        for part in machine.environ.get(variable, "").split(","):
            path = part.removeprefix("unix:").removeprefix("path=")
            if path.startswith("/"):
                found[os.path.normpath(path)] = name
    return found


def _name(path: str) -> str | None:
    for name, patterns in _NAMED.items():
        if any(fnmatchcase(path, pattern) for pattern in patterns):
            return name
    return None


def _sockets(machine: Machine) -> list[tuple[str, str]]:
    """Inode and path of those that a program of this user can connect to."""
    found = []
    is_scoped = _kernel() >= _SCOPED
    for line in (machine.read(f"{machine.root}/proc/net/unix") or "").splitlines()[1:]:
        words = line.split(None, 7)
        if len(words) < 8 or not int(words[3], 16) & _LISTENS_AT:
            continue
        path = words[7]
        if _is_open(path) if path.startswith("/") else path.startswith("@") and not is_scoped:
            found.append((words[6], path))
    return found


def _kernel() -> tuple[int, ...]:
    parts = os.uname().release.split(".")[:2]
    return tuple(int(part) for part in parts if part.isdecimal())


def _is_open(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode) and os.access(path, os.W_OK)
    except OSError:
        return False


def _programs(machine: Machine, sockets: list[Listener], daemon: Json) -> set[str]:
    """Names of the programs of this user that listen there, but for the daemon and its own."""
    found: dict[int, set[int]] = {}
    known = holders(machine)
    for each in sockets:
        if (pid := known.get(each.inode)) is not None:
            found.setdefault(pid, set()).add(each.port)
    names: dict[str, set[int]] = {}
    for pid, ports in found.items():
        if pid == daemon or "FALLBACKD_RUN" in machine.environ_of(pid):
            continue
        if name := (machine.read(f"{machine.root}/proc/{pid}/comm") or "").strip():
            names.setdefault(name, set()).update(ports - {0})
    return {
        f"{name} (port {', '.join(map(str, sorted(ports)))})" if ports else name
        for name, ports in names.items()
    }


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


def _entry(machine: Machine, agent: McpClient) -> list[str] | None:
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
    """Find the programs whose calls to the gateway fail while no daemon answers."""
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
    """Find settings that name another port, and the programs that ask this one."""
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
    """Try what a call would meet that is made as `gateway setup` has set up this program."""
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
    Return the token; None: a person has written it in a way of their own.

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
        raise Unreadable("its settings do not hold a token")
    return held
