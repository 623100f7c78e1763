"""`doctor --fix`: run what the findings name, one command after the other."""

from __future__ import annotations

import os
import subprocess
import sys

from fallbackd_client.cli.doctor.findings import ERROR, NOTE
from fallbackd_client.cli.output import note, one_line, style_of
from fallbackd_client.cli.setup.changes import Asking

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from fallbackd_client.cli.doctor.findings import Finding, Machine

_FOR_THE_SHELL = ("export ",)
"""What only the shell itself can do."""


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
    """In a shell of its own, on this terminal: a login may ask for something."""
    environ = {**machine.environ, "FALLBACKD_SOCKET": machine.socket}
    if machine.which("fallbackd-client") is None:  # started by its path
        environ["PATH"] = f"{machine.path}:{os.path.dirname(os.path.abspath(sys.argv[0]))}"
    return subprocess.run(["/bin/sh", "-c", fix], env=environ, check=False).returncode
