"""
One attempt, from the order to the record of its end.

It needs no daemon: one that is gone is waited for at a socket in the attempt's directory, where the
next one takes the line up again.
"""

import enum
import errno
import json
import os
import select
import signal
import socket
import time
import traceback
from collections.abc import Callable
from typing import Any

from fallbackd.lib.failpoints import hit
from fallbackd.transports.process.runner import cgroup, frames, tree
from fallbackd.transports.process.runner.meeting import (
    ATTEMPT_FILE,
    EXIT_FILE,
    LINE_FILE,
    Gone,
    Meeting,
    Peer,
    claim,
)
from fallbackd.transports.process.runner.recorder import STDERR, STDOUT, Recorder
from fallbackd.transports.process.runner.start import Started, StartRefused, refusal, start

# --- the reaper ----------------------------------------------------------------------------------
# Brings a whole family of processes to its end, and proves it.
#
# As sub-reaper, the runner becomes the parent of every orphan below it. So when `waitpid(-1)` says
# ECHILD no process is left, detached grandchildren included: the kernel's own proof.

_ROUNDS = 100


class Reaper:
    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.status: int | None = None
        """Wait status of the program itself."""
        self.is_childless = False
        self._asked: set[tuple[int, int]] = set()

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.is_childless = True
                return
            if pid == 0:
                return
            if pid == self.pid:
                self.status = status

    def ask(self) -> None:
        """
        Send TERM to every process that has not had one yet.

        Once each: many programs take a second one for impatience and skip their own clean-up.
        """
        for each in self.remaining():
            if (each.pid, each.start) not in self._asked:
                self._asked.add((each.pid, each.start))
                tree.send_signal(each, signal.SIGTERM)
                if each.state in "Tt":
                    tree.send_signal(each, signal.SIGCONT)

    def kill(self) -> None:
        """Send KILL to all, repeatedly until no new process appears (fork races)."""
        if self.status is None:
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except OSError:
                pass
        killed: set[tuple[int, int]] = set()
        for _ in range(_ROUNDS):
            fresh = [each for each in self.remaining() if (each.pid, each.start) not in killed]
            if not fresh:
                return
            for each in fresh:
                killed.add((each.pid, each.start))
                tree.send_signal(each, signal.SIGKILL)

    @staticmethod
    def remaining() -> list[tree.Process]:
        try:
            below = tree.descendants([os.getpid()], tree.processes())
        except OSError:
            return []  # without a free descriptor: looked at again, and ECHILD alone is the proof
        return [each for each in below if not each.is_dead]


# --- the end of a family -------------------------------------------------------------------------
# How the family of a program comes to its end.
#
# ```
#             program ends           0.5 s
#  RUNNING ------------------> LINGERING ----> ENDING ----> KILLING ----> (gives up after 10 s)
#     |  stop: TERM to all                       ^    1 s      ^
#     +-- program ends after a stop -------------+             |
#     +-- grace is over ---------------------------------------+
#  from everywhere: no process is left (ECHILD) -> the end is recorded
# ```

_LINGER_S = 0.5
_ENDING_S = 1.0
_KILL_AGAIN_S = 0.05


class _Phase(enum.Enum):
    RUNNING = enum.auto()
    LINGERING = enum.auto()
    ENDING = enum.auto()
    KILLING = enum.auto()


