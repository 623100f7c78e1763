"""
Starts agent CLIs, each watched by a runner of its own outside the daemon.

```
 daemon --- order ---> launcher --- fork ---> runner --- fork, exec ---> agent CLI
    ^                                           | |                        |
    +------- rings, exit record ----------------+ +--- output.log <--------+ stdout, stderr
```

The runner writes the output to the attempt's directory and rings; the daemon reads it from there.
So a runner needs no daemon to go on, and what is on disk is what was read.
"""

import errno
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import anyio
from anyio.lowlevel import checkpoint_if_cancelled
from msgspec import to_builtins

import fallbackd
from fallbackd.core.protocol import Call, CommandLine, NotStarted
from fallbackd.lib.failpoints import handed_on, hit
from fallbackd.ports.transport import SecretProblem, Secrets
from fallbackd.transports.process.environment import (
    child_environment,
    confine_words,
    copy_words,
    inheritable,
)
from fallbackd.transports.process.leftovers import runner_in, take_up
from fallbackd.transports.process.orphans import (
    DIRECTORY_VARIABLE,
    LOOKS,
    TOKEN_VARIABLE,
    Started,
    holder_below,
    is_any_left,
    runner_above,
)
from fallbackd.transports.process.recording import read_exit
from fallbackd.transports.process.runner import cgroup, frames, tree
from fallbackd.transports.process.running import RunnerLimits, RunningProcess
from fallbackd.transports.secrets import SecretSources as RealSecrets
from fallbackd.transports.secrets import no_secret

_BOOT = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from fallbackd.transports.process.runner.launcher import main; main(int(sys.argv[2]))"
)
_LAUNCHES = 3


_OF_TMUX = ("TMUX", "TMUX_PANE")
"""Variables that name a server of the person's, which is not confined."""


def _temporary(call: CommandLine, tmp: str) -> dict[str, str]:
    """Variables for its own temporary files; a confined program has tmux's socket there too."""
    if not tmp:
        return {}
    return {"TMPDIR": tmp} if call.confinement is None else {"TMPDIR": tmp, "TMUX_TMPDIR": tmp}


def _is_proven_gone(directory: str, running: RunningProcess | None) -> bool:
    if running is not None and running.is_gone is not None:
        return running.is_gone
    found = read_exit(directory)
    return found is not None and found.gone


