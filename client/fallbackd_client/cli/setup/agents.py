"""Which agents are on this machine, and whether they are logged in, as far as can be seen."""

from __future__ import annotations

from fallbackd_client.cli.doctor.opencode import unsupported_version
from fallbackd_client.cli.doctor.programs import Program, is_logged_in
from fallbackd_client.cli.setup.changes import short

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fallbackd_client.cli.doctor.findings import Machine
    from fallbackd_client.cli.render import Style


def installed(machine: Machine, programs: Sequence[Program]) -> list[tuple[Program, str]]:
    """Those on the PATH of this shell, each with its place."""
    found = [(one, machine.which(one.name)) for one in programs]
    return [(one, place) for one, place in found if place is not None]


def _login(machine: Machine, program: Program, style: Style) -> str:
    if not program.files:
        return ""
    if is_logged_in(machine, program, {}):
        return style.paint("  logged in", "green")
    return style.paint(f"  not logged in: {program.login}", "yellow")


def first_question(machine: Machine, programs: Sequence[Program]) -> str:
    """Whether to run a prompt. A login that is kept elsewhere, in a key ring, cannot be seen."""
    there = [one for one, _ in installed(machine, programs)]
    if any(not one.files or is_logged_in(machine, one, {}) for one in there):
        return "Run a first prompt? It counts towards your plan."
    return (
        f"No agent seems to be logged in (log in with: {there[0].login}).\n"
        "Run a first prompt all the same?"
    )


def agents_view(machine: Machine, programs: Sequence[Program], style: Style) -> str:
    there = installed(machine, programs)
    lines = ["Agents on your PATH:"]
    for one, place in there:
        shown = _login(machine, one, style)
        if why := unsupported_version(machine, one.name):
            shown = style.paint(f"  {why}", "yellow")
        lines.append(f"  {one.name.ljust(9)} {short(machine, place)}{shown}")
    names = {one.name for one, _ in there}
    missing = [one for one in programs if one.name not in names and one.install]
    if not there:
        lines = [f"No agent is on your PATH ({machine.path})."]
    if missing and not there:
        lines.append("Install one, for example:")
        lines += [f"  {one.install}" for one in missing]
    elif missing:
        lines.append(f"  not installed: {', '.join(one.name for one in missing)}")
    return "\n".join(lines)