class FamilyEnding:
    """
    Args:
        kill_bound_s: How long KILL may take before the family counts as not gone.
        now: The time that is recorded.
    """

    def __init__(self, reaper: Reaper, *, kill_bound_s: float, now: Callable[[], float]) -> None:
        self._reaper = reaper
        self._kill_bound_s = kill_bound_s
        self._now = now
        self._phase = _Phase.RUNNING
        self._deadline = 0.0
        self._stop_at: float | None = None
        """Monotonic time at which politeness ends."""
        self._was_asked = False
        self.ended_at: float | None = None
        """Instant at which the program itself ended."""
        self.is_gone = True
        """False: it was given up, and part of the family may live."""
        self.is_stopped = False
        """True where it was stopped while it ran."""
        self.notes: list[str] = []
        self.left: list[str] = []
        """Names of the programs that were alive when theirs had ended by itself."""

    @property
    def is_asked(self) -> bool:
        """A stop was asked for."""
        return self._stop_at is not None

    def timeout_s(self) -> float | None:
        """Return how long nothing has to be done; None: until something happens."""
        if self._phase is _Phase.KILLING:
            return _KILL_AGAIN_S
        deadline = self._deadline if self._phase is not _Phase.RUNNING else self._stop_at
        return None if deadline is None else max(0.0, deadline - time.monotonic()) + 0.001

    def is_over(self) -> bool:
        """Move through the phases. True when no process is left, or we have to give up."""
        reaper = self._reaper
        now = time.monotonic()
        if reaper.status is not None and self.ended_at is None:
            self.ended_at = self._now()
        if reaper.is_childless:
            return True
        if self._phase is _Phase.RUNNING:
            self._leave_running(now)
        if self._phase is _Phase.LINGERING and (now >= self._deadline or self.is_asked):
            self.left = sorted(tree.name_of(each.pid) for each in reaper.remaining())
            self._enter(_Phase.ENDING, now + _ENDING_S)
        if self._phase is _Phase.ENDING and now >= self._deadline:
            self._enter(_Phase.KILLING, now + self._kill_bound_s)
        if self._phase is _Phase.KILLING:
            if now >= self._deadline:
                self._give_up()
                return True
            reaper.kill()
            reaper.reap()
        return False

    def _leave_running(self, now: float) -> None:
        if self._reaper.status is not None:
            if self._stop_at is None:
                self._enter(_Phase.LINGERING, now + _LINGER_S)
            else:
                self._enter(_Phase.ENDING, now + _ENDING_S)
        elif self._stop_at is not None:
            if not self._was_asked:
                self._was_asked = True
                self._reaper.ask()
            if now >= self._stop_at:
                self._enter(_Phase.KILLING, now + self._kill_bound_s)

    def _enter(self, phase: _Phase, deadline: float) -> None:
        self._phase, self._deadline = phase, deadline
        if phase is _Phase.ENDING:
            self._reaper.ask()

    def ask(self, grace_s: float) -> None:
        """Stop politely. A later, shorter grace counts, a longer one does not."""
        stop_at = time.monotonic() + max(0.0, grace_s)
        self._stop_at = stop_at if self._stop_at is None else min(self._stop_at, stop_at)
        self.is_stopped = self.is_stopped or self._reaper.status is None

    def force(self) -> None:
        """End all processes now. Returns when none is left, or we have to give up."""
        until = time.monotonic() + self._kill_bound_s
        while not self._reaper.is_childless:
            if time.monotonic() >= until:
                self._give_up()
                return
            self._reaper.kill()
            time.sleep(_KILL_AGAIN_S)
            self._reaper.reap()

    def _give_up(self) -> None:
        left = self._reaper.remaining()
        self.is_gone = False
        pids = ", ".join(str(each.pid) for each in left) or "unknown"
        self.notes.append(f"not killed within {self._kill_bound_s:g} s: {pids}")


# --- rest ----------------------------------------------------------------------------------------
# How long a program may stay that takes one turn after another.


class Rest:
    """
    Bound the time between two turns of a program, also where no daemon is left to do so.

    A turn that has lost its daemon continues; its end is seen in what the program prints.
    """

    def __init__(self, limits: dict[str, float | None] | None) -> None:
        """`limits` of `core.protocol.Rest`; None: the program does not rest."""
        self._limits = limits
        self._since: float | None = time.monotonic()
        """None: a turn is under way, as far as the daemon knows."""
        self._is_told = False
        """A start is no rest: the daemon has a limit for it."""
        self._ended_at: float | None = None
        """When the turn was seen to end."""
        self._ends = b""
        self._tail = b"\n"

    def turn(self, ends: str | None) -> None:
        self._since = time.monotonic() if ends is None else None
        self._is_told = True
        self._ended_at = None
        self._ends, self._tail = b"\n" + (ends or "").encode(), b"\n"

    def heard(self) -> None:
        """Begin its rest anew: it was sent something."""
        if self._since is not None:
            self._since = time.monotonic()

    def printed(self, data: bytes) -> None:
        if self._limits is None or self._since is not None or len(self._ends) < 2:
            return
        seen = self._tail + data
        if self._ended_at is None and self._ends in seen:
            self._ended_at = time.monotonic()
        self._tail = seen[-len(self._ends) :]

    def left_s(self, *, is_alone: bool) -> float | None:
        """Return how long the program may stay; None: until something happens."""
        since = self._ended_at if self._since is None and is_alone else self._since
        limit_s = None if self._limits is None else self._limits[_LIMITS[is_alone]]
        if limit_s is None or since is None or not (is_alone or self._is_told):
            return None
        return max(0.0, since + limit_s - time.monotonic())


