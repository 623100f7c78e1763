"""Reads the file from disk. What cannot be read is an error of the configuration, not of ours."""

import hashlib
import os
import stat
from collections.abc import Mapping
from types import MappingProxyType

import msgspec
from msgspec import Struct

from fallbackd.config import import_hermes, import_jkz
from fallbackd.config.fields import Problem
from fallbackd.config.importing import Imported
from fallbackd.config.load import Loaded, load, unusable

MAX_BYTES = 1024 * 1024
WRITING_S = 0.25
"""For a program that writes a file in its place: until then it is found empty, or not at all."""
BLANK = (
    "is empty, as a file is that is being written; the last good configuration stays in force. To"
    " return to the built-in configuration, delete the file"
)


class Content(Struct, frozen=True, kw_only=True):
    """What lies at a path now. One of `text` and `problem` is null; both are for no file."""

    digest: str
    """Equal for equal content; another one for no file and for each way to be unreadable."""
    text: str | None = None
    problem: str | None = None

    @property
    def is_missing(self) -> bool:
        return self.text is None and self.problem is None


def read_content(path: str) -> Content:
    """Read the file. Never raises for what lies there."""
    try:
        # Not blocking, since a pipe without a writer would hold us here.
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return Content(digest="missing")
    except (OSError, ValueError) as error:
        return _unreadable(f"cannot be opened: {_words(error)}")
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return _unreadable("is not a regular file")
        with os.fdopen(handle, "rb", closefd=False) as file:
            found = file.read(MAX_BYTES + 1)
    except OSError as error:
        return _unreadable(f"cannot be read: {_words(error)}")
    finally:
        os.close(handle)
    digest = hashlib.sha256(found).hexdigest()
    if len(found) > MAX_BYTES:
        return Content(digest=digest, problem=f"is larger than {MAX_BYTES} bytes")
    try:
        return Content(digest=digest, text=found.decode())
    except UnicodeDecodeError as error:
        return Content(digest=digest, problem=f"is not UTF-8 at byte {error.start}")


def _unreadable(problem: str) -> Content:
    return Content(digest=problem, problem=problem)


def _words(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def load_file(
    path: str,
    environ: Mapping[str, str] = MappingProxyType({}),
    *,
    is_named: bool = False,
    was_filled: bool = False,
) -> Loaded:
    """
    What is in force by the file at `path`; without a file, what is built in.

    Args:
        environ: Where variables are that the file imports.
        is_named: The user has named the file, so that a missing one is worth a warning.
        was_filled: A file with settings is in force: one that is empty now is an error.
    """
    content = read_content(path)
    why = content.problem
    if was_filled and content.text is not None and not content.text.strip():
        why = BLANK
    if why is not None:
        found = unusable(path, why, environ)
        return msgspec.structs.replace(found, digest=content.digest)
    digests = [content.digest]

    def take(place: str) -> Imported | Problem | None:
        found = import_from(place, environ)
        digests.append(found.digest)
        return found.imported if found.problem is None else found.problem

    loaded = load(content.text, path=path, take=take, environ=environ)
    if is_named and content.text is None:
        missing = Problem(path, "there is no such file; until there is, what is built in is used")
        loaded = msgspec.structs.replace(loaded, warnings=(missing, *loaded.warnings))
    digest = "-".join(digests)
    return msgspec.structs.replace(loaded, digest=digest)


class FileImport(Struct, frozen=True, kw_only=True):
    """What lies at a place of another program. Both null: it is not taken from there."""

    digest: str = ""
    imported: Imported | None = None
    problem: Problem | None = None


def import_from(place: str, environ: Mapping[str, str]) -> FileImport:
    """
    Read the configuration of another program.

    Args:
        place: A path, absolute or beginning with `~/`, or `JKZ_*` for variables.
        environ: Where those variables are.
    """
    if place == import_jkz.ALL:
        found = {k: v for k, v in environ.items() if k.startswith(import_jkz.PREFIX)}
        named = repr(sorted(found.items())).encode()
        digest = hashlib.sha256(named).hexdigest()
        return FileImport(digest=digest, imported=import_jkz.read_jkz(found))
    if os.path.basename(place) != import_hermes.FILE_NAME:
        return FileImport()
    content = read_content(os.path.expanduser(place))
    if content.text is None:
        why = content.problem or "there is no such file"
        return FileImport(digest=content.digest, problem=Problem(place, why))
    return FileImport(
        digest=content.digest, imported=import_hermes.read_hermes(content.text, path=place)
    )
