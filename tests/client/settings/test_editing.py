"""Settings of other programs are written whole, and several files together or none of them."""

from pathlib import Path

import pytest

from fallbackd_client.settings.editing import Edit, write_all
from fallbackd_client.settings.jsonc import Unreadable


def test_files_that_were_written_are_put_back_where_a_later_one_cannot_be(tmp_path: Path) -> None:
    known, new, busy = tmp_path / "known.json", tmp_path / "new.json", tmp_path / "busy.json"
    known.write_text("before")
    busy.write_text("changed by another")
    changes = [
        Edit(str(known), "before", "after"),
        Edit(str(new), None, "after"),
        Edit(str(busy), "before", "after"),
    ]
    with pytest.raises(Unreadable, match="changed meanwhile"):
        write_all(changes)
    assert known.read_text() == "before"
    assert not new.exists()
    assert busy.read_text() == "changed by another"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["busy.json", "known.json"]


def test_all_of_them_are_written(tmp_path: Path) -> None:
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    other.write_text("before")
    write_all([Edit(str(one), None, "{}"), Edit(str(other), "before", "after")])
    assert (one.read_text(), other.read_text()) == ("{}", "after")
