"""Advice about a provider that several machines cannot reach."""

import pytest

from fallbackd.engine.sharing import FRESH_S, advice
from fallbackd.ports.store import Card

HOST = "api.example.com"


def card(name: str, *missed: str, seen_ago_s: float = 1.0) -> Card:
    return Card(name=name, instance=name, missed=missed, seen_ago_s=seen_ago_s)


def test_one_that_two_machines_cannot_reach_is_named_with_both() -> None:
    (said,) = advice([HOST], "laptop", [card("desktop", HOST, "other.example"), card("voice")])
    assert said.startswith(f"{HOST} cannot be reached from desktop, laptop: ")


@pytest.mark.parametrize(
    ("own", "cards"),
    [
        ([HOST], []),
        ([HOST], [card("laptop", HOST)]),  # that is this machine itself
        ([HOST], [card("desktop", "other.example")]),
        ([HOST], [card("desktop", HOST, seen_ago_s=FRESH_S + 1)]),
        ([], [card("desktop", HOST), card("voice", HOST)]),  # it is reached from here
    ],
)
def test_what_only_one_machine_has_found_is_nobodys_advice(
    own: list[str], cards: list[Card]
) -> None:
    assert advice(own, "laptop", cards) == ()
