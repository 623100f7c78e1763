"""What of the daemon's environment a program that it starts may see."""

from collections.abc import Iterable, Iterator, Mapping

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
        "FALLBACKD_RUN_DIRECTORY",
        # Where a test wants this daemon to die.
        failpoints.VARIABLE,
        "OLDPWD",
    }
)
_OUR_PREFIXES = ("WATCHDOG_", "LISTEN_")


class Inheritable(Mapping[str, str]):
    """
    The daemon's environment as the programs that it starts may inherit it.

    A live view: without the variables that hold a credential of any backend. A backend's own
    program is given its credential for one call, whatever it inherits; an agent whose login is in
    such a variable keeps it.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._withheld: frozenset[str] = frozenset()

    def withhold(self, names: Iterable[str]) -> None:
        """These instead of those before, from the next program on."""
        self._withheld = frozenset(names)

    def with_kept(self, names: Iterable[str]) -> Mapping[str, str]:
        """The same for a program that has these in any case."""
        kept = {name: self._environ[name] for name in names if name in self._environ}
        return {**self, **kept} if kept else self

    def __getitem__(self, name: str) -> str:
        if name in self._withheld:
            raise KeyError(name)
        return self._environ[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._environ if name not in self._withheld)

    def __len__(self) -> int:
        return sum(1 for _ in self)


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
