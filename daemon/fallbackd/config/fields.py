"""
Reads one table of the file, field by field: a bad field is left out, its neighbours live.

Every problem is `path: message`, and the message says the value, what is allowed, and what is
used in its place.
"""

import enum
import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec
from msgspec import Struct
from msgspec import inspect as shapes

from fallbackd_conversations.redact import excerpt

S = TypeVar("S", bound=Struct)


def _bounds(low: float | None, high: float | None) -> str:
    if low is not None and high is not None:
        return f" from {show(low)} to {show(high)}"
    if low is not None:
        return f" of at least {show(low)}"
    return f" of at most {show(high)}" if high is not None else ""


def _text(shape: shapes.StrType) -> str:
    if shape.pattern and shape.pattern.startswith("^[A-Za-z_]"):
        is_parameter = "-]" in shape.pattern
        return "the name of " + ("a parameter" if is_parameter else "an environment variable")
    return "text" + (f" of at most {shape.max_length} characters" if shape.max_length else "")


def _one_of(values: Iterable[Any]) -> str:
    return "one of " + ", ".join(sorted(show(value) for value in values))


def _list(shape: shapes.VarTupleType | shapes.ListType) -> str:
    some = "a list, not empty, each entry " if shape.min_length else "a list, each entry "
    return some + _describe(shape.item_type)


def _either(shape: shapes.UnionType) -> str:
    known = [one for one in shape.types if not isinstance(one, shapes.NoneType)]
    return " or ".join(_describe(one) for one in known)


def _describe(shape: shapes.Type) -> str:
    match shape:
        case shapes.BoolType():
            return "true or false"
        case shapes.IntType():
            return "a whole number" + _bounds(shape.ge, shape.le)
        case shapes.FloatType():
            return "a number" + _bounds(shape.ge, shape.le)
        case shapes.StrType():
            return _text(shape)
        case shapes.LiteralType():
            return _one_of(shape.values)
        case shapes.EnumType():
            return _one_of([member.value for member in shape.cls])
        case shapes.VarTupleType() | shapes.ListType():
            return _list(shape)
        case shapes.DictType():
            return f"a table, each value {_describe(shape.value_type)}"
        case shapes.UnionType():
            return _either(shape)
        case _:
            return "a table"


def describe(type_: Any) -> str:  # whatever msgspec takes as a type
    """Describe in words which values a type allows: `a number from 10 to 604800`."""
    return _describe(shapes.type_info(type_))


def entry_type(type_: Any) -> Any:
    """Return the type of the entries, where a list is allowed; else None."""
    if get_origin(type_) is tuple:
        return get_args(type_)[0]
    found = (entry_type(one) for one in get_args(type_))
    return next((one for one in found if one is not None), None)


def is_choice(type_: Any) -> bool:
    """One of a few words, each of which stands for itself."""
    return get_origin(type_) is Literal or (
        isinstance(type_, type) and issubclass(type_, enum.Enum)
    )


_BARE = re.compile(r"[A-Za-z0-9_-]{1,80}")
_SECRET_KEYS = re.compile(
    r"(?:.*[_-])?(?:key|api_?key|token|secret|password|passwd|value|authorization)", re.I
)

BY_VALUE = (
    "a secret is never written into the configuration; put it into an environment variable and "
    'name that: credentials = [{ label = "main", env = "NAME" }]'
)


class Problem(Struct, frozen=True):
    """A problem at one place of the file."""

    path: str
    """`backends.codex.hourly_cap`; the path of the file where the file as a whole is meant."""
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


def problem(path: str, message: str) -> Problem:
    """A problem whose text can do a terminal no harm, whatever the file holds."""
    return Problem(_printable(path), _printable(message))


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text
    )


Say = Callable[[str, str], None]
"""Takes path and message."""


def join(path: str, key: str | int) -> str:
    """The path of a key or of a place in a list."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    if not _BARE.fullmatch(key):
        key = json.dumps(excerpt(key, max_chars=80), ensure_ascii=False)
    return f"{path}.{key}" if path else key


def show(value: object) -> str:
    """A value for a person: short, printable, without secrets."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return json.dumps(excerpt(value, max_chars=60), ensure_ascii=False)
        case int():
            # A number that is too long to print is a number all the same.
            return str(value) if abs(value) < 10**30 else "a huge number"
        case float():
            return str(int(value)) if value.is_integer() else str(value)
        case list() | tuple():
            return "a list" if value else "an empty list"
        case Mapping():
            return "a table"
        case _:
            return excerpt(str(value), max_chars=60)


