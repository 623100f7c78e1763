"""
Versions of opencode that are supported: those of its first two lines. The second one has another
API for callers, another one for plugins, and another database.

Source: the documentation of opencode 2, and a contract generated from 2.1.2; unverified against
the program itself.
"""

import re

_LAST_LINE = 2
_VERSION = re.compile(r"\s*(?:opencode\s+)?v?(?P<version>(?P<line>\d{1,4})\.\d[\w.+-]{0,60})")


def line_of(said: object) -> int | None:
    """The line of an opencode: 1, 2, …; None: it says no version. `said` is as below."""
    found = _VERSION.match(said) if isinstance(said, str) else None
    return None if found is None else int(found["line"])


def unverified(said: object) -> str:
    """A sentence about an opencode that nothing here was tried with; empty: it was."""
    found = _VERSION.match(said) if isinstance(said, str) else None
    if found is None or int(found["line"]) != _LAST_LINE:
        return ""
    return (
        f"opencode {found['version']} is unverified: fallbackd works with it by its documentation,"
        " and was not tried with the program itself"
    )


def unsupported(said: object, *, last: int = _LAST_LINE) -> str:
    """
    A sentence about an opencode that cannot be used; empty: it can, or says no version.

    Args:
        said: The line that `opencode --version` prints, or the `version` that a server gives.
        last: The last line that does what is asked for.
    """
    found = _VERSION.match(said) if isinstance(said, str) else None
    if found is None or int(found["line"]) <= last:
        return ""
    works = "version 1" if last == 1 else f"versions 1 and {last}"
    return f"opencode {found['version']} is not supported yet: fallbackd works with {works}"


def importing(path: str, cwd: str, *, line: int) -> tuple[str, ...]:
    """Arguments with which an opencode of that line takes a conversation in."""
    if line == 2:
        return ("session", "import", path, "--directory", cwd)
    return ("import", path)
