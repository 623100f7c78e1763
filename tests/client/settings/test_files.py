"""What lies in the place of a settings file, and what is kept of it besides its text."""

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fallbackd_client.settings.editing import Part, edits, read
from fallbackd_client.settings.files import Form, regular
from fallbackd_client.settings.jsonc import Unreadable


@pytest.mark.parametrize("kind", ["a named pipe", "a directory", "a socket", "a device"])
def test_what_is_no_file_is_named_and_holds_nobody_up(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "settings"
    if kind == "a named pipe":
        os.mkfifo(path)
    elif kind == "a directory":
        path.mkdir()
    elif kind == "a socket":
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(str(path))
    else:
        path = Path(os.devnull)
    with pytest.raises(OSError, match=f"it is {kind}, not a file"):
        open(path, opener=regular)  # noqa: SIM115
    with pytest.raises(Unreadable, match=f"cannot be read: it is {kind}, not a file"):
        read(str(path))


@given(st.lists(st.sampled_from(["\n", "\r\n", "\r", "a", "\ufeff"])).map("".join))
def test_a_file_that_is_not_changed_is_the_same_to_the_last_character(whole: str) -> None:
    form = Form(whole)
    assert form.whole(form.text) == whole


def test_new_lines_end_as_those_of_the_file_do(tmp_path: Path) -> None:
    path = tmp_path / "settings"
    path.write_bytes("\ufeffa\r\nb\r\n".encode())
    adding = Part(str(path), "", put=lambda text: f"{text}new\n", take=lambda text: text)
    (edit,) = edits([adding], undo=False)
    assert edit.after == "\ufeffa\r\nb\r\nnew\r\n"


def test_ends_of_lines_that_are_mixed_stay_as_they_are() -> None:
    form = Form("a\r\nb\n")
    assert form.whole(form.text + "c\n") == "a\r\nb\nc\n"
