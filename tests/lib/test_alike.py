"""Fields that two records share are copied by name."""

import pytest
from msgspec import Struct

from fallbackd.lib.alike import alike


class Swan(Struct, kw_only=True):
    name: str
    weight_kg: float = 9.0
    rings: tuple[int, ...] = ()


class Line(Struct, kw_only=True):
    name: str
    rings: int = 0
    place: str = "pond"


def test_shared_fields_come_from_the_record_and_the_others_from_the_caller() -> None:
    line = alike(Line, Swan(name="s1", rings=(4, 5)), rings=2)
    assert line == Line(name="s1", rings=2, place="pond")


def test_a_field_that_nothing_gives_is_an_error() -> None:
    with pytest.raises(TypeError, match="name"):
        alike(Swan, object())
    with pytest.raises(TypeError, match="colour"):
        alike(Line, Swan(name="s1"), colour="white")
