"""Programs that are not confined and that a confined agent can ask to act for it."""

from __future__ import annotations

import os
import stat
from fnmatch import fnmatchcase

from fallbackd_client.cli.doctor.findings import NOTE, Finding, Machine
from fallbackd_client.cli.doctor.ports import Listener, holders, listeners

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.calls import Json

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
_LISTENS = 0x10000
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
        if len(words) < 8 or not int(words[3], 16) & _LISTENS:
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
