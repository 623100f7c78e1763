"""How long a backend may be silent, by its limits and by those of its callers."""

from pathlib import Path

import pytest
from tests.support.told import Gateway, Told, as_json, gateway, told_backend

from fallbackd.fronts.gateway import patience
from fallbackd.fronts.gateway.patience import Impatience, Rules, patience_with, share_s, waits_s

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
    assert found.is_of_caller == (first_s < 300)


def test_a_backend_that_others_follow_has_a_share_of_what_its_caller_still_waits() -> None:
    assert share_s(60, is_last=False) == 40
    assert share_s(20, is_last=True) == 20
    assert share_s(-1, is_last=True) == 0


async def ask(g: Gateway) -> tuple[int, str | None]:
    """Status, and who has answered a caller that waits for a minute."""
    asked = {"model": "team", "messages": [{"role": "user", "content": "hi"}]}
    headers = {patience.READ_TIMEOUT: "60"}
    answer = await g.client.post("/v1/chat/completions", json=asked, headers=headers)
    return answer.status_code, answer.headers.get("x-fallbackd-served-by")


MESSAGE = {"role": "assistant", "content": "said"}
CHAT = {"choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop"}]}


@pytest.mark.parametrize("waits", [1, 3])
async def test_the_limit_of_a_caller_leads_to_the_next_backend_and_the_third_in_a_row_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: int
) -> None:
    monkeypatch.setattr(patience, "SHARE", 0.005)
    monkeypatch.setattr(patience, "LEFT_S", 0.0)
    backends = told_backend("a", first_answer_s=1), told_backend("b")
    answers = {"a": lambda _: Told(is_silent=True), "b": lambda _: as_json(CHAT)}
    async with gateway(tmp_path, *backends, answers=answers) as g:
        assert [await ask(g) for _ in range(waits)] == [(200, "b")] * waits
        assert set(g.marks().values()) == (set() if waits == 1 else {"timeout"})
