"""The surroundings of a program: variables of the daemon that it sees, places that it may use."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from fallbackd.backends.variables import (
    INSTEAD_OF_FILE,
    instead_of_file,
    is_for_every_program,
)
from fallbackd.core.protocol import Confinement, OwnCopy
from fallbackd.lib import failpoints
from fallbackd.lib.directories import expand, places
from fallbackd.transports.process.runner.confine import git_places, places_of

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
        """Return a copy for a program that is given these too."""
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
    env[INSTEAD_OF_FILE] = instead_of_file()
    env.update(added)
    for name in unset:
        env.pop(name, None)
    env.update(marks)
    return env


# --- confinement ---------------------------------------------------------------------------------
# What a runner needs to know about the places that its program may use.


def confine_words(
    confinement: Confinement | None, environ: Mapping[str, str], *, directory: str
) -> dict[str, Any] | None:
    """
    Make the words for `runner.confine.build`: paths, as the program with this environment will see
    them.

    Args:
        directory: Of the attempt: the program may read it, and only its runner writes there.
    """
    if confinement is None:
        return None
    home = os.path.expanduser("~")

    def paths(given: Iterable[str]) -> tuple[str, ...]:
        return places(given, environ, home=home)

    writable = [*paths(confinement.writable)]
    if (temporary := environ.get("TMPDIR")) and os.path.isabs(temporary):
        writable.append(temporary)
    return {
        "toolchains": [
            {
                "programs": each.programs,
                "signs": each.signs,
                "directories": paths(each.writes),
                "files": paths(each.files),
            }
            for each in confinement.toolchains
        ],
        "path": environ.get("PATH", os.defpath),
        "cwd": confinement.cwd,
        "made": [path for path in writable if path.endswith("/")],
        "writable": [path for path in writable if not path.endswith("/")],
        "folders": paths(confinement.folders),
        "readable": [*paths(confinement.readable), directory],
        "hidden": paths(confinement.hidden),
    }


def copy_words(
    copies: Iterable[OwnCopy], words: Mapping[str, Any] | None, environ: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """
    The copies of directories, as `runner.start.make_copies` takes them: by the variable and what it
    is set to. None where the program has no directory for temporary files, in which they are.

    Args:
        words: As `confine_words` has them.
        environ: Of the program, with the variables that say where its user has them.
    """
    temporary = environ.get("TMPDIR", "")
    if not os.path.isabs(temporary):
        return {}
    home = os.path.expanduser("~")
    found = {}
    for each in copies:
        real = expand(each.place, environ, home=home)
        if real is None:
            continue
        shared, fresh = (
            [path.rstrip("/") for path in places(given, environ, home=home)]
            for given in (each.shared, each.fresh)
        )
        found[each.variable] = {
            "top": os.path.join(temporary, "own", each.variable),
            "below": each.below,
            "real": real.rstrip("/"),
            "shared": shared,
            "fresh": fresh,
            "hidden": () if words is None else words["hidden"],
        }
    return found


def open_places(
    confinement: Confinement, environ: Mapping[str, str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """
    List the places of a program that confines its commands itself: directories that they may write
    to beside the working directory, and where git keeps its repository. Makes what is missing and
    to be made.
    """
    without = {name: value for name, value in environ.items() if name != "TMPDIR"}
    words = confine_words(confinement, without, directory="")
    found = [] if words is None else [path.rstrip("/") for path in places_of(words)]
    there = sorted({path for path in found if path and os.path.isdir(path)})
    outer = tuple(path for path in there if not any(path.startswith(f"{each}/") for each in there))
    return outer, tuple(git_places(confinement.cwd))
