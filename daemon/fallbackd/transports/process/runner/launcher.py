"""
Keeps one runner in stock, forked and waiting, and forks the next when it is taken.

One process with a warm interpreter and a single thread: a fork of it takes about a millisecond,
where a fresh interpreter per attempt would take ten to thirty; and that millisecond is spent
ahead of time. It knows nothing of the attempts: each runner takes its line to the daemon from
the control socket itself, and lives on when this process dies.

A small launcher process (standard library only) forks one *runner* per attempt: starting an
interpreter per attempt would cost more than the whole budget of a hop. The runner is a sub-reaper
in a session of its own: it records both streams with times, stops the whole tree, and reports only
when the kernel says that no child is left (`ECHILD`). Without that proof no hop is made. Every wait
for a runner has a bound (`RunnerLimits`): it is woken with SIGCONT, then everything below it is
ended.
"""

import ctypes
import errno
import gc
import os
import select
import signal
import socket
import sys
from collections.abc import Callable

from fallbackd.transports.process.runner import frames
from fallbackd.transports.process.runner.attempt import run_attempt

_PR_SET_DUMPABLE = 4
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_TAKEN = b"."


def main(control_fd: int) -> None:
    """Serve until the daemon closes its end of the control socket."""
    control = socket.socket(fileno=control_fd)
    control.set_inheritable(False)
    umask = os.umask(0o077)
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl(_PR_SET_NAME, b"fallbackd-start", 0, 0, 0)
    prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)  # prompts and keys come through; exec makes it dumpable
    # What a runner that was killed has left is known as such, and reaped by the kernel.
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    _catch_signals()
    gc.collect()
    gc.freeze()
    while True:
        stock, told = os.pipe()
        try:
            pid = os.fork()
        except OSError as error:
            os.close(stock)
            os.close(told)
            if not _refuse_one(control, error):
                return
            continue
        if pid == 0:
            os.close(stock)
            _be_runner(control, told, prctl, umask)
        os.close(told)
        is_taken = _wait_until_taken(control, stock)
        os.close(stock)
        if not is_taken:
            return


def _catch_signals() -> None:
    """
    Leave no signal ignored: that would pass through exec to the CLIs; a handler does not.

    The interpreter's own two (SIGPIPE, SIGXFSZ) are restored where a program is started.
    """
    for number in range(1, signal.NSIG):
        try:
            if signal.getsignal(number) is signal.SIG_IGN and number not in (
                signal.SIGPIPE,
                signal.SIGXFSZ,
            ):
                signal.signal(number, signal.SIG_DFL)
        except (OSError, ValueError):
            continue
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # runners are reaped by the kernel


def _wait_until_taken(control: socket.socket, stock: int) -> bool:
    """False when the daemon has left."""
    poll = select.poll()
    poll.register(stock, select.POLLIN)
    poll.register(control, 0)
    while True:
        for handle, _ in poll.poll():
            if handle != stock:
                return False
            # Empty: the runner in stock was killed. The next one takes its place.
            os.read(stock, 1)
            return True


def _be_runner(control: socket.socket, told: int, prctl: Callable[..., int], umask: int) -> None:
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        prctl(_PR_SET_NAME, b"fallbackd-run", 0, 0, 0)
        os.setsid()
        if prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "cannot become sub-reaper")
        line = _take_line(control)
        if line is not None:
            try:
                os.write(told, _TAKEN)
            except BrokenPipeError:
                pass  # the launcher is dead, but this one attempt can be served
            os.close(told)
            control.close()
            run_attempt(line, umask=umask)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)


def _take_line(control: socket.socket) -> socket.socket | None:
    """The runner's end of a line to the daemon; None when the daemon has left."""
    while True:
        try:
            data, handles, _, _ = socket.recv_fds(control, 16, 1, socket.MSG_CMSG_CLOEXEC)
        except OSError:
            return None
        if handles:
            return socket.socket(fileno=handles[0])
        if not data:
            return None


def _refuse_one(control: socket.socket, error: OSError) -> bool:
    line = _take_line(control)
    if line is None:
        return False
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
    line.close()
    return True
