"""JSON of programs that cut texts in the middle of a character."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fallbackd.backends.passage import with_model
from fallbackd.lib.foreign_json import decode, without_halves

TEXTS = st.text(st.characters() | st.sampled_from(["\ud83d", "\ude00", "\\", '"', "u", "d", "8"]))
HALVES = {chr(one): "\ufffd" for one in range(0xD800, 0xE000)}


def plain(text: str) -> str:
    """With whole characters: two halves that meet are one."""
    joined = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    return "".join(HALVES.get(one, one) for one in joined)


@given(TEXTS, st.booleans())
def test_what_the_standard_library_reads_is_read_with_a_mark_for_each_half(
    text: str, is_str: bool
) -> None:
    data = json.dumps({"a": text})
    assert decode(data if is_str else data.encode()) == {"a": plain(text)}


@given(TEXTS)
def test_the_places_of_all_else_stay(text: str) -> None:
    data = json.dumps([text, 1]).encode()
    whole = without_halves(data)
    assert len(whole) == len(data)
    assert json.loads(whole) == [plain(text), 1]


def test_a_model_is_replaced_beside_half_a_character_and_every_other_byte_stays() -> None:
    body = rb'{"messages": [{"content": "cut \ud83d"}], "model":"a", "\udc00": "\\ud83d"}'
    assert with_model(body, "b") == body.replace(b'"a"', b'"b"')


def test_what_is_wrong_otherwise_is_refused_as_before() -> None:
    for data in (b'{"a": "\\ud83d"', b'{"a": "\\UD83D"}', b'{"a": tru\\ud83d}'):
        with pytest.raises(msgspec.DecodeError):
            decode(data)
    with pytest.raises(msgspec.ValidationError):
        decode(rb'{"a": "\ud83d"}', list[int])
