"""
What configurations of other programs become here: tables of ours, with a report.

Nothing of theirs is ever moved or changed. Secrets are never taken, only the names of variables
that hold them.
"""

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct, field

from fallbackd_conversations.redact import excerpt

ImportSource = Literal["hermes", "jkz", "opencode", "voice"]
Tables = dict[str, Any]
"""As TOML has them."""


class Taken(Struct, frozen=True, kw_only=True):
    what: str
    """A key or a variable of the other program."""
    to: str
    """Where it went: a path in our configuration."""


class Left(Struct, frozen=True, kw_only=True):
    what: str
    why: str


class Imported(Struct, frozen=True, kw_only=True):
    source: ImportSource
    tables: Tables = field(default_factory=dict)
    taken: tuple[Taken, ...] = ()
    left: tuple[Left, ...] = ()

    def toml(self) -> str:
        import tomli_w  # for those who import

        return tomli_w.dumps(self.tables) if self.tables else ""


class Report:
    """Collects what was taken and what was not."""

    def __init__(self) -> None:
        self._taken: dict[tuple[str, str], Taken] = {}
        self._left: dict[str, Left] = {}

    def take(self, what: str, to: str) -> None:
        self._taken.setdefault((what, to), Taken(what=what, to=to))

    def leave(self, what: str, why: str) -> None:
        what = excerpt(what, max_chars=200)
        self._left.setdefault(what, Left(what=what, why=excerpt(why, max_chars=300)))

    def made(self, source: ImportSource, tables: Mapping[str, Any]) -> Imported:
        return Imported(
            source=source,
            tables=dict(tables),
            taken=tuple(self._taken.values()),
            left=tuple(self._left.values()),
        )


def overlay(ours: Mapping[str, Any], imported: Mapping[str, Any]) -> dict[str, Any]:
    """The user's own tables over imported ones, key by key down to the single setting."""
    made = dict(imported)
    for key, value in ours.items():
        under = made.get(key)
        if isinstance(value, Mapping) and isinstance(under, Mapping):
            made[key] = overlay(value, under)
        else:
            made[key] = value
    return made
