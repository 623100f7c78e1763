"""Settings files are changed in place, and changed back."""

import json
import re
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


BESIDE_COMMENTS = {
    '{\n  "model": "opus", // big\n  "x": 1 }\n': '{\n  "model": "opus" // big\n  }\n',
    '{\n  // where\n  "x": 1, "model": "opus"\n}\n': '{\n  // where\n  "model": "opus"\n}\n',
    '{\n  "a": 1, // slow,\n  "x": 1\n}\n': '{\n  "a": 1 // slow,\n}\n',
    '{\n  "a": 1, // one\n  "x": 1, // two\n}': '{\n  "a": 1, // one\n  // two\n}',
    '{"a": 1, /* one */ "x": 1 /* two */, "b": 2}': '{"a": 1, /* one */ /* two */ "b": 2}',
    '{"x": 1 // one\n, "a": 1}': '{ // one\n "a": 1}',
    '{ // one\n  "x": 1 }': "{ // one\n  }",
    '{"a": 1 // one\n, "x": 1}': '{"a": 1 // one\n}',
}


@pytest.mark.parametrize("text", BESIDE_COMMENTS)
def test_comments_stay_comments_where_a_member_goes(text: str) -> None:
    assert without_member(text, ["x"]) == BESIDE_COMMENTS[text]


def test_an_object_that_holds_a_comment_stays_where_its_last_member_goes() -> None:
    text = '{"env": { // mine\n  "x": 1\n}}'
    assert without_member(text, ["env", "x"]) == '{"env": { // mine\n}}'
    text = '{"list": [ // mine\n  1\n]}'
    assert without_element(text, ["list"], lambda one: one == 1) == '{"list": [ // mine\n]}'


def test_a_comment_stays_beside_its_member_where_another_is_added() -> None:
    text = '{\n  "model": "opus" // the big one, mostly\n}\n'
    changed = with_member(text, ["x"], 1)
    assert changed == '{\n  "model": "opus", // the big one, mostly\n  "x": 1\n}\n'
    assert without_member(changed, ["x"]) == text


@pytest.mark.parametrize("text", ['{"a": {"x": 1}, "a": {"x": 2}}', '{"a": {"x": 1, "x": 2}}'])
def test_a_change_that_would_harm_something_else_is_left_to_the_person(text: str) -> None:
    for change in (
        lambda: with_member(text, ["a", "x"], 3),
        lambda: without_member(text, ["a", "x"]),
    ):
        with pytest.raises(Unreadable, match="edit it by hand"):
            change()


@pytest.mark.parametrize("text", ["// only this", '{"a": 1', '{"a": [1, }'])
def test_nothing_is_taken_out_of_a_text_that_cannot_be_understood(text: str) -> None:
    with pytest.raises(Unreadable):
        without_member(text, ["a"])
    with pytest.raises(Unreadable):
        without_element(text, ["a"], lambda one: one == 1)


def test_a_number_that_is_none_is_kept() -> None:
    assert with_member('{"a": NaN}', ["b"], 1) == '{"a": NaN,\n  "b": 1}'


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


SPACES = st.lists(
    st.sampled_from([" ", "\n", "\n  ", " // %, {\n", "// % }\n  ", " /* %, */ ", '/* "% */']),
    max_size=2,
).map("".join)


@st.composite
def objects(draw: st.DrawFn, known: dict[str, Any]) -> str:
    """A text of such an object, with comments between all that it holds."""
    members = []
    for key, value in known.items():
        within = draw(objects(value)) if isinstance(value, dict) else json.dumps(value)
        # What stands within a member that is taken out goes with it.
        spaces = ["" if key == "x" else draw(SPACES) for _ in range(2)]
        member = f"{json.dumps(key)}{spaces[0]}:{spaces[1]}{within}"
        members.append(draw(SPACES) + member + draw(SPACES))
    trailing = "," + draw(SPACES) if members and draw(st.booleans()) else ""
    return "{" + draw(SPACES) + ",".join(members) + trailing + "}"


@st.composite
def numbered(draw: st.DrawFn, known: dict[str, Any]) -> tuple[str, list[str]]:
    """Such a text whose comments have a number each, and these comments."""
    first, *others = (draw(SPACES) + draw(objects(known)) + draw(SPACES)).split("%")
    text = first + "".join(f"c{at}c{one}" for at, one in enumerate(others))
    return text, [f"c{at}c" for at in range(len(others))]


@given(data=st.data())
def test_members_and_comments_of_a_person_survive_put_and_take(data: st.DataObject) -> None:
    names = st.sampled_from(["a", "b//", 'c"', "d,", "servers"])
    scalars = st.sampled_from([1, -2.5, None, "s", "a//b", 'q"}', ["/*", 1]])
    known = data.draw(
        st.dictionaries(names, scalars | st.dictionaries(names, scalars, max_size=3), max_size=4)
    )
    where = data.draw(st.sampled_from([["x"], ["servers", "x"]]))
    if where[0] == "servers":
        known["servers"] = known["servers"] if isinstance(known.get("servers"), dict) else {}
    text, comments = data.draw(numbered(known))
    changed = with_member(text, where, {"command": "f", "args": []})
    again = without_member(changed, where)
    for one in (changed, again):
        assert sorted(re.findall(r"c\d+c", one), key=comments.index) == comments
    assert without_empty(load(again)) == without_empty(known)


@given(data=st.data())
def test_a_member_goes_from_wherever_a_person_has_written_it(data: st.DataObject) -> None:
    keys = data.draw(st.permutations(["a", "b", "x"]))
    known: dict[str, Any] = {key: {"p": 1} if key == "a" else 1 for key in keys}
    text, comments = data.draw(numbered(known))
    left = without_member(text, ["x"])
    assert load(left) == {"a": {"p": 1}, "b": 1}
    assert re.findall(r"c\d+c", left) == comments


def without_empty(known: dict[str, Any]) -> dict[str, Any]:
    """What was made on the way is not told from an object that was empty before."""
    return {key: value for key, value in known.items() if (key, value) != ("servers", {})}
