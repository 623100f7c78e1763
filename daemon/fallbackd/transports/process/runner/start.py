"""Start one program: pipes, fork, exec, and the exact reason when the system refuses."""

import errno
import fcntl
import os
import resource
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from fallbackd.transports.process.runner import confine

# --- copies of directories -----------------------------------------------------------------------
# Directories of a program's own, with what is in those of its user: what it adds ends with it.
#
# For caches, which hold programs that are run later (those of npx, hooks of pre-commit, files that
# shells read at their start), and for settings that a program writes beside. The own one has a copy
# of each small file, and a link for everything else, which can be read, and written to where the
# program may write at the other end.

DEPTH = 2
MAX_ENTRIES = 1000
"""Bound of one directory: beyond that, it is a link itself."""
MAX_COPY_BYTES = 4 * 1024 * 1024


def make_copies(copies: Sequence[dict[str, Any]]) -> None:
    """
    Args:
        copies: `real`, the path of a directory, whose copy is made in `top` (or `below` it);
            `shared`: places in it that stay as they are; `fresh`: those that begin empty; `hidden`:
            those that are left out.
    """
    for each in copies:
        own = os.path.join(each["top"], each["below"])
        try:
            os.makedirs(own, mode=0o700, exist_ok=True)
            _fill(each, own, each["real"], DEPTH)
        except OSError:
            continue  # what is missing there is made by the program, as in a new home


def _fill(copy: dict[str, Any], own: str, real: str, depth: int) -> None:
    with os.scandir(real) as entries:
        for entry in entries:
            at = f"{own}/{entry.name}"
            if entry.path in copy["hidden"]:
                continue
            if entry.path in copy["fresh"]:
                os.mkdir(at, 0o700)
            elif entry.path in copy["shared"] or not _may_be_own(entry, depth):
                os.symlink(entry.path, at)
            elif entry.is_dir():
                os.mkdir(at, 0o700)
                _fill(copy, at, entry.path, depth - 1)
            else:
                shutil.copy2(entry.path, at, follow_symlinks=False)


def _may_be_own(entry: "os.DirEntry[str]", depth: int) -> bool:
    try:
        if entry.is_dir(follow_symlinks=False):
            return depth > 1 and len(os.listdir(entry.path)) <= MAX_ENTRIES
        is_small = entry.stat(follow_symlinks=False).st_size <= MAX_COPY_BYTES
        return is_small and entry.is_file(follow_symlinks=False)
    except OSError:
        return False


# --- the start -----------------------------------------------------------------------------------

_STDOUT_BYTES = 1024 * 1024
"""Capacity of the pipe that the answer comes through: the most that an ordinary user may ask for.

claude 2.1.197 exits before a full pipe was drained, and loses what did not fit. With room for
whole answers that happens to very long ones only."""


class Started(NamedTuple):
    pid: int
    stdin: int
    """-1 unless there is something to be written."""
    stdout: int
    stderr: int
    handle: object
    """Keeps the interpreter from minding a child that is reaped elsewhere."""


class StartRefused(NamedTuple):
    error: str
    text: str
    path: str


def refusal(error: OSError, path: str) -> StartRefused:
    number = error.errno or errno.EIO
    return StartRefused(errno.errorcode.get(number, str(number)), os.strerror(number), path)