def guess(word: str, known: Iterable[str]) -> str:
    """` Did you mean …?`, or nothing."""
    import difflib  # most files have nothing to guess

    near = difflib.get_close_matches(word.lower()[:100], list(known), n=1, cutoff=0.7)
    return f" Did you mean {show(near[0])}?" if near else ""


def convert(value: object, type_: Any) -> tuple[bool, Any]:  # typed by its second argument
    """Return whether the value fits, and the value."""
    try:
        return True, msgspec.convert(value, type_)
    except (msgspec.ValidationError, ValueError, OverflowError, RecursionError):
        return False, None


def instead(default: object) -> str:
    """Say which value takes the place of one that cannot be used."""
    if default is None or default in ((), {}, ""):
        return "it is left out"
    if isinstance(default, tuple | list | Mapping):
        return "the default is used"
    return f"the default {show(default)} is used"


def table(raw: object, path: str, say: Say) -> Mapping[str, object]:
    """The value as a table; anything else is said and counts as empty."""
    if isinstance(raw, Mapping):
        return raw
    say(path, f"{show(raw)} is not a table; it is left out.")
    return {}


def read(
    raw: object,
    shape: type[Struct],
    path: str,
    say: Say,
    *,
    in_use: Callable[[str], object] = lambda _: None,
    by_hand: frozenset[str] = frozenset(),
    hints: Mapping[str, str] | None = None,
) -> dict[str, Any]:  # values are typed by `shape`
    """
    Read the fields of one table that are usable.

    Args:
        shape: Struct whose fields say what is allowed.
        in_use: The value that stays in force where a field is bad, for the message.
        by_hand: Fields that the caller reads itself; they are handed over as they are.
        hints: For a field, words that say better than its type what to write.
    """
    fields = {field.encode_name: field for field in msgspec.structs.fields(shape)}
    given: dict[str, Any] = {}
    for key, value in table(raw, path, say).items():
        here = join(path, key)
        field = fields.get(key)
        if field is None:
            say(here, _unknown(key, fields))
        elif key in by_hand:
            given[field.name] = value
        else:
            fits, converted = convert(value, field.type)
            if fits and converted is not None:
                given[field.name] = converted
            else:
                used, hint = instead(in_use(field.name)), (hints or {}).get(key)
                usable = _say_unusable(value, field.type, here, say, used=used, hint=hint)
                if usable is not None:
                    given[field.name] = usable
    return given


def in_force(
    raw: object, plain: S, path: str, say: Say, *, hints: Mapping[str, str] | None = None
) -> S:
    """The values of `plain`, with those that the table of the file says in their place."""
    used = partial(getattr, plain)
    given = read(raw, type(plain), path, say, in_use=used, hints=hints)
    return msgspec.structs.replace(plain, **given)


def _say_unusable(
    value: object, type_: Any, here: str, say: Say, *, used: str, hint: str | None
) -> Any:  # as `type_` says
    """Return the usable part all the same: of a list of choices, its other entries."""

    entry = entry_type(type_)
    entries = value if isinstance(value, list) and entry is not None else []
    bad = [number for number, one in enumerate(entries) if not convert(one, entry)[0]]
    if not bad:
        say(here, f"{show(value)}: {hint or f'must be {describe(type_)}'}; {used}.")
        return None
    wanted = f"must be {describe(entry)}"
    if not is_choice(entry):  # the others may mean something else without it
        said = used.replace("it is", "the whole list is", 1)
        say(join(here, bad[0]), f"{wanted}; {said}.")
        return None
    kept = [one for number, one in enumerate(entries) if number not in bad]
    for number in bad:
        shown = show(entries[number])
        say(join(here, number), f"{shown}: {wanted}; {'it is left out' if kept else used}.")
    return convert(kept, type_)[1] if kept else None


def _unknown(key: str, fields: Iterable[str]) -> str:
    known = list(fields)
    if "credentials" in known and _SECRET_KEYS.fullmatch(key):
        return BY_VALUE + "; it is left out."
    return "is not a known key; it has no effect." + guess(key, known)
