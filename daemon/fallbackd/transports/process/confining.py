"""What a runner needs to know about the places that its program may use."""

import os
from collections.abc import Iterable, Mapping
from typing import Any

from fallbackd.core.protocol import Confinement, OwnCopy
from fallbackd.lib.directories import expand, places
from fallbackd.transports.process.runner.confine import places_of
from fallbackd.transports.process.runner.gitplaces import git_places


def confine_words(
    confinement: Confinement | None, environ: Mapping[str, str], *, directory: str
) -> dict[str, Any] | None:
    """
    For `runner.confine.build`: paths, as the program with this environment will see them.

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
    For `runner.copies.make`, by the variable and what it is set to. None where the program has no
    directory for temporary files, in which they are.

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
    For a program that confines its commands itself: directories that they may write to beside the
    working directory, and where git keeps its repository. Makes what is missing and to be made.
    """
    without = {name: value for name, value in environ.items() if name != "TMPDIR"}
    words = confine_words(confinement, without, directory="")
    found = [] if words is None else [path.rstrip("/") for path in places_of(words)]
    there = sorted({path for path in found if path and os.path.isdir(path)})
    outer = tuple(path for path in there if not any(path.startswith(f"{each}/") for each in there))
    return outer, tuple(git_places(confinement.cwd))
