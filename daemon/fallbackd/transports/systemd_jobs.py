"""
The reason why the manager stops us: both a stop and a restart arrive as SIGTERM.

Source: systemctl(1), `list-jobs`; systemd.exec(5), INVOCATION_ID.
"""

import subprocess
from collections.abc import Mapping
from pathlib import Path

import anyio

from fallbackd.transports.process.environment import child_environment

ASK_LIMIT_S = 3.0


async def is_restart(environ: Mapping[str, str], *, inheritable: Mapping[str, str]) -> bool:
    """
    Return whether the job that ends this service starts it again. False where that is not known.

    Args:
        inheritable: What of `environ` the manager's client may see.
    """
    if "INVOCATION_ID" not in environ:
        return False
    try:
        unit, is_user = _own_unit()
        if unit is None:
            return False
        manager = ["--user"] if is_user else []
        command = ["systemctl", *manager, "list-jobs", "--no-legend", "--plain", "--full"]
        with anyio.fail_after(ASK_LIMIT_S):
            found = await anyio.run_process(
                command,
                stdin=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=False,
                env=child_environment(inheritable, added={}, unset=(), marks={}),
            )
    except (OSError, TimeoutError):
        return False
    return is_restarted(found.stdout.decode("utf-8", "replace"), unit)


def _own_unit() -> tuple[str | None, bool]:
    return unit_of(Path("/proc/self/cgroup").read_text("utf-8"))


def unit_of(cgroup: str) -> tuple[str | None, bool]:
    """The service that a process belongs to, and whether a user's manager runs it."""
    path = cgroup.strip().rpartition(":")[2]
    names = [name for name in path.split("/") if name.endswith(".service")]
    is_user = any(name.startswith("user@") for name in names)
    if not names or names[-1].startswith("user@"):
        return None, is_user
    return names[-1], is_user


def is_restarted(jobs: str, unit: str) -> bool:
    """
    Args:
        jobs: What `list-jobs` prints: number, unit, type, state in a line each.
    """
    rows = (line.split() for line in jobs.splitlines())
    return any(len(row) >= 3 and row[1] == unit and "restart" in row[2] for row in rows)
