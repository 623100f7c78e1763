"""
Replaces a file as a whole: a reader, or a crash at any instant, sees the old or the new content.

Source: rename(2) is atomic; fsync(2) says that the directory needs one of its own.
"""

import os
import re
import secrets
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from fallbackd.lib import privatefile
from fallbackd.lib.failpoints import hit

MAX_RECORD_BYTES = 16 * 1024 * 1024

T = TypeVar("T", bound=Struct)


def write(path: str, content: bytes | str, *, mode: int = 0o600, durable: bool = True) -> None:
    """
    Put `content` at `path`, durably. Blocks; for a worker thread.

    Args:
        mode: Of the new file, whatever the umask and the mode of the old one.
        durable: False: only as long as the machine runs, and at once.

    Raises:
        OSError: Nothing has changed, and nothing is left behind.
    """
    data = content.encode() if isinstance(content, str) else content
    directory, name = os.path.split(os.path.abspath(path))
    temporary = os.path.join(directory, f".{name[:40]}.{secrets.token_hex(8)}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    # Private until it is whole, then as wide as asked for.
    handle = os.open(temporary, flags, 0o600)
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(handle, view) :]
            os.fchmod(handle, mode)
            if durable:
                os.fsync(handle)
        finally:
            os.close(handle)
        hit("file.written")
        os.replace(temporary, path)
        hit("file.replaced")
    except BaseException:
        try:
            os.unlink(temporary)
        except OSError:
            pass
        raise
    if durable:
        sync_directory(directory)


def clear_drafts(path: str) -> None:
    """Remove what writers of `path` left that were killed. Only where no other one writes it."""
    directory, name = os.path.split(os.path.abspath(path))
    draft = re.compile(re.escape(f".{name[:40]}.") + r"[0-9a-f]{16}\.tmp")
    try:
        for found in os.listdir(directory):
            if draft.fullmatch(found):
                os.unlink(os.path.join(directory, found))
    except OSError:
        pass  # they do no harm


def sync_directory(directory: str) -> None:
    """Make names in a directory durable, where its file system can."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError:
        # Some network file systems refuse: the content itself is durable all the same.
        pass
    finally:
        os.close(handle)


def load_record(path: Path, shape: type[T]) -> T | None:
    """
    Read a record of `write_record`. None: there is none, or it is damaged.

    Raises:
        OSError: It is unknown whether there is one.
    """
    try:
        return msgspec.json.decode(
            privatefile.read_file(path, max_bytes=MAX_RECORD_BYTES), type=shape
        )
    except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def write_record(path: Path, record: Struct) -> None:
    """
    Put a record that need not outlive the machine: after a reboot nothing of it runs any more.

    Raises:
        OSError: What was there before is there still.
    """
    write(str(path), msgspec.json.encode(record), durable=False)