class ProcessTransport:
    def __init__(
        self,
        *,
        environ: Mapping[str, str] | None = None,
        now: Callable[[], float] = time.time,
        umask: int | None = None,
        limits: RunnerLimits | None = None,
        secrets: Secrets | None = None,
        cgroup_home: str = "",
    ) -> None:
        """
        Args:
            environ: What children inherit, before it is scrubbed; None: of the daemon's own what
                is for every program.
            now: The daemon's clock; the times of chunks and exits are on it.
            umask: Of the children; None: the daemon's when the first one is started.
            cgroup_home: Below which each program has a control group; empty: it has none.
            secrets: Where the credentials of calls are found; None: by `environ`.
        """
        self._environ = inheritable(environ)
        self._now = now
        self._cgroup_home = cgroup_home
        self._umask = umask
        self._secrets = RealSecrets(environ=self._environ, now=now) if secrets is None else secrets
        self._limits = RunnerLimits() if limits is None else limits
        self._launcher: _Launcher | None = None
        self._running: set[RunningProcess] = set()
        self._known: dict[str, Started] = {}
        """Programs by directory whose runner lives, or whose end nothing tells."""
        self._lost_since: int | None = None
        """Instant at which the first program started whose runner was killed."""
        self._seen: dict[int, tree.Process] = {}
        """Processes above earlier callers that were no part of an attempt."""

    async def _credential(self, call: CommandLine) -> dict[str, str]:
        """
        The variable with the secret, where the call names one.

        Raises:
            SecretProblem: It cannot be read.
        """
        if call.credential is None or call.credential.into is None:
            return {}
        return {call.credential.into: await self._secrets.read(call.credential)}

    async def open(
        self, call: Call, *, attempt: str, directory: str, env: dict[str, str]
    ) -> "RunningProcess":
        if not isinstance(call, CommandLine):
            raise TypeError(f"{type(call).__name__} is not for this transport")
        self._forget_ended()
        tmp = os.path.join(directory, "tmp") if call.own_tmp else ""
        try:
            credential = await self._credential(call)
            if tmp:
                os.mkdir(tmp, 0o700)
        except SecretProblem as problem:
            ended = no_secret(problem, at=self._now())
            return RunningProcess.refused(ended, self._limits, self._now)
        except OSError as error:
            return self._not_started(error, directory)
        token = secrets.token_hex(16)
        spec = self._spec(call, attempt, directory, tmp, token, credential, env)
        order = frames.pack_json(frames.SPEC, spec) + (call.stdin or b"")
        for _ in range(_LAUNCHES):
            try:
                line, launcher = await self._launch()
            except OSError as error:
                return self._not_started(error, sys.executable)
            hit("order.before")
            running = RunningProcess(
                line, directory, token, self._limits, self._now, attempt=attempt
            )
            self._running.add(running)
            since = tree.ticks_now()
            try:
                is_under_way = await running.begin(order)
                # A runner that answers at once is never waited for, and its start never cancelled.
                await checkpoint_if_cancelled()
            except BaseException:
                running.stop(grace_s=0.0)
                raise
            if is_under_way:
                self._know(attempt, directory, running.runner, since=since)
                return running
            running.release()
            self._running.discard(running)
            # It died before there was a runner, or is held: nothing was started.
            if running.was_unheard or not launcher.is_alive():
                launcher.kill()
                await self._end_launcher(launcher)
        return self._not_started(OSError(errno.EAGAIN, ""), sys.executable)

    def _spec(
        self,
        call: CommandLine,
        attempt: str,
        directory: str,
        tmp: str,
        token: str,
        credential: dict[str, str],
        env: dict[str, str],
    ) -> dict[str, Any]:
        """Make the order of a runner."""
        marks = {
            **credential,
            "FALLBACKD_ATTEMPT": attempt,
            "PWD": call.cwd,
            **env,
            TOKEN_VARIABLE: token,
            DIRECTORY_VARIABLE: directory,
        }
        added = {**_temporary(call, tmp), **call.env}
        unset = call.unset if call.confinement is None else (*call.unset, *_OF_TMUX)
        child_env = child_environment(
            self._environ.with_kept(call.keeps),
            added=added,
            unset=unset,
            marks=marks,
        )
        confine = confine_words(call.confinement, child_env, directory=directory)
        copies = copy_words(call.copies, confine, child_env)
        return {
            "argv": call.argv,
            "cwd": call.cwd,
            "cwd_id": call.cwd_id,
            "env": {**child_env, **{name: each["top"] for name, each in copies.items()}},
            "confine": confine,
            "copies": list(copies.values()),
            "stdin_bytes": len(call.stdin or b""),
            "holds_input": call.holds_input,
            "rest": None if call.rest is None else to_builtins(call.rest),
            "directory": directory,
            "tmp": tmp,
            "token": token,
            "cgroup": cgroup.path_for(self._cgroup_home, attempt, token),
            "umask": self._umask,
            "core_bytes": self._limits.core_bytes,
            "epoch": self._now() - time.clock_gettime(time.CLOCK_BOOTTIME),
            "max_log_bytes": self._limits.max_log_bytes,
            "stop_grace_s": self._limits.stop_grace_s,
            "kill_bound_s": self._limits.kill_bound_s,
        }

    async def attach(self, *, attempt: str, directory: str) -> "RunningProcess | None":
        self._forget_ended()
        running = await take_up(directory, attempt=attempt, limits=self._limits, now=self._now)
        if running is not None:
            self._running.add(running)
        return running

    def expect(self, attempt: str, directory: str) -> None:
        """Know the runner of an attempt of an earlier daemon before it is re-attached."""
        self._know(attempt, directory)

    def settle(self) -> None:
        """Forget runners that were killed where nothing lives that they may have left."""
        runners, lost_since = self._supervised()
        if lost_since is not None and not is_any_left(runners, lost_since):
            known = self._known.items()
            self._known = {each: one for each, one in known if tree.is_same(one.runner)}

    def _know(
        self,
        attempt: str,
        directory: str,
        runner: tree.Process | None = None,
        *,
        since: int | None = None,
    ) -> None:
        runner = runner or runner_in(directory)
        if runner is not None:
            self._known[directory] = Started(
                attempt=attempt,
                directory=directory,
                runner=runner,
                since=runner.start if since is None else since,
            )

    def above(self, pid: int) -> "Started | None":
        """
        Find what was started whose runner is above a process: as a sub-reaper it stays above
        everything that its program starts, and where it was killed, the launcher does. Where both
        were, nothing is: what may be left of it then cannot be known. None: nothing that was
        started here.

        Raises:
            OSError: It cannot be determined.
        """
        self._forget_ended()
        for _ in range(LOOKS):
            before = self._supervised()
            runners, lost_since = dict(before[0]), before[1]
            launcher = None if self._launcher is None else tree.process(self._launcher.pid)
            if launcher is not None:
                runners[launcher.pid] = Started(attempt="", directory="", runner=launcher)
            found = runner_above(pid, runners, lost_since=lost_since, seen=self._seen)
            if found is not None and found.runner is launcher:
                raise OSError(errno.EACCES, "the supervisor of its attempt was killed")
            # A runner that was killed meanwhile may have been above it.
            if found is not None or self._supervised() == before:
                return found
        raise OSError(errno.EAGAIN, "runners end all the time")

    @property
    def has_any(self) -> bool:
        """Return whether anything that was started here may run."""
        return bool(self._running or self._known)

    async def holding(self, socket_inode: int) -> int | None:
        """
        A process below any runner that has a socket open; None: none has.

        Raises:
            OSError: It cannot be determined: a process hides what it has open.
        """
        return await anyio.to_thread.run_sync(holder_below, [*self._runners()], socket_inode)

    def _runners(self) -> dict[int, "Started"]:
        """List by process id those that live; also of a runner that has not been heard yet."""
        return self._supervised()[0]

    def _supervised(self) -> tuple[dict[int, "Started"], int | None]:
        """The runners that live, and since when programs may run on whose runner does not."""
        running = {each.directory: each for each in self._running}
        for directory, each in running.items():
            if directory not in self._known and not each.is_gone:
                self._know(each.attempt, directory)
        runners: dict[int, Started] = {}
        lost = [] if self._lost_since is None else [self._lost_since]
        for directory, one in tuple(self._known.items()):
            if tree.is_same(one.runner):
                runners[one.runner.pid] = one
            elif _is_proven_gone(directory, running.get(directory)):
                del self._known[directory]
            else:
                lost.append(one.since)
        return runners, min(lost, default=None)

    def _forget_ended(self) -> None:
        for each in [each for each in self._running if each.is_over]:
            each.release()
            self._running.discard(each)
            known = self._known.pop(each.directory, None)
            if known is not None and not each.is_gone:
                self._lost_since = min(known.since, self._lost_since or known.since)

    async def detach(self) -> None:
        for each in self._running:
            each.release()
        self._running.clear()
        if self._launcher is not None:
            await self._end_launcher(self._launcher)

    async def aclose(self) -> None:
        """Stop everything that runs, wait until it is gone, and end the launcher."""
        for each in self._running:
            each.stop(grace_s=self._limits.stop_grace_s)
        for each in tuple(self._running):
            await each.wait_gone()
            each.release()
        self._running.clear()
        if self._launcher is not None:
            await self._end_launcher(self._launcher)

    @property
    def launcher_pid(self) -> int | None:
        return None if self._launcher is None else self._launcher.pid

    async def _launch(self) -> "tuple[socket.socket, _Launcher]":
        """The daemon's end of a line whose other end waits for a runner to take it."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            while True:
                launcher = self._launcher = self._launcher or _Launcher()
                try:
                    with anyio.fail_after(self._limits.answer_s):
                        await launcher.hand_over(theirs)
                except (BrokenPipeError, ConnectionResetError):
                    await self._end_launcher(launcher)
                except TimeoutError:  # it is held, and has as many lines as it can
                    launcher.kill()
                    await self._end_launcher(launcher)
                else:
                    return ours, launcher
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()

    async def _end_launcher(self, launcher: "_Launcher") -> None:
        if self._launcher is launcher:  # or another attempt has replaced it already
            self._launcher = None
            await launcher.aclose()

    def _not_started(self, error: OSError, path: str) -> "RunningProcess":
        number = error.errno or errno.EIO
        return RunningProcess.refused(
            NotStarted(
                error=errno.errorcode.get(number, str(number)),
                text=os.strerror(number),
                path=error.filename if isinstance(error.filename, str) else path,
                at=self._now(),
                gone=True,
            ),
            self._limits,
            self._now,
        )


class _Launcher:
    """The daemon's side of `runner/launcher.py`."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        root = str(Path(fallbackd.__file__).parent.parent)
        options, points = handed_on
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", *options, "-c", _BOOT, root, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={"LC_ALL": "C.UTF-8", **points},
                cwd="/",
                start_new_session=True,  # a ^C at the daemon's terminal is not for it
            )
        except OSError:
            self._control.close()
            raise
        finally:
            theirs.close()
        self._control.setblocking(False)

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """Kill the launcher. What it has forked lives on."""
        self._process.kill()

    async def hand_over(self, line: socket.socket) -> None:
        while True:
            try:
                socket.send_fds(self._control, [b"."], [line.fileno()])
            except BlockingIOError:
                await anyio.wait_writable(self._control)
            else:
                return

    async def aclose(self) -> None:
        self._control.close()
        if self.is_alive():
            with anyio.move_on_after(5, shield=True):
                handle = os.pidfd_open(self._process.pid)
                try:
                    await anyio.wait_readable(handle)
                finally:
                    os.close(handle)
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
