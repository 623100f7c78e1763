"""`doctor`: diagnose problems around the daemon, with the command that fixes each."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

from fallbackd_client.cli import exits
from fallbackd_client.cli.doctor.daemon import (
    ask_daemon,
    ask_manager,
    look_at_backends,
    look_at_daemon,
    look_at_file,
    look_at_service,
    look_at_silence,
)
from fallbackd_client.cli.doctor.findings import ERROR, NOTE, WARNING, Finding, Machine
from fallbackd_client.cli.doctor.gateway import (
    look_at_callers,
    look_at_gateway,
    look_at_mcp,
    look_at_ways,
)
from fallbackd_client.cli.doctor.places import look_at_config, look_at_socket, look_at_state
from fallbackd_client.cli.doctor.programs import (
    ask_program,
    look_at_env_file,
    look_at_opencode,
    look_at_programs,
    look_at_toolchains,
    presumed_environ,
    programs_of,
)
from fallbackd_client.cli.output import Style, UsageError, note, one_line, show, style_of, wrapped
from fallbackd_client.cli.setup.changes import Asking

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from fallbackd_client.calls import Json
    from fallbackd_client.cli.doctor.findings import Finding, Machine
    from fallbackd_client.client import Client

_FOR_THE_SHELL = ("export ",)
"""Commands that only the shell itself can run."""


def fix(machine: Machine, examine: Callable[[], list[Finding]], *, yes: bool) -> None:
    """
    Ask for each command, run it, and look again: one command may have fixed several findings.

    Args:
        yes: Run commands without asking, but for what is a matter of taste: notes, and which
            agents to install and log in to.
    """
    asking = Asking(yes=yes)
    asking.require_terminal(
        "use --yes to agree to everything, or doctor without --fix to see what is wrong"
    )
    style = style_of(sys.stderr)
    handled: set[str] = set()
    while (finding := _next(examine(), handled, yes=yes)) is not None:
        handled.add(finding.fix)
        note(f"{finding.level}: {one_line(finding.what)}")
        print(f"  {style.paint('$ ' + one_line(finding.fix), 'bold')}", file=sys.stderr, flush=True)
        if finding.fix.startswith(_FOR_THE_SHELL):
            note("  run this in your shell; doctor cannot do it for you")
        elif asking.agree("  Run it?", default=finding.level != NOTE):
            status = _run(machine, finding.fix)
            if status:
                note(f"  it ended with exit status {status}")


def _next(findings: list[Finding], handled: set[str], *, yes: bool) -> Finding | None:
    for one in findings:
        if one.fix and one.fix not in handled and not (yes and _is_taste(one)):
            return one
    return None


def _is_taste(finding: Finding) -> bool:
    return finding.level == NOTE or (finding.check == "programs" and finding.level != ERROR)


def _run(machine: Machine, fix: str) -> int:
    """Run a fix in a shell of its own, on this terminal: a login may ask for something."""
    environ = {**machine.environ, "FALLBACKD_SOCKET": machine.socket}
    if machine.which("fallbackd-client") is None:  # started by its path
        environ["PATH"] = f"{machine.path}:{os.path.dirname(os.path.abspath(sys.argv[0]))}"
    return subprocess.run(["/bin/sh", "-c", fix], env=environ, check=False).returncode


CHECKS = (
    *("configuration", "state", "socket", "programs", "opencode", "mcp", "gateway", "service"),
    *("toolchains", "confinement", "daemon"),
)
"""Causes before what comes of them, so that the commands may be run in the order they come in."""
_COLOURS = {ERROR: "red", WARNING: "yellow", NOTE: "dim"}
_RANKS = {ERROR: 0, WARNING: 1, NOTE: 2}
_INDENT = 9


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quiet", action="store_true", help="show problems only")
    parser.add_argument(
        "--fix", action="store_true", help="run the commands that fix them, each after a question"
    )
    parser.add_argument(
        "--yes",
        action="store_true",
        help="--fix: do not ask; notes, missing agents and logins are left alone",
    )


def run(args: argparse.Namespace, client: Client) -> int:
    """1 where something does not work, else 0. Nothing that it asks is billed."""
    machine = Machine(socket=args.socket)
    if args.fix:
        # DROPPED

        fix(machine, lambda: examine(Machine(socket=args.socket), client)[0], yes=args.yes)
    elif args.yes:
        raise UsageError("--yes belongs to --fix")
    findings, unseen = examine(machine, client)
    if args.quiet:
        findings = [one for one in findings if one.level != NOTE]
    is_well = all(one.level != ERROR for one in findings)
    document = {
        "ok": is_well,
        "checked": [one for one in CHECKS if one not in unseen],
        "not_checked": [one for one in CHECKS if one in unseen],
        "findings": [one.document() for one in findings],
    }
    show(args, document, view)
    return exits.OK if is_well else exits.FAILED


def examine(machine: Machine, client: Client) -> tuple[list[Finding], set[str]]:
    """
    All findings, the worst first, and causes before what comes of them; then the checks that
    could not be made, since the daemon does not answer.
    """
    answer = ask_daemon(client)  # first: it may be started by that, and then there is more to see
    if isinstance(answer, dict):
        machine.follow(answer.get("daemon") or {})
    service, found = ask_manager(machine)
    found += look_at_service(machine, service)
    unseen = set()
    is_running = isinstance(answer, dict)
    found += look_at_socket(machine) + look_at_state(machine)
    found += look_at_config(machine, is_running=is_running)
    if isinstance(answer, dict):
        found += look_at_daemon(machine, service, answer)
        found += look_at_backends(client)
        gateway = look_at_gateway(machine, client)
        programs = programs_of(answer.get("programs"))
        pid = (answer.get("daemon") or {}).get("pid")
        environ = machine.environ_of(pid) if isinstance(pid, int) else {}
        is_service = pid is not None and pid == service.pid
        found += look_at_env_file(machine, environ, is_service=is_service)
        path = (answer.get("daemon") or {}).get("path")
        if not environ and isinstance(path, str):  # other processes may not look into its memory
            environ = {**presumed_environ(machine, programs, answer.get("health")), "PATH": path}
        found += look_at_toolchains(machine, answer, environ, is_service=is_service)
        found += look_at_ways(machine, answer)
    else:
        found += look_at_silence(machine, service, answer)
        found += look_at_file(machine, service) + look_at_callers(machine)
        gateway = None
        unseen |= {"toolchains", "confinement"}
        programs = ask_program(machine, service.program or machine.which("fallbackd"))
        environ = service.environ(machine) if service.is_installed else {}
        is_service = service.is_installed
        if not programs:
            unseen.add("programs")
    if gateway is None:
        unseen.add("gateway")
    found += gateway or []
    found += look_at_programs(machine, programs, environ, is_service=is_service)
    found += look_at_opencode(machine) + look_at_mcp(machine)
    found.sort(key=lambda one: (_RANKS[one.level], CHECKS.index(one.check)))
    return found, unseen


def _finding_lines(one: dict[str, Json], style: Style) -> list[str]:
    level = str(one["level"])
    word = style.paint(level.ljust(7), _COLOURS.get(level))
    what = wrapped(f"{one['check']}: {one_line(one['what'])}", style.narrower(_INDENT))
    lines = [f"{word}  {what[0]}", *(" " * _INDENT + line for line in what[1:])]
    if one["fix"]:
        lines.append(" " * _INDENT + style.paint("$ " + one_line(one["fix"]), "bold"))
    return lines


def _counts(levels: list[str]) -> list[str]:
    return [
        f"{number} {level}{'' if number == 1 else 's'}"
        for level in (ERROR, WARNING, NOTE)
        if (number := levels.count(level))
    ]


def view(document: dict[str, Json], style: Style) -> str:
    findings = document["findings"]
    lines = [line for one in findings for line in _finding_lines(one, style)]
    counts = _counts([str(one["level"]) for one in findings])
    well = [name for name in document["checked"] if name not in {o["check"] for o in findings}]
    if lines:
        lines.append("")
    if well:
        ok = wrapped(f"OK: {', '.join(well)}", style)
        lines += [style.paint(line, "green") for line in ok]
    if unseen := document["not_checked"]:
        words = f"Not looked at, as the daemon does not answer: {', '.join(unseen)}"
        lines += [style.paint(line, "yellow") for line in wrapped(words, style)]
    if counts:
        lines.append(", ".join(counts))
    return "\n".join(lines)