_LIMITS = ("idle_s", "alone_s")


# --- the attempt ---------------------------------------------------------------------------------

_STDIN_BYTES = 65_536
_FOLLOWER_S = 2.0
"""Time that the newest output waits for a daemon that lags a whole tail behind."""
_HURRIED_FOLLOWER_S = 0.2
_MAX_LEFT = 10
"""Names of programs that were ended with theirs."""
_DRAIN_BYTES = 64 * 1024 * 1024
_READABLE = select.POLLIN | select.POLLHUP | select.POLLERR


def _start(spec: dict[str, Any]) -> Started | StartRefused:
    """Start it in the group of the attempt, where there is one."""
    hit("runner.claimed")
    group = spec.get("cgroup", "")
    is_inside = bool(group) and cgroup.enter(group)
    outcome = start(spec, has_input=bool(spec["stdin_bytes"]) or bool(spec.get("holds_input")))
    # Where the runner cannot leave it, the group says nothing about the program.
    spec["cgroup"] = group if is_inside and cgroup.leave(group) else ""
    hit("runner.started")
    return outcome


def run_attempt(line: socket.socket, *, umask: int) -> None:
    """The life of a runner. Returns when everything is over and recorded."""
    peer = Peer(line)
    try:
        peer.greet()
        spec, stdin = peer.receive_spec()
    except Gone:
        return
    if spec["umask"] is None:
        spec["umask"] = umask
    directory = -1
    try:
        directory = os.open(
            spec["directory"], os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        )
        claim(directory)
    except FileExistsError:
        return  # a later daemon was first: it believes that nothing is started here
    except OSError as error:
        outcome: Started | StartRefused = refusal(error, spec["directory"])
    else:
        outcome = _start(spec)
    if isinstance(outcome, StartRefused):
        record: dict[str, Any] = {"refused": outcome._asdict() | {"at": _now(spec)}}
        is_told = peer.send(frames.pack_json(frames.REFUSED, record["refused"]))
    else:
        attempt = _Attempt(peer, spec, outcome, stdin, directory)
        record = attempt.run()
        if spec["cgroup"] and record["gone"]:
            record["gone"] = cgroup.end(spec["cgroup"], bound_s=spec["kill_bound_s"])
        hit("runner.ended")
        is_told = attempt.tell_end(record)
    # The daemon continues at once with what it was sent; the record on disk is for a later daemon,
    # and outlives the machine where no daemon was there.
    hit("runner.exit.before")
    if directory >= 0:
        _write_record(directory, EXIT_FILE, record, durable=not is_told)
        _remove(directory, LINE_FILE)
    hit("runner.exit.after")
    if spec.get("cgroup"):
        cgroup.remove(spec["cgroup"])
    if spec["tmp"]:
        import shutil  # for few programs only

        shutil.rmtree(spec["tmp"], ignore_errors=True)


def _now(spec: dict[str, Any]) -> float:
    # The daemon's clock, not ours: they must not disagree when the wall clock is set.
    # Microseconds, as in the index: a time must not differ by where it was read.
    return round(float(spec["epoch"]) + time.clock_gettime(time.CLOCK_BOOTTIME), 6)


