"""What lies at the path of the file is read, or is an error that says why."""

import os
from pathlib import Path

from fallbackd.config.files import MAX_BYTES, load_file


def test_no_file_is_the_built_in_configuration(tmp_path: Path) -> None:
    found = load_file(str(tmp_path / "nowhere" / "config.toml"))
    assert (found.errors, found.warnings) == ((), ())
    assert found.policy.chains


def test_equal_content_has_an_equal_digest(tmp_path: Path) -> None:
    for name, text in (("a", "x = 1"), ("b", "x = 1"), ("c", "x = 2")):
        (tmp_path / name).write_text(text)
    a, b, c = (load_file(str(tmp_path / name)).digest for name in "abc")
    assert a == b != c
    assert load_file(str(tmp_path / "none")).digest not in (a, c)


def test_what_cannot_be_read_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "latin").write_bytes(b"# caf\xe9")
    (tmp_path / "large").write_bytes(b"#" * (MAX_BYTES + 1))
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    os.mkfifo(tmp_path / "pipe")
    said = {}
    for name in ("directory", "latin", "large", "loop", "pipe"):
        path = str(tmp_path / name)
        (error,) = load_file(path).errors
        assert error.path == path
        said[name] = error.message
    assert said == {
        "directory": "is not a regular file",
        "latin": "is not UTF-8 at byte 5",
        "large": "is larger than 1048576 bytes",
        "loop": "cannot be opened: Too many levels of symbolic links",
        "pipe": "is not a regular file",
    }
