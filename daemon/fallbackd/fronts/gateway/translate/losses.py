"""What of a request cannot be said in the other API."""

from collections import Counter


class Losses:
    """Names of what was left out, and how often."""

    def __init__(self) -> None:
        self._counted: Counter[str] = Counter()

    def note(self, name: str) -> None:
        self._counted[name] += 1

    def note_unknown(self, value: dict[str, object], *, known: frozenset[str]) -> None:
        """Every field of it that this translation has no place for."""
        for name, given in value.items():
            if name not in known and given is not None:
                self.note(name)

    @property
    def words(self) -> tuple[str, ...]:
        """`thinking`, `cache_control (3)`."""
        return tuple(
            name[:80] if count == 1 else f"{name[:80]} ({count})"
            for name, count in sorted(self._counted.items())
        )