class _Attempt:
    def __init__(
        self, peer: Peer, spec: dict[str, Any], program: Started, stdin: bytes, directory: int
    ) -> None:
        # First of all: the daemon counts the time until here.
        self._start = getattr(tree.process(program.pid), "start", 0)
        words = {"pid": program.pid, "start": self._start, "cgroup": spec["cgroup"]}
        started = frames.pack_json(frames.STARTED, words)
        peer.send(started)
        self._program = program
        self._peer = peer
        self._spec = spec
        self._directory = directory
        self._reaper = Reaper(program.pid)
        self._recorder = Recorder(directory, max_log_bytes=spec["max_log_bytes"])
        self._letters = {program.stdout: STDOUT, program.stderr: STDERR}
        self._stdin = program.stdin
        self._input = memoryview(stdin)
        self._ending = FamilyEnding(
            self._reaper, kill_bound_s=spec["kill_bound_s"], now=lambda: _now(spec)
        )
        self._rest = Rest(spec.get("rest"))
        self._last_at = 0.0
        """Instant of the last chunk: what the dead left behind is read after their end."""
        self._patience_s = _FOLLOWER_S
        self._seen = -1
        self._undelivered = 0
        self._notes: list[str] = []
        self._wake, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self._stop(spec["stop_grace_s"]))
        self._poll = select.poll()
        self._poll.register(self._wake, _READABLE)
        self._meeting = Meeting(directory, started)
        self._have(peer)
        for handle in (*self._letters, self._stdin):
            if handle >= 0:
                os.set_blocking(handle, False)
                self._poll.register(handle, select.POLLOUT if handle == self._stdin else _READABLE)

    def _have(self, peer: Peer) -> None:
        self._peer = peer
        self._seen = -1  # a daemon that comes later reads from the beginning
        if peer.fileno() < 0:
            self._wait_for_peer()
            return
        self._poll.register(peer.fileno(), _READABLE)
        peer.on_close = self._lose

    def _lose(self, handle: int) -> None:
        self._poll.unregister(handle)
        self._wait_for_peer()

    def _wait_for_peer(self) -> None:
        if (handle := self._meeting.open()) >= 0:
            self._poll.register(handle, _READABLE)

    def _meet(self) -> None:
        """A later daemon takes the line up."""
        if (peer := self._meeting.take()) is not None:
            self._poll.unregister(self._meeting.fileno())
            self._meeting.close()
            self._patience_s = _HURRIED_FOLLOWER_S if self._ending.is_asked else _FOLLOWER_S
            self._have(peer)

    def _stop(self, grace_s: float) -> None:
        self._ending.ask(grace_s)
        self._patience_s = _HURRIED_FOLLOWER_S

    def tell_end(self, record: dict[str, Any]) -> bool:
        return self._peer.send(frames.pack_json(frames.EXIT, record))

    def run(self) -> dict[str, Any]:
        me = tree.process(os.getpid())
        identity = {
            "runner": os.getpid(),
            "runner_start": me.start if me is not None else 0,
            "pid": self._reaper.pid,
            "start": self._start,
            "boot_id": tree.boot_id(),
            "token": self._spec["token"],
            "cgroup": self._spec["cgroup"],
        }
        _write_record(self._directory, ATTEMPT_FILE, identity, durable=False)
        hit("runner.known")
        try:
            self._watch()
            self._drain()
        except Exception:
            # A mistake of ours must not leave the family behind.
            self._notes.append(f"the runner failed: {traceback.format_exc(limit=3)}")
            self._ending.force()
        return self._record() | identity

    def _watch(self) -> None:
        self._reaper.reap()  # it may have ended before SIGCHLD was listened for
        while not self._ending.is_over():
            timeout_s = self._ending.timeout_s()
            if not self._ending.is_asked:
                rest_s = self._rest.left_s(is_alone=self._peer.fileno() < 0)
                if rest_s == 0.0:
                    self._stop(self._spec["stop_grace_s"])
                    continue
                timeout_s = min((s for s in (timeout_s, rest_s) if s is not None), default=None)
            for handle, _ in self._poll.poll(None if timeout_s is None else timeout_s * 1000):
                if handle in self._letters:
                    self._pump(handle)
                elif handle == self._stdin:
                    self._feed()
                elif handle == self._wake:
                    self._empty_wake()
                elif handle == self._meeting.fileno():
                    self._meet()
                else:
                    self._listen()
            self._reaper.reap()

    # --- the end ---------------------------------------------------------------------------

    def _record(self) -> dict[str, Any]:
        code = signal_number = None
        if (status := self._reaper.status) is not None:
            if os.WIFSIGNALED(status):
                signal_number = os.WTERMSIG(status)
            else:
                code = os.waitstatus_to_exitcode(status)
        recorder = self._recorder
        if recorder.error:
            self._notes.append(
                f"the log is incomplete ({recorder.error}): {recorder.lost_bytes} bytes not on "
                f"disk, {self._undelivered} of them not delivered either"
            )
        ending = self._ending
        return {
            "code": code,
            "signal": signal_number,
            "gone": ending.is_gone,
            "stopped": ending.is_stopped,
            "at": max(ending.ended_at or _now(self._spec), self._last_at),
            "gone_at": _now(self._spec),
            "output_bytes": recorder.position,
            "dropped_bytes": recorder.dropped_bytes,
            "left": [name for name in ending.left if name][:_MAX_LEFT],
            "note": "; ".join((*self._notes, *ending.notes)),
        }

    # --- the streams -----------------------------------------------------------------------

    def _pump(self, handle: int) -> int:
        """Returns how much there was; 0 at the end and when there is nothing now."""
        try:
            data = os.read(handle, self._recorder.read_bytes)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""
        if not data:
            del self._letters[handle]
            self._poll.unregister(handle)
            os.close(handle)
            return 0
        self._wait_for_follower(len(data))
        letter, at = self._letters[handle], _now(self._spec)
        self._last_at = at
        if letter == STDOUT:
            self._rest.printed(data)
        if self._recorder.write(letter, data, at=at):
            self._peer.ring()
        elif not self._peer.send(frames.pack_chunk(letter, data, at=at)):
            self._undelivered += len(data)
        return len(data)

    def _wait_for_follower(self, size: int) -> None:
        """
        Hold back what would push out a part that the daemon has not opened yet.

        Bounded: a daemon that hangs costs its own completeness, not the program's progress.
        """
        drops = self._recorder.drops_next(size)
        if drops is None or self._seen >= drops:
            return
        until = time.monotonic() + self._patience_s
        waits = select.poll()
        was_stopping = self._ending.is_asked
        while self._seen < drops and self._peer.fileno() >= 0:
            left = until - time.monotonic()
            if left <= 0:
                self._patience_s = 0.0  # until it is heard of again
                return
            if not was_stopping and self._ending.is_asked:
                return
            self._peer.ring()
            waits.register(self._peer.fileno(), _READABLE)
            waits.poll(min(left, 0.05) * 1000)
            self._listen()

    def _feed(self) -> None:
        try:
            count = os.write(self._stdin, self._input[:_STDIN_BYTES])
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.EPIPE:
                self._notes.append(f"stdin: {os.strerror(error.errno or 0)}")
            count = len(self._input)  # the program does not want it
            self._spec["holds_input"] = False
        self._input = self._input[count:]
        if not self._input:
            self._poll.unregister(self._stdin)
            if not self._spec.get("holds_input"):
                os.close(self._stdin)
                self._stdin = -1

    def _take_input(self, more: bytes) -> None:
        if self._stdin < 0 or self._ending.is_asked:
            return
        self._rest.heard()
        if not self._input:
            self._poll.register(self._stdin, select.POLLOUT)
        self._input = memoryview(bytes(self._input) + more)

    def _drain(self) -> None:
        """Read what exited processes left in the pipes. Other holders are not of this family."""
        left = _DRAIN_BYTES
        while left > 0:
            count = sum(self._pump(handle) for handle in tuple(self._letters))
            if not count:
                return
            left -= count

    def _empty_wake(self) -> None:
        try:
            os.read(self._wake, 4096)
        except BlockingIOError:
            pass

    def _listen(self) -> None:
        for kind, payload in self._peer.receive():
            if kind == frames.STOP:
                self._stop(float(frames.read_json(payload)["grace_s"]))
            elif kind == frames.INPUT:
                self._take_input(payload)
            elif kind == frames.TURN:
                self._rest.turn(frames.read_json(payload)["ends"])
            elif kind == frames.SEEN:
                self._seen = int(frames.read_json(payload)["offset"])
                self._patience_s = _HURRIED_FOLLOWER_S if self._ending.is_asked else _FOLLOWER_S


def _write_record(directory: int, name: str, record: dict[str, Any], *, durable: bool) -> None:
    """All or nothing. On a full disk only the daemon has the record."""
    draft = f".{name}.new"
    try:
        handle = os.open(
            draft,
            os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC,
            0o600,
            dir_fd=directory,
        )
        try:
            with os.fdopen(handle, "wb", closefd=False) as file:
                file.write(json.dumps(record).encode())
            if durable:
                os.fsync(handle)
        finally:
            os.close(handle)
        hit("runner.record.within")
        os.rename(draft, name, src_dir_fd=directory, dst_dir_fd=directory)
        if durable:
            os.fsync(directory)
    except OSError:
        pass


def _remove(directory: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=directory)
    except OSError:
        pass
