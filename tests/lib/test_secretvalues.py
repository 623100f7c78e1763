import base64
import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fallbackd.lib.secretvalues import KEPT, SHOWN, SecretValues

KEY = 'Ab/9+x"=~tRailing-Key'


def test_values_of_variables_that_speak_of_secrets_are_replaced_whatever_their_form() -> None:
    values = SecretValues(
        {"ACME_KEY": "correct-horse", "DB_PASSWORD": "correct-horse-battery", "TOKEN": "(a|b)+.*x"}
    )
    assert values.conceal("no correct-horse-battery, correct-horse!") == f"no {SHOWN}, {SHOWN}!"
    assert values.conceal("it said (a|b)+.*x") == f"it said {SHOWN}"


def test_words_paths_and_other_variables_are_left_alone() -> None:
    environ = {
        "API_KEY": "none",
        "GOOGLE_CREDENTIALS": "/home/me/key.json",
        "EDITOR": "emacsclient",
        "PROXY_AUTHORIZATION": "required",
    }
    text = "none of /home/me/key.json for emacs -nw, authorization required"
    assert SecretValues(environ).conceal(text) == text
    assert SecretValues().conceal(text) == text


@pytest.mark.parametrize(
    "written",
    [
        KEY,
        json.dumps(KEY),
        json.dumps(KEY).replace("/", "\\/"),
        quote(KEY, safe=""),
        base64.b64encode(KEY.encode()).decode(),
        base64.urlsafe_b64encode(f"u:{KEY}".encode()).decode(),
        base64.b64encode(f"me:{KEY}".encode()).decode(),
        base64.b64encode(f"you:{KEY}, and more".encode()).decode(),
    ],
)
def test_a_learned_value_is_hidden_in_every_form_in_which_it_is_echoed(written: str) -> None:
    values = SecretValues()
    values.learn("key", KEY)
    for shown in (values.conceal(f"<{written}>"), values.mask(f"<{written}>".encode()).decode()):
        assert written not in shown
        assert "tRailing" not in shown
        assert "dFJhaWxpbm" not in shown  # "tRailing" as base64
        assert shown.startswith("<")
        assert shown.endswith(">")


def test_the_value_before_a_rotation_is_hidden_too_and_older_ones_are_forgotten() -> None:
    values = SecretValues()
    for number in range(KEPT + 1):
        values.learn("file", f"the-value-{number}")
    kept = values.conceal("the-value-2 the-value-1 the-value-0")
    assert kept == f"{SHOWN} {SHOWN} the-value-0"


def test_no_value_is_in_its_representation() -> None:
    assert "correct" not in repr(SecretValues({"KEY": "correct-horse"}))


@given(st.binary(max_size=60), st.integers(0, 20), st.binary(max_size=20))
def test_a_mask_keeps_the_length_and_an_unfinished_value_is_seen(
    before: bytes, cut: int, after: bytes
) -> None:
    values = SecretValues({"KEY": "0123456789abcdefghij"})
    whole = b"0123456789abcdefghij"
    masked = values.mask(before + whole + after)
    assert len(masked) == len(before + whole + after)
    assert whole not in masked
    assert values.begun_at_end(before + whole[:cut]) >= (cut if cut < len(whole) else 0)
