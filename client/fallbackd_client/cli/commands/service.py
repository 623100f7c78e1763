"""`service`: fallbackd as a user service of systemd; without systemd, in the background."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from contextlib import redirect_stdout

from fallbackd_client.cli import exits
from fallbackd_client.cli.doctor.daemon import SERVICE, SOCKET, Service, ask_manager
from fallbackd_client.cli.doctor.findings import Machine
from fallbackd_client.cli.output import Style, note, one_line, show
from fallbackd_client.cli.setup import units
from fallbackd_client.cli.setup.changes import (
    Asking,
    Change,
    make_changes,
    reported,
    run_change,
    short,
)
from fallbackd_client.cli.setup.starter import installed_completions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from fallbackd_client.calls import Json
    from fallbackd_client.client import Client

ACTIONS = ("install", "uninstall", "start", "stop", "restart", "status", "logs")
_CHANGING = ("install", "uninstall")


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        choices=ACTIONS,
        help="install writes the units and your PATH; uninstall removes the units only; logs"
        " shows the journal",
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--dry-run", action="store_true", help="show what would change")
    parser.add_argument("-f", "--follow", action="store_true", help="logs: follow new lines")
    parser.add_argument(
        "-n", "--lines", type=int, default=50, metavar="N", help="logs: how many (default: 50)"
    )


def run(args: argparse.Namespace, client: Client) -> int:
    machine = Machine(socket=args.socket)
    service, _ = ask_manager(machine)
    if args.action == "status":
        show(args, status_of(machine, service, client), view)
        return exits.OK
    if args.action == "logs":
        return _logs(args, machine, service)
    asking = Asking(yes=args.yes or args.action not in _CHANGING, dry_run=args.dry_run)
    asking.require_terminal()
    code = reported(args, asking, lambda: _change(args.action, machine, service, client, asking))
    if args.action == "uninstall" and (commands := removals(machine)):
        note("Settings of other programs still name fallbackd. To remove it from them:")
        for one in commands:
            note(f"  {one}")
    return code


def start(args: argparse.Namespace, client: Client) -> bool:
    """Start the service, or the daemon by itself; True: it answers, else why not was said."""
    machine = Machine(socket=args.socket)
    service, _ = ask_manager(machine)
    with redirect_stdout(sys.stderr):
        return _change("start", machine, service, client, Asking(yes=True)) == exits.OK


def _change(action: str, machine: Machine, service: Service, client: Client, asking: Asking) -> int:
    try:
        changes = _changes(action, machine, service, client)
    except units.NoProgram as error:
        note(f"fallbackd-client: {error}")
        return exits.CONFIG
    if changes is None:
        return exits.CONFIG
    if not changes:
        print(_NOTHING.get(action, "Nothing to do."), flush=True)
    elif not make_changes(changes, asking, question="Make these changes?"):
        return exits.FAILED
    if not asking.dry_run:
        _say_how(action, machine)
    return exits.OK


_NOTHING = {
    "start": "fallbackd is running already.",
    "stop": "fallbackd is not running.",
    "install": "Installed already; nothing to change.",
    "uninstall": "Not installed; nothing to remove.",
}


def _changes(
    action: str, machine: Machine, service: Service, client: Client
) -> list[Change] | None:
    """Return the changes; None: it cannot be done here, and why was said."""
    if action == "install":
        if not service.units:
            note(no_manager(machine))
            return None
        return install(machine, service, client)
    if action == "uninstall":
        return units.uninstall_changes(machine, service)
    if service.is_installed:
        names = (SOCKET, SERVICE) if action == "stop" else (SERVICE,)
        return [run_change(machine, "systemctl", "--user", action, *names)]
    found: list[Change] = []
    pid = units.daemon_pid(client)
    if pid is not None and action in ("stop", "restart"):
        found.append(units.stop_change(machine, client, pid))
    if pid is None or action == "restart":
        found += (
            []
            if action == "stop"
            else [units.start_change(machine, client, units.daemon_program(machine))]
        )
    return found


def install(
    machine: Machine, service: Service, client: Client, *, logins: Collection[str] = ()
) -> list[Change]:
    """
    Install the service, in place of a daemon that was started manually or before an upgrade.

    Args:
        logins: Variables of this shell by which agents log in, for the service.
    """
    daemon = units.running_daemon(client) if service.pid else {}
    is_outdated = units.is_outdated(daemon, units.daemon_program(machine))
    changes = stop_manual(machine, service, client)
    return changes + units.install_changes(machine, service, is_outdated=is_outdated, logins=logins)


def stop_manual(machine: Machine, service: Service, client: Client) -> list[Change]:
    """A daemon that was started in a terminal is in the way of the service."""
    if service.value(SOCKET, "ActiveState") == "active" and not service.pid:
        return []  # a client would start the service
    pid = units.daemon_pid(client)
    if pid is None or pid == service.pid:
        return []
    return [units.stop_change(machine, client, pid)]


def entries(machine: Machine) -> dict[tuple[str, str], bool]:
    """Return whether the settings of other programs name fallbackd, by command and agent."""
    from fallbackd_client.interactive import hooks
    from fallbackd_client.mcp.install import CLIENTS
    from fallbackd_client.settings import jsonc
    from fallbackd_client.settings.editing import read

    def found(path: str, look: Callable[[str], Json]) -> bool:
        try:
            return bool(look(read(path) or ""))
        except jsonc.Unreadable:  # what cannot be read is not known to name it
            return False

    environ = {**machine.environ, "HOME": machine.home}
    claude = hooks.claude_settings(environ)
    listed = {
        ("hooks", "claude"): found(claude, lambda text: hooks.has_hook(jsonc.load(text))),
        ("hooks", "codex"): found(machine.config, hooks.watches_codex),
        ("hooks", "opencode"): found(
            CLIENTS["opencode"].file(environ), lambda text: hooks.has_plugin(jsonc.load(text))
        ),
    }
    for name, client in CLIENTS.items():
        listed["mcp", name] = found(client.file(environ), client.installed)
    return listed


def removals(machine: Machine) -> list[str]:
    """Commands that take fallbackd out of the settings of other programs that name it now."""
    words = {"hooks": "hooks uninstall {}", "mcp": "mcp install {} --undo"}
    commands = [
        f"fallbackd-client {words[command].format(agent)}"
        for (command, agent), is_there in entries(machine).items()
        if is_there
    ]
    commands += [f"rm {short(machine, path)}" for path in installed_completions(machine)]
    return commands


def no_manager(machine: Machine) -> str:
    """Say why there can be no service, and what to do instead."""
    _, findings = ask_manager(machine)
    if findings:
        return f"{findings[0].what}; run: {findings[0].fix}"
    return (
        "no systemd user manager runs here, so fallbackd cannot be a service; start it in the"
        " background with: fallbackd-client service start"
    )


def _say_how(action: str, machine: Machine) -> None:
    if action == "install":
        print(how_to(machine), flush=True)
    elif action == "uninstall":
        print(
            "Configuration and records are still there; remove them with: rm -r"
            f" {short(machine, machine.config_dir)} {short(machine, machine.state_dir)}",
            flush=True,
        )


def _is_up(machine: Machine) -> str:
    service, _ = ask_manager(machine)
    return "The daemon is running." if service.pid else "The first client starts the daemon."


def how_to(machine: Machine) -> str:
    """List the commands that a person needs for a service later."""
    return "\n".join(
        [
            f"{_is_up(machine)} Later:",
            "  fallbackd-client service logs -f      follow its log",
            "  fallbackd-client service stop         stop it and running agents",
            "  fallbackd-client service restart      restart it; agents continue",
            "  fallbackd-client service uninstall    remove the service",
            "Upgrade: pipx install --force . && fallbackd-client service install",
        ]
    )


def _logs(args: argparse.Namespace, machine: Machine, service: Service) -> int:
    if service.is_installed:
        words = ["journalctl", "--user", "-u", SERVICE, "-n", str(args.lines)]
    elif os.path.exists(units.log_path(machine)):
        words = ["tail", "-n", str(args.lines), units.log_path(machine)]
    else:
        note(
            "fallbackd is not installed as a service, so its log is in the terminal that it was"
            " started in; install it with: fallbackd-client service install"
        )
        return exits.FAILED
    if args.follow:
        words.append("-f")
    if machine.which(words[0]) is None:
        note(f"{words[0]} is not installed, so the log cannot be shown")
        return exits.FAILED
    return exits.OK if subprocess.run(words, check=False).returncode == 0 else exits.FAILED


def status_of(machine: Machine, service: Service, client: Client) -> dict[str, Json]:
    pid = service.pid or None
    if pid is None and service.value(SOCKET, "ActiveState") != "active":
        pid = units.daemon_pid(client)  # else the question would start it
    environ = service.environ(machine) if service.is_installed else machine.environ_of(pid or 0)
    linger = f"{machine.root}/var/lib/systemd/linger/{machine.user}"
    return {
        "installed": service.is_installed,
        "enabled": service.value(SOCKET, "UnitFileState") == "enabled",
        "socket": service.value(SOCKET, "ActiveState") or None,
        "service": service.value(SERVICE, "ActiveState") or None,
        "pid": pid,
        "program": service.program or None,
        "path": environ.get("PATH"),
        "environment_file": machine.env_file,
        "lingers": os.path.exists(linger),
    }


def view(found: dict[str, Json], style: Style) -> str:
    pid = found["pid"]
    running = f"process {pid}" if pid else "not running"
    if not found["installed"]:
        started = "started manually" if pid else "start it with: fallbackd-client service start"
        return f"not installed as a user service; fallbackd: {running}, {started}"
    if not pid and found["socket"] == "active":
        running = "not running; the first client starts it"
    enabled = "enabled" if found["enabled"] else "not enabled"
    stays = "yes" if found["lingers"] else "no (loginctl enable-linger)"
    rows = [
        ("service", f"{found['service']}, {running}"),
        ("socket", f"{found['socket']}, {enabled}"),
        ("program", found["program"]),
        ("PATH", found["path"]),
        ("set in", found["environment_file"]),
        ("after logout", stays),
    ]
    return "\n".join(f"{style.paint(name.ljust(12), 'dim')}  {one_line(it)}" for name, it in rows)
