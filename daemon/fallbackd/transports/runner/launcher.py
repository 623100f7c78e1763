"""
Forks a runner for each attempt.

One process with a warm interpreter and a single thread: a fork of it takes about a millisecond,
where a fresh interpreter per attempt would take ten to thirty. It knows nothing of the attempts:
each runner talks to the daemon over a line of its own, and lives on when this process dies.
"""

import ctypes
import errno
import gc
import os
import signal
import socket
import sys
from collections.abc import Callable

from fallbackd.transports.runner import frames
from fallbackd.transports.runner.attempt import run_attempt

_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36


def main(control_fd: int) -> None:
    """Serve until the daemon closes its end of the control socket."""
    control = socket.socket(fileno=control_fd)
    control.set_inheritable(False)
    umask = os.umask(0o077)
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl(_PR_SET_NAME, b"fallbackd-start", 0, 0, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # runners are reaped by the kernel
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    while True:
        try:
            data, handles, _, _ = socket.recv_fds(control, 16, 1, socket.MSG_CMSG_CLOEXEC)
        except OSError:
            return
        if not data:
            return
        if not handles:
            continue
        line = socket.socket(fileno=handles[0])
        try:
            pid = os.fork()
        except OSError as error:
            _refuse(line, error)
        else:
            if pid == 0:
                _be_runner(control, line, prctl, umask)
        line.close()


def _be_runner(
    control: socket.socket, line: socket.socket, prctl: Callable[..., int], umask: int
) -> None:
    try:
        control.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        prctl(_PR_SET_NAME, b"fallbackd-run", 0, 0, 0)
        os.setsid()
        if prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "cannot become sub-reaper")
        run_attempt(line, umask=umask)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)


def _refuse(line: socket.socket, error: OSError) -> None:
    number = error.errno or errno.EAGAIN
    record = {
        "error": errno.errorcode.get(number, str(number)),
        "text": f"fork: {os.strerror(number)}",
        "path": "",
        "at": 0.0,
    }
    try:
        line.send(frames.pack_json(frames.REFUSED, record), socket.MSG_NOSIGNAL)
    except OSError:
        pass
