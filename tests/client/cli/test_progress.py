import io
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.client.scripted import Peer, serving

from fallbackd_client.cli.ending import Progress


class Terminal(io.StringIO):
    """Tells when a word was written."""

    def __init__(self, word: str) -> None:
        super().__init__()
        self.seen = threading.Event()
        self._word = word

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        written = super().write(text)
        if self._word in self.getvalue():
            self.seen.set()
        return written


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")


def test_hops_are_shown_as_they_happen(tmp_path: Path) -> None:
    hop = {"at": 1.0, "from": "codex", "to": "opencode", "reason": "rate_limit\x1b[2J"}
    limit = {"reason": "rate_limit", "stated_reset_at": time.time() + 7200}
    looks: list[object] = []

    def script(peer: Peer) -> None:
        while (request := peer.read()) is not None:
            if request["method"] == "events.subscribe":
                peer.answer(request, {"subscription": "s", "seq": 1})
            elif not looks:
                looks.append(request)
                peer.answer(request, {"delegation": "d1"})
                peer.event(kind="delegation.hopped", delegation="d1", **hop)
            else:  # it looks at once, since only the record says when the limit ends
                attempts = [{"backend": "codex", "failure": limit}]
                peer.answer(request, {"delegation": "d1", "hops": [hop], "attempts": attempts})

    stream = Terminal("continuing with opencode.")
    path = tmp_path / "control.sock"
    accepted = {"delegation": "d1", "session": "s1"}
    with serving(path, script) as server, Progress(server.path, accepted, stream):
        assert stream.seen.wait(60)
    assert "codex is rate-limited (resets " in stream.getvalue()
    assert "\x1b[2J" not in stream.getvalue()
    assert stream.getvalue().endswith("\r\x1b[K")
    assert server.params("events.subscribe")["delegation"] == "d1"


def test_the_line_says_who_works_and_in_which_phase(tmp_path: Path) -> None:
    def script(peer: Peer) -> None:
        while (request := peer.read()) is not None:
            if request["method"] == "delegation.get":
                found = {"delegation": "d1", "active": "opencode", "phase": "thinking"}
                peer.answer(request, found)

    stream = Terminal("opencode · thinking")
    path = tmp_path / "control.sock"
    with serving(path, script) as server, Progress(server.path, {"delegation": "d1"}, stream):
        assert stream.seen.wait(60)


def test_the_line_ends_with_the_last_line_that_the_agent_wrote(tmp_path: Path) -> None:
    def script(peer: Peer) -> None:
        while (request := peer.read()) is not None:
            if request["method"] == "events.subscribe":
                peer.answer(request, {"subscription": "s", "seq": 1})
                for kind, named in (
                    ("attempt.started", {"backend": "codex"}),
                    ("attempt.phase", {"phase": "writing"}),
                    ("attempt.text", {"text": "One line.\nAnd \x1b[2Jan"}),
                    ("attempt.text", {"text": "other"}),
                ):
                    peer.event(at=1.0, kind=kind, delegation="d1", **named)

    stream = Terminal("d1 · codex · writing · And another")
    path = tmp_path / "control.sock"
    with serving(path, script) as server, Progress(server.path, {"delegation": "d1"}, stream):
        assert stream.seen.wait(60)


def test_nothing_is_shown_where_there_is_no_terminal(tmp_path: Path) -> None:
    stream = io.StringIO()
    with Progress(str(tmp_path / "none.sock"), {"delegation": "d1"}, stream):
        pass
    assert stream.getvalue() == ""


def test_a_daemon_without_events_disturbs_nobody(tmp_path: Path) -> None:
    stream = Terminal("never")
    with Progress(str(tmp_path / "none.sock"), {"delegation": "d1"}, stream):
        pass
    assert "Traceback" not in stream.getvalue()


def _writes(*pieces: str) -> Callable[[Peer], None]:
    def script(peer: Peer) -> None:
        while (request := peer.read()) is not None:
            if request["method"] == "events.subscribe":
                peer.answer(request, {"subscription": "s", "seq": 1})
                at = 0
                for piece in pieces:
                    named = {"attempt": "d1.1", "offset": at, "text": piece}
                    peer.event(at=1.0, kind="attempt.text", delegation="d1", **named)
                    at += len(piece)

    return script


def test_lines_of_text_reach_the_terminal_as_they_come_and_the_end_says_the_rest(
    tmp_path: Path,
) -> None:
    script = _writes("I look\x1b[2J.\nThe answ", "er is\nfor", "ty")
    stream, answers = Terminal("never"), Terminal("The answer is\n")
    path = tmp_path / "control.sock"
    with serving(path, script) as server:
        progress = Progress(server.path, {"delegation": "d1"}, stream, answers)
        with progress:
            assert answers.seen.wait(60)
    assert "\x1b[2J" not in answers.getvalue()
    assert server.params("events.subscribe")["delegation"] == "d1"
    assert progress.rest_of("The answer is\nforty-two") == "forty-two"
    assert progress.rest_of("The answer is") == ""
    assert progress.rest_of("Another answer\nof two lines") == "Another answer\nof two lines"


def test_text_is_asked_for_from_where_it_was_lost(tmp_path: Path) -> None:
    asked = []

    def script(peer: Peer) -> None:
        while (request := peer.read()) is not None:
            if request["method"] != "events.subscribe":
                continue
            asked.append(request["params"].get("text_since"))
            peer.answer(request, {"subscription": "s", "seq": 1})
            named = {"attempt": "d1.1", "offset": 0, "text": "one\ntw"}
            if len(asked) > 1:
                named = {"attempt": "d1.1", "offset": 6, "text": "o\n"}
            peer.event(at=1.0, kind="attempt.text", delegation="d1", **named)
            if len(asked) == 1:
                return  # the connection is lost

    answers = Terminal("one\ntwo\n")
    path = tmp_path / "control.sock"
    with (
        serving(path, script) as server,
        Progress(server.path, {"delegation": "d1"}, Terminal("never"), answers),
    ):
        assert answers.seen.wait(60)
    assert asked[:2] == [None, {"attempt": "d1.1", "run": "", "offset": 6}]
