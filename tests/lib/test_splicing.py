"""A part of JSON text is changed, and every other byte stays."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fallbackd.lib.splicing import EVERY, Unreadable, added, changed, items, members, renamed

NAMES = st.sampled_from(["a", "b", 'c"', "d\\", "é", "*"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
INDENTS = st.sampled_from([None, 2])


@given(value=st.dictionaries(NAMES, JSON, max_size=4), indent=INDENTS, ascii=st.booleans())
def test_each_field_is_found_where_it_stands(
    value: dict[str, Any], indent: int | None, ascii: bool
) -> None:
    data = json.dumps(value, indent=indent, ensure_ascii=ascii).encode()
    found = members(data)
    assert {name: json.loads(data[one.value : one.end]) for name, one in found.items()} == value
    assert [json.loads(data[one.key : one.key_end]) for one in found.values()] == list(value)


@given(value=st.lists(JSON, max_size=4), indent=INDENTS)
def test_each_item_is_found_where_it_stands(value: list[Any], indent: int | None) -> None:
    data = json.dumps(value, indent=indent).encode()
    assert [json.loads(data[begin:end]) for begin, end in items(data)] == value


@given(
    value=st.dictionaries(st.sampled_from("abcd"), JSON, min_size=1),
    name=st.sampled_from("abcd"),
    indent=INDENTS,
)
def test_a_field_that_is_taken_out_leaves_the_others_as_they_were(
    value: dict[str, Any], name: str, indent: int | None
) -> None:
    data = json.dumps(value, indent=indent).encode()
    made = changed(data, [name], lambda _: None)
    assert json.loads(made) == {key: one for key, one in value.items() if key != name}
    if name not in value:
        assert made == data
    for key, one in members(made).items():
        before = members(data)[key]
        assert made[one.key : one.end] == data[before.key : before.end]


@pytest.mark.parametrize(
    ("data", "path", "made"),
    [
        (
            b'{"a" : 1 , "b":[ {"x":1},{"x" :2, "y":3} ] }',
            "b.*.x",
            b'{"a" : 1 , "b":[ {},{"y":3} ] }',
        ),
        (b'{"b":[1, 2 ,3]}', "b.*", b'{"b":[]}'),
        (b'{"a":{"b":{"c":1}}}', "a.b.c", b'{"a":{"b":{}}}'),
        (b'{"a":"text"}', "a.b", b'{"a":"text"}'),
        (b'{"a":[1]}', "a.b", b'{"a":[1]}'),
        (b'{"a":{"b":1}}', "a.*", b'{"a":{"b":1}}'),
        (b'{"a":1,"b":2}', "b", b'{"a":1}'),
        (b'{"a":1,\n "b":2}', "a", b'{"b":2}'),
    ],
)
def test_what_stands_at_a_path_is_taken_out(data: bytes, path: str, made: bytes) -> None:
    assert changed(data, path.split("."), lambda _: None) == made


def test_only_some_of_the_items_may_be_taken_out() -> None:
    def odd(value: bytes) -> bytes | None:
        return value if int(value) % 2 else None

    assert changed(b'{"a":[ 1 , 2,3 ,4 ]}', ["a", EVERY], odd) == b'{"a":[ 1,3 ]}'


def test_a_field_is_renamed_unless_the_name_is_taken() -> None:
    assert renamed(b'{"a" : 1}', "a", "b") == b'{"b" : 1}'
    assert renamed(b'{"a":1,"b":2}', "a", "b") == b'{"a":1,"b":2}'
    assert renamed(b'{"c":1}', "a", "b") == b'{"c":1}'
    assert added(b"{ }", "a", b"1") == b'{"a":1 }'
    assert added(b'{"b":2}', "a", b"1") == b'{"a":1,"b":2}'


@pytest.mark.parametrize("data", [b'{"a":1,"a":2}', b'{"a":{"b":1,"b":2}}', b"{", b'{"a":tru}'])
def test_what_is_ambiguous_is_not_changed(data: bytes) -> None:
    with pytest.raises(Unreadable):
        changed(data, ["a", "b"], lambda _: None)
