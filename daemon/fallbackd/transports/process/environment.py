"""What of the daemon's environment a program that it starts may see."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping

from fallbackd.backends.variables import is_for_every_program
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
    The daemon's environment as the programs that it starts inherit it: a live view of the
    variables that are for every program.

    The other variables that a program is given are named for each call.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        *,
        is_for_all: Callable[[str], bool] = is_for_every_program,
    ) -> None:
        self._environ = environ
        self._is_for_all = is_for_all
        self._withheld: frozenset[str] = frozenset()

    def withhold(self, names: Iterable[str]) -> None:
        """Leave these out of what every program is given, instead of those before."""
        self._withheld = frozenset(names)

    def with_kept(self, names: Iterable[str]) -> Mapping[str, str]:
        """The same for a program that is given these too."""
        kept = {name: self._environ[name] for name in names if name in self._environ}
        return {**self, **kept} if kept else self

    def __getitem__(self, name: str) -> str:
        if not self._has(name):
            raise KeyError(name)
        return self._environ[name]

    def __iter__(self) -> Iterator[str]:
        return filter(self._has, self._environ)

    def _has(self, name: str) -> bool:
        return self._is_for_all(name) and name not in self._withheld

    def __len__(self) -> int:
        return sum(1 for _ in self)


def inheritable(environ: Mapping[str, str] | None) -> Inheritable:
    """A view of all variables of a mapping; None: of the process's own that are for programs."""
    if environ is None:
        return Inheritable(os.environ)
    return environ if isinstance(environ, Inheritable) else Inheritable(environ, is_for_all=bool)


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
