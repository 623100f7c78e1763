"""What a type allows, in words for a person. Loaded only when something in a file is wrong."""

import enum
from collections.abc import Iterable
from typing import Any, Literal, get_args, get_origin

from msgspec import inspect as shapes

from fallbackd.config.fields import show


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
    """What a type allows, in words: `a number from 10 to 604800`."""
    return _describe(shapes.type_info(type_))


def entry_type(type_: Any) -> Any:
    """Of the entries, where a list is allowed; else None."""
    if get_origin(type_) is tuple:
        return get_args(type_)[0]
    found = (entry_type(one) for one in get_args(type_))
    return next((one for one in found if one is not None), None)


def is_choice(type_: Any) -> bool:
    """One of a few words, each of which stands for itself."""
    return get_origin(type_) is Literal or (
        isinstance(type_, type) and issubclass(type_, enum.Enum)
    )
