"""Rights of other users to change a path, and the command that takes them away."""

import os
import pwd
import shlex
import stat
from typing import NamedTuple

ROOT = 0


class Fault(NamedTuple):
    what: str
    """Half a sentence: who may do what."""
    fix: str
    """A command line, quoted for a shell."""


def fault_of(
    path: str, found: os.stat_result, *, uid: int, is_shared: bool = False
) -> Fault | None:
    """
    Name the fault of a file or directory that cannot be trusted; None: only `uid`, and root, may
    change it.

    Args:
        found: What is at the path, as `stat` or `lstat` says.
        is_shared: It may be root's and for all users, as the directory of temporary files is:
            with the sticky bit no user can remove there what belongs to others.
    """
    if stat.S_ISLNK(found.st_mode):
        return Fault(f"{path} is a symbolic link", command("rm", path))
    if found.st_uid != uid and not (is_shared and found.st_uid == ROOT):
        return Fault(
            f"{path} belongs to {user_name(found.st_uid)}",
            command("sudo", "chown", "-R", user_name(uid), path),
        )
    is_sticky = is_shared and bool(found.st_mode & stat.S_ISVTX)
    if found.st_mode & 0o022 and not is_sticky:
        is_directory = stat.S_ISDIR(found.st_mode)
        wanted = "go-w" if is_shared else "700" if is_directory else "600"
        return Fault(
            f"others may write to {path} (mode {stat.S_IMODE(found.st_mode):04o})",
            command("chmod", wanted, path),
        )
    return None


def command(*words: str) -> str:
    return " ".join(shlex.quote(word) for word in words)


def user_name(uid: int) -> str:
    """The name, or the number where there is none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
