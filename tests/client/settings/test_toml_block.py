"""A block of ours in a TOML file: what others write into it is theirs."""

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fallbackd_client.settings.editing import edits
from fallbackd_client.settings.jsonc import Unreadable
from fallbackd_client.settings.toml_block import block_part, head_part, pieces, without_lines

BLOCK = """\
[providers.ours]
name = "ours"
url = "http://127.0.0.1:1"

[providers.ours.auth]
command = "/x"
args = [
  "a", # [providers.ours]
]"""
PART = block_part("config.toml", BLOCK, table=("providers", "ours"))
OWN = {"name": "ours", "url": "http://127.0.0.1:1", "auth": {"command": "/x", "args": ["a"]}}
MINE = '# mine\nmodel = "m"\n\n[providers.other]\nname = "other"\n'
END = "# fallbackd: end\n"
THEIRS = '[projects."/home/me/a.b"]\ntrust = "yes"\n\n# why\n[[servers]]\ncommand = "x"\n'


def grown(text: str, more: str = THEIRS) -> str:
    """As a program writes further tables: before the comment that ends the file."""
    assert text.endswith(END)
    return text.removesuffix(END) + "\n" + more + END


def test_tables_that_a_program_has_written_into_the_block_stay() -> None:
    assert PART.take(grown(PART.put(MINE))) == MINE + "\n" + THEIRS
    again = PART.put(grown(PART.put(MINE)))
    assert again == PART.put(MINE + "\n" + THEIRS)
    assert PART.put(again) == again
    assert PART.take(again) == MINE + "\n" + THEIRS


ADDED = (
    BLOCK.replace('name = "ours"', '# patient\nretries = [\n  9,\n]\nname = "ours"')
    + '\n\n[providers.ours.headers]\n"x.y" = 1'
)


def test_keys_that_a_person_has_added_to_our_table_stay_when_it_is_written_again() -> None:
    made = PART.put(MINE).replace(BLOCK, ADDED)
    other = block_part("", BLOCK.replace(":1", ":2"), table=("providers", "ours"))
    again = other.put(made)
    found = tomllib.loads(again)["providers"]
    headers = {"x.y": 1}
    url = "http://127.0.0.1:2"
    assert found["ours"] == {**OWN, "url": url, "retries": [9], "headers": headers}
    assert "# patient\nretries = [\n" in again
    assert other.put(again) == again


def test_what_goes_with_our_table_is_named_in_the_change(tmp_path: Any) -> None:
    path = tmp_path / "config.toml"
    part = block_part(str(path), BLOCK, table=("providers", "ours"))
    path.write_text(PART.put(MINE).replace(BLOCK, ADDED))
    (edit,) = edits([part], undo=True)
    assert edit.after == MINE
    assert "ours: retries, [providers.ours.headers]\n" in edit.diff()
    path.write_text(PART.put(MINE))
    (edit,) = edits([part], undo=True)
    assert "goes too" not in edit.diff()


def test_keys_that_mean_something_alone_stay_when_ours_go() -> None:
    part = block_part("", "[a]\nb = 1", table=("a",), stands_alone=True)
    made = part.put(MINE).replace("b = 1", "b = 1\n# mine too\nc = 2")
    assert part.take(made) == MINE + "[a]\n# mine too\nc = 2\n"
    assert part.lost(made) == []


def test_comments_in_our_table_stay() -> None:
    made = PART.put(MINE).replace('url = "', '# note\nurl = "')
    assert PART.take(made) == MINE + "# note\n"


@pytest.mark.parametrize(
    "text",
    [
        PART.put(MINE).removesuffix(END),
        PART.put(MINE).removesuffix(END) + "\n" + THEIRS,
        END + PART.put(MINE).removesuffix(END),
        PART.put(MINE)
        .removesuffix(END)
        .replace("\n[providers.ours.auth]", END + "[providers.ours.auth]"),
        PART.put(MINE).replace("\n", "\r\n"),
    ],
)
def test_the_table_is_found_where_the_second_comment_is_gone_or_elsewhere(text: str) -> None:
    left = tomllib.loads(PART.take(text))
    wanted = tomllib.loads(text)
    del wanted["providers"]["ours"]
    assert left == wanted
    assert "fallbackd" not in PART.take(text)
    assert tomllib.loads(PART.put(text)) == tomllib.loads(text)


