"""`credentials` of a backend: labels, and where each secret is found. Never a secret itself."""

import os
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from fallbackd.config.fields import BY_VALUE, Say, convert, guess, join, show
from fallbackd.config.schema import CredentialTable
from fallbackd.core.protocol import CredentialRef

_Source = Literal["env", "file", "command", "systemd"]
_SOURCES: tuple[_Source, ...] = ("env", "file", "command", "systemd")
_WRITE = {
    "env": BY_VALUE,
    "file": 'must be the path of a file, absolute or from ~/, as in file = "~/.config/acme.key"',
    "command": 'write it as a list, without a shell: command = ["pass", "show", "acme"]',
    "systemd": "must be the name that LoadCredential= of the unit gives it",
    "field": 'must be names with dots between them, as in field = "tokens.access_token"',
    "into": "must be the name of an environment variable",
}


def read_credentials(
    raw: object, path: str, say: Say, *, is_http: bool
) -> tuple[CredentialRef, ...]:
    """
    Args:
        path: Of the backend's table.
        is_http: Its requests carry the secret; else its program finds it in a variable.
    """
    here = join(path, "credentials")
    if raw is None:
        return ()
    if not isinstance(raw, list):
        say(here, 'must be a list: credentials = [{ label = "main", env = "NAME" }].')
        return ()
    found: list[CredentialRef] = []
    for number, value in enumerate(raw):
        place = join(here, number)
        one = _credential(value, place, say, is_http=is_http)
        if one is None:
            continue
        if any(one.label == other.label for other in found):
            say(place, f"the label {show(one.label)} is taken; it is left out.")
            continue
        found.append(one)
    return tuple(found)


def _credential(raw: object, path: str, say: Say, *, is_http: bool) -> CredentialRef | None:
    if not isinstance(raw, Mapping):
        # Possibly the key itself: not shown.
        say(path, f"{BY_VALUE}; it is left out.")
        return None
    given = _fields(raw, path, say)
    if given is None:
        return None
    source = _source(given, path, say)
    if source is None:
        return None
    _say_unknown(raw, path, say)
    place: Any = given[source]
    into = given.get("into")
    if is_http and into is not None:
        say(join(path, "into"), "has no effect: requests carry the credential themselves.")
        into = None
    elif not is_http and into is None:
        if source != "env":
            cure = 'name the variable that the program reads, as in into = "ACME_API_KEY"'
            say(join(path, "into"), f"is missing: {cure}; it is left out.")
            return None
        into = str(place)
    found = CredentialRef(
        label=given.get("label") or _label(source, place),
        source=source,
        field=given.get("field"),
        into=into,
    )
    if source == "command":
        return msgspec.structs.replace(found, argv=tuple(place))
    return msgspec.structs.replace(found, name=str(place))


def _source(given: Mapping[str, Any], path: str, say: Say) -> _Source | None:
    """The one place that is named; None: there is none, or there are several."""
    sources = [one for one in _SOURCES if one in given]
    if len(sources) == 1:
        return sources[0]
    what = f"names {len(sources)} places: give one of env, file, command or systemd"
    say(path, f"{what if sources else BY_VALUE}; it is left out.")
    return None


def _say_unknown(raw: Mapping[str, object], path: str, say: Say) -> None:
    types = CredentialTable.__annotations__
    for key in raw:
        if key not in types:
            say(join(path, key), f"has no effect; {BY_VALUE}.{guess(key, types)}")


def _fields(raw: Mapping[str, object], path: str, say: Say) -> dict[str, Any] | None:  # by field
    """The fields that can be used; None where the place itself cannot."""
    types = CredentialTable.__annotations__
    given: dict[str, Any] = {}
    usable = True
    for key, value in raw.items():
        if key not in types:
            continue
        fits, read = convert(value, types[key])
        if fits and read is not None:
            given[key] = read
        elif key == "label":
            say(join(path, key), f"{show(value)}: must be one word; another is used.")
        else:  # possibly the key itself: not shown
            say(join(path, key) if key != "env" else path, f"{_WRITE[key]}; it is left out.")
            usable = False
    return given if usable else None


def _label(source: str, place: Any) -> str:  # of any field of the table
    """A name by the place, where the file gives none."""
    text = os.path.basename(place[0] if source == "command" else place)
    fits, label = convert(text, CredentialTable.__annotations__["label"])
    return str(label) if fits and label else source
