import io
import json

import pytest

from fallbackd_client.cli.output import emit_json, note, style_of, warnings_of


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colours_are_for_terminals_that_want_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert style_of(Terminal()).enabled
    assert not style_of(io.StringIO()).enabled
    monkeypatch.setenv("NO_COLOR", "1")
    assert not style_of(Terminal()).enabled
    monkeypatch.setenv("NO_COLOR", "")
    assert style_of(Terminal()).enabled
    monkeypatch.setenv("TERM", "dumb")
    assert not style_of(Terminal()).enabled


def test_json_escapes_what_could_move_a_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    document = {"text": "\x1b[2J\x7f\u202e\x9b"}
    emit_json(document)
    printed = capsys.readouterr().out
    assert printed.isascii()
    assert printed.rstrip("\n").isprintable()
    assert json.loads(printed) == document


def test_notes_go_to_standard_error_cleaned(capsys: pytest.CaptureFixture[str]) -> None:
    note("a\x1b[31mb")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "ab\n")


def test_warnings_come_in_several_forms() -> None:
    assert warnings_of({}) == []
    assert warnings_of({"warning": "one"}) == ["one"]
    assert warnings_of({"warnings": "one"}) == ["one"]
    found = warnings_of({"warnings": ["one", {"path": "a.b", "message": "two"}]})
    assert found == ["one", "a.b: two"]
