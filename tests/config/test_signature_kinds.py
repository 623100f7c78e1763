"""What `[[signatures]]` may name, against the kinds whose output can be judged."""

import pytest

from fallbackd.backends import ALIASES, JUDGED, KIND_NAMES, SIGNATURES
from fallbackd.backends.signatures import LATER
from fallbackd.config.load import load

NAMED = {*KIND_NAMES, *ALIASES, *LATER}


def test_every_kind_that_can_be_judged_may_be_named() -> None:
    assert set(SIGNATURES) <= NAMED | JUDGED


@pytest.mark.parametrize("kind", sorted(SIGNATURES))
def test_a_signature_of_a_kind_holds_for_that_kind(kind: str) -> None:
    text = f"[[signatures]]\nid = 'x'\nkind = '{kind}'\npattern = 'ducks'\nreason = 'billing'\n"
    loaded = load(text, path="/c.toml")
    assert loaded.warnings == ()
    assert [rule.id for rule in loaded.rules_for(kind)] == ["x"]


def test_a_signature_without_a_kind_holds_for_all() -> None:
    loaded = load("[[signatures]]\nid = 'x'\npattern = 'ducks'\nreason = 'billing'\n", path="/c")
    assert all([rule.id for rule in loaded.rules_for(kind)] == ["x"] for kind in SIGNATURES)
