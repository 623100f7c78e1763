"""Where a failure is judged: what is long to read, beside the event loop."""

import subprocess
import sys
import threading
from typing import Any

import pytest

from fallbackd.core.protocol import Evidence
from fallbackd.engine.judging import LARGE_CHARS, off_the_loop

SMALL: list[Any] = [None, "no", {"error": {"message": "slow down", "code": 429}}, [{"error": "x"}]]
LARGE: list[Any] = [
    "x" * (LARGE_CHARS + 1),
    {"error": {"message": "x" * (LARGE_CHARS + 1)}},
    [{"error": "x"}] * LARGE_CHARS,
]


@pytest.mark.parametrize(
    ("body", "is_here"), [*((one, True) for one in SMALL), *((one, False) for one in LARGE)]
)
async def test_an_ordinary_error_is_judged_at_once_and_a_large_one_beside(
    body: Any, *, is_here: bool
) -> None:
    found = await off_the_loop(Evidence(body=body), threading.get_ident)
    assert (found == threading.get_ident()) is is_here


async def test_a_long_text_is_judged_beside() -> None:
    found = await off_the_loop(Evidence(text="x" * (LARGE_CHARS + 1)), threading.get_ident)
    assert found != threading.get_ident()


async def test_an_error_that_is_compared_with_a_long_request_is_judged_beside() -> None:
    here = await off_the_loop(Evidence(text="no"), threading.get_ident, beside=LARGE_CHARS)
    assert here == threading.get_ident()
    found = await off_the_loop(Evidence(text="no"), threading.get_ident, beside=LARGE_CHARS + 1)
    assert found != threading.get_ident()


FIRST = """
from fallbackd.engine.judging import get_ready
assert get_ready()
from fallbackd.classify import common_rules, languages, model
needed = (common_rules.common, languages.stems, model.usable)
print([one.cache_info().currsize for one in needed])
"""


def test_what_the_first_verdict_needs_is_built_before_it() -> None:
    ran = subprocess.run(  # a process that has judged nothing yet
        [sys.executable, "-c", FIRST], capture_output=True, text=True, check=True
    )
    assert ran.stdout == "[1, 1, 1]\n"
