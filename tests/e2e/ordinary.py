"""An ordinary user for tests that root runs: who starts the daemon and owns its files."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.support.daemon import ROOT

NOBODY = 65_534
SITE = sysconfig.get_path("purelib")
CODE = f"{ROOT / 'daemon'}:{ROOT / 'client'}:{SITE}"
"""`PYTHONPATH` for another interpreter than ours."""


def own(base: Path) -> tuple[str, ...]:
    """What starts a program as an ordinary user, to whom all of `base` belongs."""
    if os.geteuid() != 0:
        return ()
    give = f'chown -R {NOBODY}:{NOBODY} {base} "$XDG_RUNTIME_DIR" && exec setpriv'
    give += f' --reuid={NOBODY} --regid={NOBODY} --clear-groups --inh-caps=-all "$@"'
    return ("sh", "-c", give, "sh")


def give(base: Path) -> None:
    """Let what was made meanwhile belong to that user too."""
    if os.geteuid() == 0:
        subprocess.run(["chown", "-R", f"{NOBODY}:{NOBODY}", str(base)], check=True)


def python_for_all() -> str:
    """An interpreter that every user may run: ours, or else that of the distribution."""
    above = Path(sys.executable).resolve().parents
    is_open = all(each.stat().st_mode & 0o005 == 0o005 for each in above)
    return sys.executable if is_open or os.geteuid() != 0 else "/usr/bin/python3"


def python_of_all(base: Path) -> tuple[str, ...]:
    """The same as `own`, of a daemon, whose interpreter may be closed to other users."""
    python = python_for_all()
    if python == sys.executable:
        return own(base)
    *before, _ = own(base)
    return (*before, "sh", "sh", "-c", f'shift && exec {python} "$@"', "sh")
