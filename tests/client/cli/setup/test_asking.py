"""Changes are shown, agreed to, made; a failure stops what follows."""

import argparse
import io
import json

import pytest

from fallbackd_client.cli.output import UsageError
from fallbackd_client.cli.setup.changes import Asking, Change, NotMade, make_changes, reported


@pytest.mark.parametrize(
    ("typed", "default", "agreed"),
    [
        ("\n", True, True),
        ("\n", False, False),
        ("y\n", False, True),
        ("YES\n", False, True),
        ("n\n", True, False),
        ("what\n", True, False),
        ("", True, False),
    ],
)
def test_only_a_yes_is_a_yes(
    typed: str, default: bool, agreed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    assert Asking(yes=False).agree("Really?", default=default) is agreed


def test_without_a_terminal_nothing_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    with pytest.raises(UsageError, match="--yes"):
        Asking(yes=False).require_terminal()
    with pytest.raises(UsageError, match=r"be asked: set it$"):
        Asking(yes=False).require_terminal("set it")
    Asking(yes=True).require_terminal()
    Asking(yes=False, dry_run=True).require_terminal()


def test_a_failure_stops_what_follows_unless_the_rest_works_without_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    made: list[str] = []

    def fail() -> None:
        raise NotMade("the disk is full")

    changes = [
        Change("write a", lambda: made.append("a")),
        Change("polish b", fail, optional=True),
        Change("write c", fail),
        Change("write d", lambda: made.append("d")),
    ]
    assert make_changes(changes, Asking(yes=False, dry_run=True), question="")
    assert made == []
    assert capsys.readouterr().out.splitlines()[0] == "would write a"
    assert not make_changes(changes, Asking(yes=True), question="")
    assert made == ["a"]
    shown = capsys.readouterr()
    assert shown.out == "done  write a\n"
    assert shown.err == "skipped: the disk is full\nstopped: the disk is full\n"


def test_a_no_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    made: list[str] = []
    change = Change("write a", lambda: made.append("a"))
    assert not make_changes([change], Asking(yes=False), question="Do it?")
    assert made == []
    assert capsys.readouterr().out == "  write a\nNothing was changed.\n"


def test_with_json_people_are_told_on_standard_error_and_the_document_says_what_was_made(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail() -> None:
        raise NotMade("the disk is full")

    changes = [Change("write a", lambda: None), Change("write b", fail)]
    for dry_run, made in ((True, False), (False, True)):
        asking = Asking(yes=True, dry_run=dry_run)
        args = argparse.Namespace(json=True)
        code = reported(
            args, asking, lambda asking=asking: 1 - make_changes(changes, asking, question="")
        )
        assert code == made
        shown = capsys.readouterr()
        assert json.loads(shown.out) == {
            "ok": not made,
            "changes": [{"what": "write a", "made": made}, {"what": "write b", "made": False}],
        }
        assert "write a" in shown.err
