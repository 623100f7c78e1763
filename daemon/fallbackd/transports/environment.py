"""What of the daemon's environment a program that it starts may see."""

from collections.abc import Iterable, Mapping

from fallbackd.lib import failpoints

_OURS = frozenset(
    {
        # Promises that systemd made to this one process.
        "NOTIFY_SOCKET",
        "INVOCATION_ID",
        "JOURNAL_STREAM",
        "CREDENTIALS_DIRECTORY",
        "MAINPID",
        "MANAGERPID",
        "SYSTEMD_EXEC_PID",
        "FDSTORE",
        "RUNTIME_DIRECTORY",
        "STATE_DIRECTORY",
        "CACHE_DIRECTORY",
        "LOGS_DIRECTORY",
        "CONFIGURATION_DIRECTORY",
        "MEMORY_PRESSURE_WATCH",
        "MEMORY_PRESSURE_WRITE",
        # Switches of the daemon's own interpreter, not of the user's.
        "PYTHONUNBUFFERED",
        "PYTHONSAFEPATH",
        "PYTHONNOUSERSITE",
        "PYTHONDONTWRITEBYTECODE",
        "PYTHONFAULTHANDLER",
        "PYTHONASYNCIODEBUG",
        "PYTHONDEVMODE",
        # Marks of another attempt, when the daemon itself was started from inside one.
        "FALLBACKD_DELEGATION",
        "FALLBACKD_ATTEMPT",
        "FALLBACKD_RUN",
        # Where a test wants this daemon to die.
        failpoints.VARIABLE,
        "OLDPWD",
    }
)
_OUR_PREFIXES = ("WATCHDOG_", "LISTEN_")


def child_environment(
    inherited: Mapping[str, str],
    *,
    added: Mapping[str, str],
    unset: Iterable[str],
    marks: Mapping[str, str],
) -> dict[str, str]:
    """`inherited` scrubbed, then `added`, without `unset`, and `marks` above all."""
    env = {
        name: value
        for name, value in inherited.items()
        if name not in _OURS and not name.startswith(_OUR_PREFIXES)
    }
    env.update(added)
    for name in unset:
        env.pop(name, None)
    env.update(marks)
    return env
