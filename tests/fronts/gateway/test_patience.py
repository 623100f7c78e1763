"""How long a backend may be silent, by its limits and by those of its callers."""

import pytest

from fallbackd.fronts.gateway.patience import Impatience, patience_with, waits_s
from fallbackd.fronts.gateway.settings import Rules

ONE, OTHER = ("one", "m", None), ("other", "m", None)


def left(found: Impatience, *after_s: float) -> list[bool]:
    return [found.left(ONE, after_s=one, first_s=45) for one in after_s]


def test_the_third_caller_in_a_row_that_left_shows_that_a_backend_hangs() -> None:
    assert left(Impatience(), 15, 15, 15, 15) == [False, False, True, False]
    assert left(Impatience(), 8, 8, 8) == [False, False, True]


def test_callers_that_leave_soon_show_nothing() -> None:
    assert left(Impatience(), *[1.0] * 20) == [False] * 20
    assert left(Impatience(), 3, 3, 3, 3, 3) == [False, False, False, False, True]


def test_a_byte_from_the_backend_ends_the_row() -> None:
    found = Impatience()
    assert left(found, 15, 15) == [False, False]
    found.heard(OTHER)
    found.heard(ONE)
    assert left(found, 15, 15, 15) == [False, False, True]


@pytest.mark.parametrize(
    ("stated", "first_s"), [(None, 300), ("600", 300), ("60", 60), ("x", 300), ("0", 300)]
)
def test_without_a_stream_the_limit_is_the_callers_own_where_it_is_less(
    stated: str | None, first_s: float
) -> None:
    named = {} if stated is None else {"x-stainless-read-timeout": stated}
    found = patience_with(None, Rules(), is_streamed=False, caller_s=waits_s(named))
    assert found.first_s == first_s