def start(spec: dict[str, Any], *, has_input: bool) -> Started | StartRefused:
    """
    The program is looked up on the child's own PATH.

    A file in no known format is refused (ENOEXEC), not given to a shell. Signals that are caught
    here are at their default there; `launcher` sees to it that none is ignored.
    """
    argv, cwd = spec["argv"], spec["cwd"]
    try:
        place = _open_directory(cwd, spec["cwd_id"])
    except OSError as error:
        return refusal(error, cwd)
    if place is None:
        return StartRefused(
            "ESTALE", "it is another directory now than when the work was accepted", cwd
        )
    at = f"/proc/self/fd/{place}"
    ours: list[int] = [] if has_input else [-1]
    theirs: list[int] = []
    program = argv[0] if argv else ""
    rules = None
    try:
        rules = confine.build(spec.get("confine"), place)
        make_copies(spec.get("copies", ()))
        if has_input:
            read, write = os.pipe()
            theirs.append(read)
            ours.append(write)
        else:
            theirs.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(2):
            read, write = os.pipe()
            ours.append(read)
            theirs.append(write)
        _widen(theirs[1])
        with _core_files(spec["core_bytes"]):
            child = subprocess.Popen(
                argv,
                executable=_find(argv[0], cwd, spec["env"]),
                cwd=at,
                env=spec["env"],
                stdin=theirs[0],
                stdout=theirs[1],
                stderr=theirs[2],
                start_new_session=True,
                umask=spec["umask"],
                # Only the program is confined, not the runner. The runner has a single thread.
                preexec_fn=None if rules is None else rules.enter,
            )
    except (OSError, ValueError, IndexError, subprocess.SubprocessError) as error:
        for handle in ours:
            if handle >= 0:
                os.close(handle)
        if isinstance(error, OSError) and error.filename == at:
            return refusal(error, cwd)
        return _refused(error, program, cwd, spec["env"])
    finally:
        os.close(place)
        for handle in theirs:
            os.close(handle)
        if rules is not None:
            rules.close()
    stdin, stdout, stderr = ours
    return Started(child.pid, stdin, stdout, stderr, child)


def _refused(error: Exception, program: str, cwd: str, env: dict[str, str]) -> StartRefused:
    if isinstance(error, subprocess.SubprocessError):
        return StartRefused("EPERM", "the kernel did not confine it: too many sandboxes", program)
    if not isinstance(error, OSError):  # a NUL in a word, no word at all
        return refusal(OSError(errno.EINVAL, ""), program)
    refused = refusal(error, program)
    if error.errno == errno.ENOENT and _is_there(program, cwd, env):
        return refused._replace(text=f"{refused.text} (the interpreter that it names)")
    return refused


def _widen(pipe: int) -> None:
    try:
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _STDOUT_BYTES)
    except OSError:
        pass  # the user's share of memory for pipes is used up: it stays as the system made it


def _open_directory(path: str, id: str) -> int | None:
    """
    Open the directory, which stays the same from here on, whatever its name leads to.

    Args:
        id: See `CommandLine.cwd_id`. None is returned where it is another one.
    """
    last = os.O_NOFOLLOW if id else 0
    place = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC | last)
    found = os.fstat(place)
    if id in ("", f"{found.st_dev}:{found.st_ino}"):
        return place
    os.close(place)
    return None


@contextmanager
def _core_files(soft: int | None) -> Iterator[None]:
    """The program gets the user's limit, not that of the daemon, which is none at all."""
    if soft is None:
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, before)


def _find(program: str, cwd: str, env: dict[str, str]) -> str:
    """
    The file that is started. Left to the system, a directory of PATH that is closed to this user
    would hide behind EACCES whatever else is wrong.

    Raises:
        OSError: ENOENT, there is none; EACCES, none that may be executed.
    """
    paths = _paths(program, cwd, env)
    for path in paths:
        if "/" in program or (os.path.isfile(path) and os.access(path, os.X_OK)):
            return path
    number = errno.EACCES if any(map(os.path.exists, paths)) else errno.ENOENT
    raise OSError(number, os.strerror(number), program)


def _is_there(program: str, cwd: str, env: dict[str, str]) -> bool:
    return any(map(os.path.exists, _paths(program, cwd, env)))


def _paths(program: str, cwd: str, env: dict[str, str]) -> list[str]:
    folders = [""] if "/" in program else env.get("PATH", os.defpath).split(":")
    return [os.path.join(cwd, folder, program) for folder in folders]
