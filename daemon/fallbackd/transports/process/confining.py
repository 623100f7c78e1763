"""What a runner needs to know about the places that its program may use."""

import os
from collections.abc import Iterable, Mapping
from typing import Any

from fallbackd.core.protocol import Confinement
from fallbackd.lib.homes import places


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
        "readable": [*paths(confinement.readable), directory],
        "hidden": paths(confinement.hidden),
    }
