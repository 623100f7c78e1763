"""Settings files are changed in place, and changed back."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fallbackd_client.settings.jsonc import (
    Unreadable,
    load,
    strings,
    with_element,
    with_member,
    without_element,
    without_member,
)
from fallbackd_client.settings.toml_block import parse

ZED = """\
// Zed settings
{
  "theme": "One", // with a URL: https://example.invalid/a,b
  /* a block, "quoted": { */
  "context_servers": {
    "other": { "command": "x", },
  },
}
"""
WHERE = ("context_servers", "fallbackd")


def test_comments_and_trailing_commas_are_read() -> None:
    assert load(ZED) == {"theme": "One", "context_servers": {"other": {"command": "x"}}}


def test_all_else_stays_as_it_is() -> None:
    changed = with_member(ZED, WHERE, {"command": "/bin/f"})
    found = load(changed)
    assert found["context_servers"]["fallbackd"] == {"command": "/bin/f"}
    kept = [line for line in changed.splitlines() if line in ZED.splitlines()]
    assert set(ZED.splitlines()) == set(kept)
    assert without_member(changed, WHERE) == ZED


def test_an_entry_that_is_there_is_replaced() -> None:
    text = with_member(with_member("", WHERE, {"a": 1}), WHERE, {"b": 2})
    assert load(text) == {"context_servers": {"fallbackd": {"b": 2}}}


@pytest.mark.parametrize("text", ["", "{}", "{}\n", "  {\n}\n", "// empty\n{ }", '{"a":[]}'])
def test_what_is_missing_on_the_way_is_made(text: str) -> None:
    assert load(with_member(text, WHERE, 3)) == {**load(text), "context_servers": {"fallbackd": 3}}


@pytest.mark.parametrize(
    "text",
    ['{"context_servers": 3}', '{"context_servers": []}', "[]", "3", "{", '{"a" 1}', "{a:1}"],
)
def test_a_file_that_is_something_else_is_left_alone(text: str) -> None:
    with pytest.raises(Unreadable):
        with_member(text, WHERE, {})


HARD = {"nested too deeply": "[" * 200_000 + "]" * 200_000, "too many digits": "9" * 5_000}


@pytest.mark.parametrize("why", HARD)
def test_a_file_that_asks_too_much_of_a_parser_is_left_alone_in_plain_words(why: str) -> None:
    with pytest.raises(Unreadable, match=why):
        with_member(f'{{"a": {HARD[why]}}}', WHERE, {})
    with pytest.raises(Unreadable, match=why):
        parse(f"a = {HARD[why]}")


def test_what_stands_beside_deep_values_is_found() -> None:
    deep = "[" * 400 + ' // [\n"]", {"x": /* } */ 1}' + "]" * 400
    changed = with_member(f'{{"a": {deep}, "b": 1}}', ["b"], 2)
    assert changed == f'{{"a": {deep}, "b": 2}}'


def test_strings_of_a_list_are_found_where_they_stand() -> None:
    text = '{"x": ["a"], "list": ["a", ["b", {"c": "d"}], [], 1, {"e": "f"}, /* "g" */ "h"]}'
    found = list(strings(text, ["list"]))
    assert [one for one, _, _ in found] == ["a", "b", "h"]
    assert all(text[begin:end] == json.dumps(one) for one, begin, end in found)
    assert list(strings('{"list": "a"}', ["list"])) == list(strings("", ["list"])) == []


def test_an_element_is_added_once_and_taken_out_again() -> None:
    where = ("permissions", "allow")
    text = '{"permissions": {"allow": ["Bash(ls)"], "deny": []}}'
    changed = with_element(text, where, "mcp__fallbackd")
    assert load(changed)["permissions"]["allow"] == ["Bash(ls)", "mcp__fallbackd"]
    assert with_element(changed, where, "mcp__fallbackd") == changed
    assert load(without_element(changed, where, lambda one: one == "mcp__fallbackd")) == load(text)
    made = with_element("{}", where, "mcp__fallbackd")
    assert load(without_element(made, where, lambda one: one == "mcp__fallbackd")) == {}
    assert without_element(text, where, lambda one: one == "of nobody") == text


def test_a_list_that_is_none_is_left_alone() -> None:
    with pytest.raises(Unreadable):
        with_element('{"permissions": {"allow": "all"}}', ("permissions", "allow"), "x")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    found=st.dictionaries(st.text(), VALUES, max_size=4),
    servers=st.dictionaries(st.text(), VALUES, max_size=3),
    indent=st.sampled_from([None, 0, 2, 4]),
)
def test_whatever_is_there_comes_back(
    found: dict[str, Any], servers: dict[str, Any], indent: int | None
) -> None:
    servers.pop("fallbackd", None)
    before = {**found, "context_servers": {**servers, "other": {}}}
    text = json.dumps(before, indent=indent)
    changed = with_member(text, WHERE, {"command": "f", "args": []})
    assert load(changed) == {
        **before,
        "context_servers": {**before["context_servers"], "fallbackd": {"command": "f", "args": []}},
    }
    assert load(without_member(changed, WHERE)) == before
