"""Records of another kind that share most of their fields with one that is at hand."""

from typing import Any, TypeVar

from msgspec import Struct

_RecordT = TypeVar("_RecordT", bound=Struct)


def alike(kind: type[_RecordT], one: object, **given: Any) -> _RecordT:
    """
    A record of `kind` with the values of `one` under the same names.

    Args:
        given: Fields that have another name, another type or another source there.
    """
    shared = {
        name: getattr(one, name)
        for name in kind.__struct_fields__
        if name not in given and hasattr(one, name)
    }
    return kind(**shared, **given)
