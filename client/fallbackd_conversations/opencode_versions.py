"""
Versions of opencode that are supported: those of its first line. From version 2 on it has another
API for callers, another one for plugins, and another database.

Source: the documentation of opencode 2, and a contract generated from 2.1.2; unverified against
the program itself.
"""

import re

_LAST_LINE = 1
_VERSION = re.compile(r"\s*(?:opencode\s+)?v?(?P<version>(?P<line>\d{1,4})\.\d[\w.+-]{0,60})")


def unsupported(said: object) -> str:
    """
    A sentence about an opencode that cannot be used; empty: it can, or says no version.

    Args:
        said: The line that `opencode --version` prints, or the `version` that a server gives.
    """
    found = _VERSION.match(said) if isinstance(said, str) else None
    if found is None or int(found["line"]) <= _LAST_LINE:
        return ""
    return f"opencode {found['version']} is not supported yet: fallbackd works with version 1"
