"""Bytes to lines, whatever the size of the pieces."""

import random

from hypothesis import given
from hypothesis import strategies as st

from fallbackd.backends import KINDS
from fallbackd.backends.lines import MAX_LINE_BYTES, Excerpt, LineBuffer
from fallbackd.backends.spec import Options
from fallbackd.core.protocol import AgentText, Chunk, Observation, ProcessExit, Reply


@given(text=st.text(max_size=200), seed=st.integers())
def test_pieces_of_any_size_give_the_same_lines(text: str, seed: int) -> None:
    data, rng, buffer, lines = text.encode(), random.Random(seed), LineBuffer(), []
    while data:
        size = rng.randint(1, 5)
        lines += buffer.feed(data[:size])
        data = data[size:]
    assert [*lines, buffer.take()] == text.split("\n")


def test_a_line_of_five_megabytes_is_whole() -> None:
    buffer = LineBuffer()
    for _ in range(5):
        assert buffer.feed(b"x" * 1_000_000) == []
    (line,) = buffer.feed(b"\n")
    assert len(line) == 5_000_000


def test_a_line_without_an_end_is_bounded_and_the_next_one_is_whole() -> None:
    buffer = LineBuffer()
    for _ in range(20):
        buffer.feed(b"x" * 1_000_000)
    line, after = buffer.feed(b"yy\nnext\n")
    assert len(line) == MAX_LINE_BYTES
    assert after == "next"


def test_an_excerpt_keeps_both_ends() -> None:
    excerpt = Excerpt()
    for number in range(200_000):
        excerpt.add(f"line {number}")
    assert excerpt.text.startswith("line 0\n")
    assert excerpt.text.endswith("line 199999")
    assert len(excerpt.text) < 600_000


def test_colours_around_events_do_not_hide_them() -> None:
    parser = KINDS["codex"].parser(Options())
    event = b'{"type":"item.completed","item":{"id":"1","type":"agent_message","text":"hi"}}'
    parser.feed(Chunk("stdout", b"\x1b[32m" + event + b"\x1b[0m\r\n", 0.0))
    parser.feed(Chunk("stdout", b'{"type":"turn.completed"}', 0.0))
    assert parser.finish(ProcessExit(gone=True, code=0)) == Reply(text="hi")


@given(
    words=st.lists(st.text("ab c", min_size=1, max_size=5), min_size=1, max_size=8),
    stops=st.lists(st.integers(0, 8), max_size=3),
)
def test_a_message_that_is_written_again_after_each_break_is_passed_on_once(
    words: list[str], stops: list[int]
) -> None:
    parser = KINDS["claude"].parser(Options())
    told: list[Observation] = []
    for stop in (*stops, len(words)):
        parser.begins()
        for word in words[:stop]:
            told += parser.writes(word)
    whole = "".join(words)
    told += parser.says(whole)
    text = "".join(one.text for one in told if isinstance(one, AgentText))
    assert text.rstrip() == whole.rstrip()
    assert not whole.strip() or text.endswith("\n")


def test_a_message_whose_second_try_says_something_else_is_passed_on_whole() -> None:
    parser = KINDS["claude"].parser(Options())
    told = [*parser.writes("It is "), *parser.writes("seven")]
    parser.begins()
    told += [*parser.writes("It is "), *parser.writes("eight"), *parser.says("It is eight.")]
    text = "".join(one.text for one in told if isinstance(one, AgentText))
    assert text == "It is seven\nIt is eight.\n"
