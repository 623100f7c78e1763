"""Start one program: pipes, fork, exec, and the exact reason when the system refuses."""

import errno
import os
import signal
import struct
from typing import Any, NamedTuple, NoReturn

_STATUS = struct.Struct("!iB")
_AT_CWD, _AT_PROGRAM, _AT_INTERPRETER = range(3)


class Started(NamedTuple):
    pid: int
    stdin: int
    """-1 unless there is something to be written."""
    stdout: int
    stderr: int


class Refused(NamedTuple):
    error: str
    text: str
    path: str


def refusal(error: OSError, path: str) -> Refused:
    number = error.errno or errno.EIO
    return Refused(errno.errorcode.get(number, str(number)), os.strerror(number), path)


def start(spec: dict[str, Any], *, has_input: bool) -> Started | Refused:
    argv, cwd, env = spec["argv"], spec["cwd"], spec["env"]
    opened: list[int] = []

    def pipe() -> tuple[int, int]:
        ends = os.pipe2(os.O_CLOEXEC)
        opened.extend(ends)
        return ends

    try:
        if not argv or any("\0" in word for word in argv) or "\0" in cwd:
            raise OSError(errno.EINVAL, "")
        out_read, out_write = pipe()
        err_read, err_write = pipe()
        status_read, status_write = pipe()
        if has_input:
            in_read, in_write = pipe()
        else:
            in_read, in_write = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), -1
            opened.append(in_read)
        pid = os.fork()
    except OSError as error:
        for handle in opened:
            os.close(handle)
        return refusal(error, argv[0] if argv else "")
    if pid == 0:
        _become(argv, cwd, env, spec["umask"], (in_read, out_write, err_write), status_write)
    for handle in (in_read, out_write, err_write, status_write):
        os.close(handle)
    status = os.read(status_read, _STATUS.size)
    os.close(status_read)
    if not status:
        return Started(pid, in_write, out_read, err_read)
    os.waitpid(pid, 0)
    for handle in (in_write, out_read, err_read):
        if handle >= 0:
            os.close(handle)
    number, place = _STATUS.unpack(status)
    refused = refusal(OSError(number, ""), cwd if place == _AT_CWD else argv[0])
    if place == _AT_INTERPRETER:
        return refused._replace(text=f"{refused.text} (the interpreter that it names)")
    return refused


def _become(
    argv: list[str],
    cwd: str,
    env: dict[str, str],
    umask: int,
    streams: tuple[int, int, int],
    status: int,
) -> NoReturn:
    place = _AT_CWD
    try:
        signal.set_wakeup_fd(-1)
        _default_signals()
        os.setsid()
        for number, handle in enumerate(streams):
            os.dup2(handle, number)
        os.umask(umask)
        os.chdir(cwd)
        place = _AT_PROGRAM
        number, found = _exec(argv, env)
        if number == errno.ENOENT and found:
            place = _AT_INTERPRETER
    except OSError as error:
        number = error.errno or errno.EIO
    except BaseException:
        number = errno.EINVAL
    os.write(status, _STATUS.pack(number, place))
    os._exit(127)


def _default_signals() -> None:
    # Ignored signals pass through exec: ours (SIGPIPE, SIGXFSZ of the interpreter, SIGINT, SIGHUP)
    # would otherwise be the CLI's.
    for number in signal.valid_signals():
        try:
            signal.signal(number, signal.SIG_DFL)
        except (OSError, ValueError):
            pass
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _exec(argv: list[str], env: dict[str, str]) -> tuple[int, bool]:
    """
    Look the program up on the child's own PATH, from its own working directory.

    Returns:
        errno, and whether a file of that name was there. A file in no known format is refused
        (ENOEXEC), not given to a shell.
    """
    program = argv[0]
    if "/" in program:
        paths = [program]
    else:
        path = env.get("PATH", os.defpath)
        paths = [os.path.join(folder or ".", program) for folder in path.split(":")]
    refused, was_there = errno.ENOENT, False
    for path in paths:
        try:
            os.execve(path, argv, env)
        except OSError as error:
            number = error.errno or errno.EIO
            if number in (errno.ENOENT, errno.ENOTDIR):
                was_there = was_there or os.path.lexists(path)
                if "/" in program:
                    refused = number
            elif number == errno.EACCES:
                refused = number
            else:
                return number, True
    return refused, was_there
