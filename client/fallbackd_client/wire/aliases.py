"""Names that older callers use for a field."""

from typing import TypeVar

from msgspec import ValidationError

T = TypeVar("T")


def one_of(**values: T | None) -> T | None:
    """
    The one value that was given under any of its names.

    Raises:
        ValidationError: Two names were given different values.
    """
    given = {name: value for name, value in values.items() if value is not None}
    if not given:
        return None
    first, *others = given
    for other in others:
        if given[other] != given[first]:
            raise ValidationError(
                f"`{first}` and `{other}` mean the same and differ: give one - at `$.{other}`"
            )
    return given[first]
