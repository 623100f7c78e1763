"""Hides secrets that are known by value, in any form: no pattern knows every form of a key."""

import base64
import json
import re
from collections.abc import Hashable, Iterable, Mapping
from types import MappingProxyType
from typing import AnyStr
from urllib.parse import quote

_NAMES = re.compile(r"key|token|secret|passw|credential|authorization", re.I)
_HELD = re.compile(r"(?:^|[_:])(?:auth|pat|pwd|pass)(?:$|_)", re.I)
MIN_CHARS = 8
"""Shorter values of variables, and encoded forms, are words that occur by themselves."""
MIN_KNOWN_CHARS = 6
"""Shortest value that is masked where it is certainly a secret."""
KEPT = 2
"""Values of one place: a provider may still echo the one before a rotation."""
SHOWN = "[secret]"


class SecretValues:
    """
    Every value that this process knows to be a secret, and the text without them.

    Values live in memory only, and in no representation of this object.

    Args:
        environ: Values of variables whose names speak of secrets are taken from here.
    """

    def __init__(self, environ: Mapping[str, str] = MappingProxyType({})) -> None:
        self._by_place: dict[Hashable, tuple[str, ...]] = {
            ("environment", name): (value,)
            for name, value in environ.items()
            if _NAMES.search(name) and len(value) >= MIN_CHARS and _is_secret(value)
        }
        self._forms: tuple[str, ...] = ()
        self._forms_as_bytes: tuple[bytes, ...] = ()
        self._bytes: frozenset[bytes] = frozenset()
        """All that occur in a form."""
        self._rebuild()

    def __repr__(self) -> str:
        return f"SecretValues(<{len(self._by_place)} places>)"

    @property
    def longest_bytes(self) -> int:
        """Size of the longest form."""
        return max(map(len, self._forms_as_bytes), default=0)

    def learn(self, place: Hashable, value: str) -> None:
        """Hide `value` from now on. `place` is where it was found."""
        known = self._by_place.get(place, ())
        if len(value) < MIN_KNOWN_CHARS or value in known:
            return
        self._by_place[place] = (value, *known)[:KEPT]
        self._rebuild()

    def conceal(self, text: str) -> str:
        """The text with `[secret]` in the place of each form of a value."""
        for form in self._forms:
            if form in text:
                text = text.replace(form, SHOWN)
        return text

    def mask(self, data: bytes) -> bytes:
        """Replace values in bytes that must keep their length: by asterisks."""
        for form in self._forms_as_bytes:
            if form in data:
                data = data.replace(form, b"*" * len(form))
        return data

    def begun_at_end(self, data: AnyStr) -> int:
        """Count the bytes or characters at the end that may be the beginning of a value."""
        if isinstance(data, str):
            return max((_overlap(data, form) for form in self._forms), default=0)
        if data[-1:] not in self._bytes:  # an event ends with a line, and no secret has one
            return 0
        return max((_overlap(data, form) for form in self._forms_as_bytes), default=0)

    def _rebuild(self) -> None:
        values = {value for known in self._by_place.values() for value in known}
        forms = {form for value in values for form in _forms(value)}
        # Longest first: one value may be a part of another.
        self._forms = tuple(sorted(forms, key=lambda form: (-len(form), form)))
        self._forms_as_bytes = tuple(form.encode("utf-8", "replace") for form in self._forms)
        self._bytes = frozenset(bytes([one]) for one in set(b"".join(self._forms_as_bytes)))


def is_name_of_secret(name: str) -> bool:
    """Check whether a variable of this name is likely to hold a secret."""
    return _NAMES.search(name) is not None or _HELD.search(name) is not None


def _is_secret(value: str) -> bool:
    """A path says where a secret is, and a plain word occurs by itself."""
    return not value.startswith("/") and not (value.isalpha() and value.islower())


def _forms(value: str) -> Iterable[str]:
    """
    Forms of a value: as it is, as URLs and JSON write it, and as base64 that may begin before it.
    """
    yield value
    yield quote(value, safe="")
    escaped = json.dumps(value)[1:-1]
    yield escaped
    yield escaped.replace("/", "\\/")
    raw = value.encode("utf-8", "replace")
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + raw).decode().rstrip("=")
        # Characters that hold bits of what stands before or behind differ from case to case.
        inner = encoded[(0, 2, 3)[before] : len(encoded) - bool((before + len(raw)) % 3)]
        if len(inner) >= MIN_CHARS:
            yield inner
            yield inner.replace("+", "-").replace("/", "_")


def _overlap(data: AnyStr, form: AnyStr) -> int:
    tail = data[-(len(form) - 1) :] if len(form) > 1 else form[:0]
    at = tail.find(form[:1])
    while at >= 0:
        if form.startswith(tail[at:]):
            return len(tail) - at
        at = tail.find(form[:1], at + 1)
    return 0
