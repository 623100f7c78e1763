"""`voice-platform-health.json` is read in both of its shapes, and written for readers of both."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fallbackd.config.voice import VoiceMark, read_voice, render_voice

NOW = 1_749_312_500.0
SINCE = 1_749_312_456.7
WORDS = "rate_limit: 429 from openai.com"


def read(content: object, *, now: float = NOW) -> tuple[VoiceMark, ...]:
    found = read_voice(json.dumps(content), path="voice.json", now=now)
    assert found.warnings == ()
    return found.marks


@pytest.mark.parametrize(
    "entry",
    [
        {"marked_broken_at": SINCE, "reason": WORDS, "ttl_seconds": 600},
        {"reason": WORDS, "marked_at": SINCE, "expires_at": SINCE + 600, "ttl_seconds": 600},
        {"reason": WORDS, "marked_at": SINCE, "expires_at": SINCE + 600},
        {"reason": WORDS, "marked_at": SINCE},
    ],
)
def test_both_shapes_give_the_same_mark(entry: dict[str, Any]) -> None:
    (mark,) = read({"codex": entry})
    assert (mark.backend, mark.words, mark.since_at) == ("codex", WORDS, SINCE)
    assert mark.ttl_s == pytest.approx(600)


def test_a_mark_that_has_expired_is_skipped() -> None:
    entry = {"marked_broken_at": SINCE, "reason": WORDS, "ttl_seconds": 600}
    assert read({"codex": entry}, now=SINCE + 599)
    assert read({"codex": entry}, now=SINCE + 600) == ()
    assert read({"codex": entry | {"ttl_seconds": 0}}) == ()
    assert read({"codex": entry | {"ttl_seconds": -5}}) == ()


def test_a_mark_from_the_future_lasts_at_most_its_length_from_now() -> None:
    entry = {"marked_broken_at": NOW + 9999, "reason": WORDS, "ttl_seconds": 600}
    (mark,) = read({"codex": entry})
    assert (mark.since_at, mark.ttl_s) == (NOW, 600)


def test_what_we_have_written_is_no_news() -> None:
    mark = VoiceMark(backend="codex", words=WORDS, since_at=SINCE, ttl_s=600)
    assert read(json.loads(render_voice([mark]))) == ()


def test_what_is_written_has_the_keys_of_both_shapes() -> None:
    mark = VoiceMark(backend="codex", words="x" * 400, since_at=SINCE, ttl_s=600)
    assert json.loads(render_voice([mark])) == {
        "codex": {
            "marked_broken_at": SINCE,
            "marked_at": SINCE,
            "expires_at": SINCE + 600,
            "ttl_seconds": 600,
            "reason": "x" * 280,
            "source": "fallbackd",
        }
    }
    assert json.loads(render_voice([])) == {}


def test_a_mark_without_an_end_is_written_with_a_far_one() -> None:
    mark = VoiceMark(backend="codex", words="revoked", since_at=SINCE, ttl_s=None)
    entry = json.loads(render_voice([mark]))["codex"]
    assert entry["expires_at"] - SINCE == pytest.approx(365 * 86_400)


def test_a_secret_in_the_words_goes_no_further() -> None:
    key = "sk-proj-" + "a1B2" * 8
    (mark,) = read({"codex": {"marked_at": SINCE, "reason": f"bad key {key}"}})
    assert key not in mark.words
    raw = VoiceMark(backend="codex", words=f"bad key {key}", since_at=SINCE, ttl_s=600)
    assert key not in render_voice([raw])


def test_garbage_is_said_and_its_neighbours_live() -> None:
    text = json.dumps(
        {
            "a": 3,
            "b": {"reason": "no time"},
            "c": {"marked_at": True, "reason": "x"},
            "d": {"marked_at": SINCE, "reason": None, "ttl_seconds": "soon"},
            "e": {"expires_at": NOW + 60},
        }
    )
    found = read_voice(text, path="voice.json", now=NOW)
    assert [mark.backend for mark in found.marks] == ["d", "e"]
    assert found.marks[0].words == "marked by a voice agent"
    assert [str(problem) for problem in found.warnings] == [
        "voice.json.a: 3 is not a table.",
        "voice.json.b: does not say when it was marked.",
        "voice.json.c: does not say when it was marked.",
    ]


@pytest.mark.parametrize("text", ["{", "[1]", '"x"', "nul", "[" * 100_000, "9" * 5000, "\x00"])
def test_a_file_that_is_no_table_is_one_warning(text: str) -> None:
    found = read_voice(text, path="voice.json", now=NOW)
    assert found.marks == ()
    assert [problem.path for problem in found.warnings] == ["voice.json"]


def test_an_empty_file_says_nothing() -> None:
    assert read_voice(" \n", path="voice.json", now=NOW).warnings == ()


JSON = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
KEYS = st.sampled_from(
    ["marked_broken_at", "marked_at", "expires_at", "ttl_seconds", "reason", "source"]
)


@given(st.dictionaries(st.text(), JSON | st.dictionaries(KEYS, JSON)))
def test_arbitrary_entries_never_raise_and_can_be_written_again(content: dict[str, Any]) -> None:
    found = read_voice(json.dumps(content), path="voice.json", now=NOW)
    for mark in found.marks:
        assert mark.since_at <= NOW
        assert mark.ttl_s is not None
        assert mark.since_at + mark.ttl_s > NOW
    assert json.loads(render_voice(found.marks).encode()).keys() == {
        mark.backend for mark in found.marks
    }
