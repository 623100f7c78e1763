"""`setup`: make fallbackd work on this machine, and show that it does."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile

from fallbackd_client import __version__
from fallbackd_client.cli import exits
from fallbackd_client.cli.commands.service import entries, how_to, install
from fallbackd_client.cli.doctor.daemon import ask_manager
from fallbackd_client.cli.doctor.findings import Machine
from fallbackd_client.cli.doctor.programs import ask_program, variable_of_shell
from fallbackd_client.cli.ending import finish, wait_for
from fallbackd_client.cli.output import note, show, style_of
from fallbackd_client.cli.setup import units
from fallbackd_client.cli.setup.changes import Asking, make_changes, removal, reported, short
from fallbackd_client.cli.setup.starter import (
    agents_view,
    completion_changes,
    config_changes,
    first_question,
    installed,
    installed_completions,
    made_files,
)
from fallbackd_client.cli.share import (
    CONFIG,
    OPENCODE_2_PLUGIN,
    OPENCODE_PLUGIN,
    UNITS,
    VOICE_MODULE,
    shared,
)
from fallbackd_client.errors import ClientError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fallbackd_client.calls import Json
    from fallbackd_client.cli.doctor.daemon import Service
    from fallbackd_client.cli.doctor.programs import Program
    from fallbackd_client.cli.output import Style
    from fallbackd_client.cli.setup.changes import Change
    from fallbackd_client.client import Client
    from fallbackd_client.settings.editing import Part

PROMPT = "Reply with the single word: ready"
_DEADLINE_S = 180.0
_FILES = {
    "opencode plugin": OPENCODE_PLUGIN,
    "opencode 2 plugin": OPENCODE_2_PLUGIN,
    "voice module": VOICE_MODULE,
    "example configuration": CONFIG,
    "units": UNITS,
}


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument(
        "--dry-run", action="store_true", help="show what would change, and change nothing"
    )
    parser.add_argument(
        "--no-service",
        action="store_true",
        help="start the daemon in the background instead of installing a user service",
    )
    parser.add_argument(
        "--no-delegate", action="store_true", help="do not run a first prompt at the end"
    )
    parser.add_argument(
        "--files",
        action="store_true",
        help="print where the opencode plugin, the voice module and other files are, and exit",
    )
    parser.add_argument(
        "--undo",
        action="store_true",
        help="stop fallbackd and take out what setup has made; records and changed files stay",
    )


def run(args: argparse.Namespace, client: Client) -> int:
    if args.files:
        show(args, {name: shared(path) for name, path in _FILES.items()}, _files_view)
        return exits.OK
    asking = Asking(yes=args.yes, dry_run=args.dry_run)
    asking.require_terminal()
    work = _undo if args.undo else _set_up
    return reported(args, asking, lambda: work(args, client, asking))


def _set_up(args: argparse.Namespace, client: Client, asking: Asking) -> int:
    machine = Machine(socket=args.socket)
    try:
        program = units.daemon_program(machine)
    except units.NoProgram as error:
        note(f"fallbackd-client: {error}")
        return exits.CONFIG
    programs = ask_program(machine, program)
    print(f"fallbackd {__version__}, {program}", flush=True)
    print(agents_view(machine, programs, style_of(sys.stdout)), flush=True)
    service, _ = ask_manager(machine)
    is_service = not args.no_service and _can_be_a_service(machine, service)
    changes = _changes(machine, service, client, program, programs, is_service=is_service)
    if not _has_made(changes, asking):
        return exits.FAILED
    if asking.dry_run:
        return exits.OK
    if is_service:
        _offer_lingering(machine, asking)
        print(how_to(machine), flush=True)
    _offer_entries(args, machine, programs, asking)
    _offer_shell(args, machine, client, asking)
    if not installed(machine, programs):
        note("no agent is installed yet; install one, then run: fallbackd-client setup")
        return exits.CONFIG
    if args.no_delegate or not asking.agree(first_question(machine, programs)):
        return exits.OK
    return _first_delegation(args, client)


_OFFERS = {
    "hooks": "Let your open {} sessions report their limits?",
    "mcp": "Let {} hand work to your other agents, over MCP?",
    "hooks opencode": "Let your open {} sessions go on with another model when theirs is limited?",
}


def _offer_entries(
    args: argparse.Namespace, machine: Machine, programs: Sequence[Program], asking: Asking
) -> None:
    """Ask, for each installed agent, for what its own settings can have."""
    if asking.yes:  # settings of other programs are changed where a person agrees to each
        return
    there = {one.name for one, _ in installed(machine, programs)}
    for (command, agent), is_there in entries(machine).items():
        if agent in there and not is_there:
            undo = "uninstall" if command == "hooks" else "install --undo"
            print(f"  undone by: fallbackd-client {command} {undo} {agent}", flush=True)
            if asking.agree(_OFFERS.get(f"{command} {agent}", _OFFERS[command]).format(agent)):
                _run(args, command, "install", agent, "--yes")


def _shell_part(machine: Machine) -> Part:
    from fallbackd_client.settings.toml_block import block_part

    lines = '[defaults]\nshell = "confined"'
    table, label = ("defaults",), "fallbackd shell"
    return block_part(machine.config, lines, table=table, label=label, stands_alone=True)


def _offer_shell(
    args: argparse.Namespace, machine: Machine, client: Client, asking: Asking
) -> None:
    """Ask whether agents may run the commands of toolchains, where the kernel confines them."""
    from fallbackd_client.settings.jsonc import Unreadable
    from fallbackd_client.settings.toml_block import parse

    if asking.yes:
        return
    try:
        if "defaults" in parse(machine.read(machine.config) or ""):  # of a person
            return
        daemon = client.call("status", {}).get("daemon") or {}
    except (Unreadable, ClientError):
        return
    if daemon.get("confinement") != "on":
        return
    print("  undone by: fallbackd-client setup --undo", flush=True)
    question = (
        "Let agents run commands (builds, tests) without asking, since the kernel confines them to"
        " their\ndirectory? Pushing and publishing stay refused."
    )
    if asking.agree(question, default=False):
        _write_shell(machine, undo=False)


def _write_shell(machine: Machine, *, undo: bool) -> None:
    from fallbackd_client.settings.editing import edits, write_all
    from fallbackd_client.settings.jsonc import Unreadable

    try:
        found = edits([_shell_part(machine)], undo=undo)
        write_all(found)
    except (Unreadable, OSError) as error:
        note(f"{error}; change it with: fallbackd-client config edit")
        return
    if found:
        what = "take shell out of" if undo else "set shell in"
        print(f"done  {what} {short(machine, machine.config)}", flush=True)


def _run(args: argparse.Namespace, *words: str) -> int:
    """Another command of this program, at the same socket."""
    from fallbackd_client.cli.main import main

    return main([*([] if args.socket is None else ["--socket", args.socket]), *words])


def _undo(args: argparse.Namespace, client: Client, asking: Asking) -> int:
    machine = Machine(socket=args.socket)
    if (code := _take_out(args, machine, asking)) != exits.OK:
        return code
    if not asking.dry_run:
        _write_shell(machine, undo=True)
    service, _ = ask_manager(machine)
    changes = units.uninstall_changes(machine, service)
    pid = None if service.is_installed else units.daemon_pid(client)
    if pid is not None:
        changes.insert(0, units.stop_change(machine, client, pid))
    for path in (*installed_completions(machine), *made_files(machine)):
        changes += removal(machine, path)
    if not changes:
        print("Nothing of setup is left.", flush=True)
    elif not make_changes(changes, asking, question="Make these changes?"):
        return exits.FAILED
    for path in (machine.config, machine.env_file, machine.state_dir):
        if os.path.exists(path) and not asking.dry_run:
            print(f"kept: {short(machine, path)}", flush=True)
    return exits.OK


def _take_out(args: argparse.Namespace, machine: Machine, asking: Asking) -> int:
    """Ask, then take fallbackd out of the settings of other programs; the exit code."""
    named = [one for one, is_there in entries(machine).items() if is_there]
    for command, agent in named:
        print(f"  take fallbackd out of the settings of {agent} ({command})", flush=True)
    if not named or asking.dry_run:
        return exits.OK
    if not asking.agree("Take it out there?"):
        return exits.FAILED
    for command, agent in named:
        words = ("uninstall", agent) if command == "hooks" else ("install", agent, "--undo")
        if (code := _run(args, command, *words, "--yes")) != exits.OK:
            return code
    return exits.OK


def _offer_lingering(machine: Machine, asking: Asking) -> None:
    change = units.linger_change(machine)
    if change and asking.agree("Keep the service running when you log out?"):
        make_changes(change, Asking(yes=True), question="")


def _has_made(changes: list[Change], asking: Asking) -> bool:
    if not changes:
        print("Set up already; nothing to change.", flush=True)
        return True
    return make_changes(changes, asking, question="Make these changes?")


def _files_view(found: dict[str, Json], style: Style) -> str:
    width = max(len(name) for name in found)
    return "\n".join(f"{name.ljust(width)}  {path or 'missing'}" for name, path in found.items())


def _can_be_a_service(machine: Machine, service: Service) -> bool:
    """Return whether there can be a service; the person reads why there cannot."""
    if not service.units:
        print(_why_no_service(machine), flush=True)
    return bool(service.units)


def _why_no_service(machine: Machine) -> str:
    _, findings = ask_manager(machine)
    why = findings[0].what if findings else "no systemd user manager runs here"
    fix = f"For a service run: {findings[0].fix}\n" if findings and findings[0].fix else ""
    return f"{fix}Without a service, since {why}."


def _changes(
    machine: Machine,
    service: Service,
    client: Client,
    program: str,
    programs: Sequence[Program],
    *,
    is_service: bool,
) -> list[Change]:
    changes = config_changes(machine, program) + completion_changes(machine)
    if is_service:
        return changes + install(machine, service, client, logins=_logins(machine, programs))
    daemon = units.running_daemon(client)
    lost = units.lost_to(machine, daemon, programs)
    if lost:
        print(f"The running fallbackd's PATH does not include {', '.join(lost)}.", flush=True)
    if lost or units.is_outdated(daemon, program):
        changes.append(units.stop_change(machine, client, daemon["pid"]))
        daemon = {}
    if not daemon:
        changes.append(units.start_change(machine, client, program))
    return changes


def _logins(machine: Machine, programs: Sequence[Program]) -> list[str]:
    """Variables that installed agents log in by, which a service does not have by itself."""
    there = [one for one, _ in installed(machine, programs)]
    found = (variable_of_shell(machine, one) for one in there)
    return [name for name in found if name is not None]


def _first_delegation(args: argparse.Namespace, client: Client) -> int:
    """Delegate in an empty directory, with permission to read."""
    print(f'$ fallbackd-client delegate "{PROMPT}"', flush=True)
    with tempfile.TemporaryDirectory(prefix="fallbackd-setup-") as directory:
        params = {
            "prompt": PROMPT,
            "cwd": directory,
            "permissions": "read",
            "wait": "accepted",
            "timeout_s": _DEADLINE_S,
            "request_id": os.urandom(16).hex(),
        }
        found = client.call("delegate", params)
        waited = wait_for(client, found, None)
        code = finish(args, waited.found, waited=True, progress=waited.progress)
    if code == exits.OK:
        print(f"{waited.found.get('served_by')} answered: fallbackd is ready.", flush=True)
        print('Next: fallbackd-client delegate "…"; fallbackd-client status', flush=True)
    else:
        note("the first prompt got no answer; diagnose with: fallbackd-client doctor")
    return code