@pytest.mark.parametrize(
    "text",
    [
        f"# fallbackd: begin\n{END}\n{BLOCK}\n",
        f"# fallbackd: begin\n[x]\n\n{BLOCK}\n",
        f"{BLOCK}\n# fallbackd: begin\n{END}",
    ],
)
def test_a_table_that_is_not_where_the_comments_are_is_left_alone(text: str) -> None:
    for change in (PART.put, PART.take):
        with pytest.raises(Unreadable, match="edit it by hand"):
            change(text)


def test_comments_without_a_table_are_taken_away() -> None:
    assert PART.take(f"{MINE}\n# fallbackd: begin\n{END}") == MINE


HEAD = head_part("", 'provider = "ours"', key="provider", label="head")


def test_keys_that_a_program_has_written_into_the_head_stay() -> None:
    made = HEAD.put(MINE).replace("# head: end", 'x = "y"\n# head: end')
    assert HEAD.take(made) == 'x = "y"\n\n' + MINE
    assert tomllib.loads(HEAD.put(made)) == tomllib.loads(made)
    assert HEAD.take(HEAD.put(MINE)) == MINE


def test_a_key_of_the_head_that_has_another_value_now_is_no_longer_ours() -> None:
    made = HEAD.put(MINE).replace('"ours"', '"theirs"')
    assert HEAD.take(made) == 'provider = "theirs"\n\n' + MINE
    with pytest.raises(Unreadable, match="there already"):
        HEAD.put(made)


@pytest.mark.parametrize("before", ["a = 1", "# me", "[t]\nx = 1", "a = 1\n", "a = 1\n\n"])
def test_a_file_whose_last_line_has_no_end_is_put_back_as_it_was(before: str) -> None:
    other = block_part("config.toml", "[extra]\nx = 1", table=("extra",), label="other")
    assert PART.take(PART.put(before)) == before
    assert PART.take(PART.put(PART.put(before))) == before
    both = other.put(PART.put(before))
    assert other.take(PART.take(both)) == before
    assert PART.take(other.take(both)) == before
    assert tomllib.loads(PART.take(grown(PART.put(before)))) == tomllib.loads(f"{before}\n{THEIRS}")


def test_lines_that_are_not_ours_stay_in_a_file_of_lines() -> None:
    def is_ours(line: str) -> bool:
        return line.startswith("A=")

    text = "X=1\n# l: begin\nA=1\nB=2\n# l: end\nA=3\n"
    assert without_lines(text, "l", is_ours) == "X=1\nB=2\nA=3\n"
    cut = text.replace("# l: end\n", "")
    assert without_lines(cut, "l", is_ours) == "X=1\nB=2\nA=3\n"
    assert without_lines("A=1\n", "l", is_ours) == "A=1\n"


VALUES = [
    "1",
    '"a # b"',
    "'[x]'",
    '"""\n[x]\n# c\n\\"""" q"""',
    "'''\n[x]\n'''",
    '""""a"""""',
    '[\n  "]", # [\n[1],\n]',
    '{ a = "}", b = [1] }',
    "1979-05-27",
    "nan",
]
TABLES = ["[a]", "[a.b]", "[\"a.b\".'c'] # [x]", "[[l]]", "[ l.m ]", "[providers.other]"]


@st.composite
def documents(draw: st.DrawFn) -> str:
    lines = []
    spaces = st.sampled_from(["", "\n", "# [x]\n", "  # c\n\n"])
    for header in ["", *draw(st.lists(st.sampled_from(TABLES), max_size=4, unique=True))]:
        if header:
            lines.append(header + "\n")
        for key in draw(st.lists(st.sampled_from(["k", '"k 2"', "d.e"]), max_size=3, unique=True)):
            lines += [draw(spaces), f"  {key} = {draw(st.sampled_from(VALUES))}\n", draw(spaces)]
    return "".join(lines)


@given(before=documents(), behind=documents())
def test_whatever_else_is_in_the_file_is_the_same_after_put_and_take(
    before: str, behind: str
) -> None:
    theirs = "\n[z]\n" + behind.replace("[[l", "[[z.l").replace("[ l", "[ z.l").replace(
        "[a", "[z.a"
    )
    theirs = theirs.replace("[providers", "[z.providers").replace('["a.b"', '[z."a.b"')
    try:
        known = tomllib.loads(before + theirs)
    except tomllib.TOMLDecodeError:  # a table that is a list elsewhere
        return
    assert "".join(piece.text for piece in pieces(before + theirs)) == before + theirs
    made = grown(PART.put(before), theirs)
    for text in (PART.take(made), PART.take(PART.put(made))):
        assert repr(tomllib.loads(text)) == repr(known)
        assert text.count("#") == (before + theirs).count("#")
    ours = tomllib.loads(PART.put(made))["providers"]["ours"]
    assert ours == OWN
