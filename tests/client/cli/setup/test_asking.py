"""Changes are shown, agreed to, made; a failure stops what follows."""

import io

import pytest

from fallbackd_client.cli.output import UsageError
from fallbackd_client.cli.setup.asking import Asking, make_changes
from fallbackd_client.cli.setup.changes import Change, NotMade


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
