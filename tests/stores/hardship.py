"""Real trouble with files, for whoever runs the tests."""

import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65_534


@contextmanager
def unprivileged() -> Iterator[Path]:
    """A directory of a user to whom modes apply: root is nobody for a while."""
    directory = Path(tempfile.mkdtemp(prefix="fallbackd-"))
    is_root = os.geteuid() == 0
    if is_root:
        os.chown(directory, NOBODY, NOBODY)
        os.setegid(NOBODY)
        os.seteuid(NOBODY)
    try:
        yield directory
    finally:
        if is_root:
            os.seteuid(0)
            os.setegid(0)
        for one in (directory, *directory.rglob("*")):
            one.chmod(0o700)
        shutil.rmtree(directory)


@contextmanager
def no_file_beyond(size_bytes: int) -> Iterator[None]:
    """No file of this process grows beyond a size: a write comes back short, or with an error."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
