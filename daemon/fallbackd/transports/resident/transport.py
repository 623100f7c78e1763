"""
Agent CLIs that stay after their prompt, so that the next one needs no start.

A prompt goes to a resident only where a program that was started for it would be the same: command
line, directory, environment, secret, confinement, executable, the files that it obeys, and the
conversation that it continues. A resident that has served a conversation takes no other one.

There are never more than the configuration allows, none while memory is short, and none that was
not used for a while; the one that has rested longest goes first. One that rests ends with its
daemon, also where that is killed: its runner sees to it. A turn continues, and its resident ends
after it; a later daemon re-attaches to it.
"""

import errno
import glob
import hashlib
import os
import secrets as chance
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream
from msgspec import Struct, structs

from fallbackd.backends.residents import WAYS
from fallbackd.core.protocol import Call, CommandLine, Exit, NotStarted, Residency, Rest
from fallbackd.lib.directories import expand, overlap, places
from fallbackd.lib.failpoints import hit
from fallbackd.ports.transport import Clock, Resting, Running, SecretProblem, Secrets, Unsent
from fallbackd.transports.process.environment import child_environment, inheritable
from fallbackd.transports.process.leftovers import fence
from fallbackd.transports.process.running import RunningProcess
from fallbackd.transports.process.transport import ProcessTransport
from fallbackd.transports.resident.machine import has_memory, resident_bytes
from fallbackd.transports.resident.record import (
    ResidentRecord,
    read_resident,
    read_turn,
    write_resident,
)
from fallbackd.transports.resident.resident import Item, Resident
from fallbackd.transports.resident.turn import NewTurn, TakenUpTurn

PREFIX = "resident:"
"""Of the name under which the runner of a resident is known."""
FOREIGN_S = 2.0
"""A conversation that was stored longer after the end of a turn was written by another program."""


class ResidentLimits(Struct, frozen=True, kw_only=True):
    idle_s: float = 600.0
    """How long one may rest. Its runner ends it, which outlives the daemon."""
    look_s: float = 15.0
    """How often it is looked whether one that rests may stay."""
    stray_s: float = 60.0
    """How long the resident of an earlier daemon waits for its turn to be re-attached."""
    silence_s: float = 5.0
    """For a turn whose prompt may not have been sent to show that it has begun."""


class ResidentTransport:
    """
    Args:
        processes: Starts the programs; what is not to stay goes there unchanged.
        tasks: Where the residents live. It must outlive the transport.
        directory: Private directory for what they leave behind; made where it is missing.
        secrets: Where the credentials of calls are found.
        most: How many there may be; 0: none.
    """

    def __init__(
        self,
        processes: ProcessTransport,
        *,
        tasks: TaskGroup,
        directory: str,
        clock: Clock,
        secrets: Secrets,
        most: Callable[[], int],
        environ: Mapping[str, str] | None = None,
        has_memory: Callable[[], bool] = has_memory,
        limits: ResidentLimits | None = None,
    ) -> None:
        self._processes = processes
        self._tasks = tasks
        self._directory = Path(directory)
        self._clock = clock
        self._secrets = secrets
        self._most = most
        self._environ = inheritable(environ)
        self._has_memory = has_memory
        self._limits = ResidentLimits() if limits is None else limits
        self._all: set[Resident] = set()
        self._unclaimed: dict[str, Resident] = {}
        """Residents of an earlier daemon, by the attempt whose turn is under way."""
        self._ended: dict[str, Exit] = {}
        """How the resident of a turn ended that this daemon cannot read."""
        self._refusing: set[object] = set()
        """Executables that do not know the way in."""
        self._is_closed = False
        self._is_watched = False

    # --- see `ports.transport.Transport` --------------------------------------------------------

    async def open(
        self, call: Call, *, attempt: str, directory: str, env: dict[str, str]
    ) -> Running:
        async def alone() -> Running:
            return await self._processes.open(call, attempt=attempt, directory=directory, env=env)

        if not isinstance(call, CommandLine) or (residency := call.residency) is None:
            return await alone()
        environ = self._environment_of(call)
        if residency.conversation is not None:
            await self._end_others(residency.conversation, environ, call)
        executable = self._executable(call, environ)
        may_not = executable in self._refusing or not self._can_stay(residency)
        if executable is None or (may_not and residency.runs_alone):
            return await alone()
        try:
            key = await self._key(call, residency, environ)
        except SecretProblem:
            return await alone()  # which says what the problem is
        turn = NewTurn(
            call.stdin or b"",
            attempt=attempt,
            directory=directory,
            now=self._clock.now,
            resting=partial(self._resting, attempt, key, call, residency, environ),
            started=partial(self._started, attempt, key, call, residency, environ),
            listening=partial(self._listening, call),
            alone=alone,
            runs_alone=residency.runs_alone,
            has_own_program=call.argv != (*residency.argv, *residency.continues),
        )
        turn.note(phase="opened")
        hit("resident.opened")
        return turn

    async def attach(self, *, attempt: str, directory: str) -> Running | Unsent | None:
        record = read_turn(directory)
        if record is None or record.phase == "opened":  # it ran alone, or not at all
            found = await self._processes.attach(attempt=attempt, directory=directory)
            return Unsent() if found is None and record is not None else found
        resident = self._unclaimed.pop(attempt, None)
        heard, head = None, ""
        if record.exit is None:
            record = structs.replace(record, exit=self._ended.get(attempt))
        if resident is not None and record.exit is None:
            known = read_resident(resident.directory) or ResidentRecord(way="")
            head = known.head
            heard = resident.listen(awaits_begin=not known.is_first)
            self._tasks.start_soon(resident.run)
            if not await self._has_begun(resident, is_first=known.is_first):
                heard.close()
                if await resident.end():
                    await anyio.to_thread.run_sync(fence, directory)
                    return Unsent()
        return TakenUpTurn(
            record,
            resident,
            heard,
            head=head,
            attempt=attempt,
            directory=directory,
            now=self._clock.now,
        )

    async def _has_begun(self, resident: Resident, *, is_first: bool) -> bool:
        """False: it was given time, ended, and had printed nothing of the turn."""
        if is_first:
            return True  # it may take long to start
        with anyio.move_on_after(self._limits.silence_s):
            await resident.has_begun.wait()
        if not resident.has_begun.is_set():
            await resident.end()
        return resident.has_begun.is_set()

    async def detach(self) -> None:
        """Leave turns to a later daemon; what rests is ended."""
        self._is_closed = True
        for one in tuple(self._all):
            if one.is_resting:
                await one.end()
            else:
                one.leave()

    async def aclose(self) -> None:
        self._is_closed = True
        for one in tuple(self._all):
            one.stop()
        for one in tuple(self._all):
            await one.ended()

    # --- before there is a prompt ---------------------------------------------------------------

    async def prepare(self, call: Call) -> bool:
        """
        Start the program of a call that stays, for a prompt like it that comes later.

        Returns:
            Whether there is one that will take it: ready, starting, or at work.
        """
        if not isinstance(call, CommandLine) or (residency := call.residency) is None:
            return False
        environ = self._environment_of(call)
        executable = self._executable(call, environ)
        if not self._can_stay(residency) or executable is None or executable in self._refusing:
            return False
        try:
            key = await self._key(call, residency, environ)
        except SecretProblem:
            return False
        wanted = residency.conversation or ""
        for one in self._all:
            if one.key == key and one.may_take(wanted) and not one.is_retired:
                return True
        # A caller that hangs up amid a start would leave a program that no task reads.
        with anyio.CancelScope(shield=True):
            found = await self._started("", key, call, residency, environ)
            if not isinstance(found, Resident):
                return False
            self._tasks.start_soon(found.run)
            self._tasks.start_soon(found.come_up)
        return True

    async def end_watchers(self, call: Call, cwd: str) -> None:
        """
        End those at rest that obey at once what a call may write below a directory, but for those
        that can take its prompt.
        """
        there = [one for one in self._all if one.watches and one.is_resting]
        there = [one for one in there if overlap(one.label[1], cwd)]
        key, wanted = None, ""
        if there and isinstance(call, CommandLine) and (residency := call.residency) is not None:
            wanted = residency.conversation or ""
            try:
                key = await self._key(call, residency, self._environment_of(call))
            except SecretProblem:
                pass
        for one in there:
            if one.is_resting and not (one.key == key and one.may_take(wanted)):
                await one.end()

    def _can_stay(self, residency: Residency) -> bool:
        return residency.may_stay and self._most() > 0 and not self._is_closed

    # --- which one takes a prompt ---------------------------------------------------------------

    async def _resting(
        self,
        attempt: str,
        key: str,
        call: CommandLine,
        residency: Residency,
        environ: Mapping[str, str],
    ) -> Resident | None:
        """One that can take the prompt now, and is this attempt's; one that cannot is ended."""
        for one in sorted(self._all, key=lambda one: -one.rests_since):
            wanted = residency.conversation or ""
            if not one.is_resting or one.key != key or not one.may_take(wanted):
                continue
            one.attempt = attempt
            is_usable = was_asked = False
            try:
                if not one.is_ready:
                    await one.came_up.wait()
                is_usable = (
                    one.seen == self._seen(call, residency, environ)
                    and not self._is_foreign(one, residency, environ)
                    and await one.is_usable(conversation=wanted)
                )
                was_asked = True
            finally:
                if not is_usable and (was_asked or one.conversation != wanted):
                    one.stop()
                elif not is_usable:  # the prompt was withdrawn, and it has not gone anywhere
                    one.attempt = ""
            if is_usable:
                return one
            await one.ended()
        return None

    async def _started(
        self,
        attempt: str,
        key: str,
        call: CommandLine,
        residency: Residency,
        environ: Mapping[str, str],
    ) -> Resident | NotStarted | None:
        may_stay = self._can_stay(residency) and await self._makes_room()
        if residency.runs_alone and not may_stay:
            return None
        name = chance.token_hex(8)
        directory = self._directory / name
        record = ResidentRecord(way=residency.way, session=residency.session, attempt=attempt)
        try:
            directory.mkdir(mode=0o700, parents=True)
            write_resident(directory, record)
        except OSError as error:
            return None if residency.runs_alone else _unwritable(error, str(directory))
        resident = Resident(
            name,
            directory,
            way=residency.way,
            key=key,
            label=(os.path.basename(call.argv[0]), call.cwd),
            session=residency.session,
            conversation=residency.conversation,
            watches=residency.watches,
            may_stay=may_stay,
            on_over=self._forget,
            on_rest=self._keep_or_end,
            now=self._clock.now,
        )
        resident.attempt, resident.seen = attempt, self._seen(call, residency, environ)
        self._all.add(resident)
        resident.executable = self._executable(call, environ)
        try:
            running = await self._processes.open(
                structs.replace(
                    call,
                    argv=(*residency.argv, *residency.continues),
                    stdin=None,
                    holds_input=True,
                    rest=Rest(idle_s=self._limits.idle_s),
                    residency=None,
                ),
                attempt=PREFIX + name,
                directory=str(directory),
                env={},
            )
        except BaseException:
            resident.give_up()
            raise
        if running.is_gone is not None and isinstance(running.exit, NotStarted):
            resident.give_up()
            await anyio.to_thread.run_sync(partial(shutil.rmtree, directory, True))
            return running.exit
        resident.expect(running)
        self._watch()
        return resident

    def _listening(
        self, call: CommandLine, resident: Resident, on_ready: Callable[[], None]
    ) -> MemoryObjectReceiveStream[Item]:
        heard = resident.listen(awaits_begin=False)
        self._tasks.start_soon(resident.run)
        self._tasks.start_soon(resident.begin_first, call.stdin or b"", on_ready)
        return heard

    async def _makes_room(self) -> bool:
        while not self._is_closed:
            has_memory = self._has_memory()
            if len(self._all) < self._most() and has_memory:
                return True
            resting = sorted(
                (one for one in self._all if one.is_resting), key=lambda one: one.rests_since
            )
            if not resting:
                return False
            await resting[0].end()
        return False

    async def _end_others(
        self, conversation: str, environ: Mapping[str, str], call: CommandLine
    ) -> None:
        """A conversation that is continued elsewhere is not what a resident remembers of it."""
        residency = call.residency
        assert residency is not None
        there = [one for one in self._all if one.conversation == conversation and one.is_resting]
        key = None
        if there and residency.may_stay:
            try:
                key = await self._key(call, residency, environ)
            except SecretProblem:
                pass
        for one in there:
            if one.key != key:
                await one.end()

    async def _key(
        self, call: CommandLine, residency: Residency, environ: Mapping[str, str]
    ) -> str:
        """Raises `SecretProblem`: the credential cannot be read."""
        secret = "" if call.credential is None else await self._secrets.read(call.credential)
        same = structs.replace(
            call,
            argv=residency.argv,
            stdin=None,
            residency=structs.replace(residency, conversation=None, continues=()),
        )
        digest = hashlib.sha256()
        for part in (same, sorted(environ.items()), secret):
            digest.update(msgspec.msgpack.encode(part) + b"\0")
        return digest.hexdigest()

    def _environment_of(self, call: CommandLine) -> dict[str, str]:
        inherited = self._environ.with_kept(call.keeps)
        return child_environment(inherited, added=call.env, unset=call.unset, marks={})

    def _executable(self, call: CommandLine, environ: Mapping[str, str]) -> object:
        found = shutil.which(call.argv[0], path=environ.get("PATH", os.defpath))
        return None if found is None else _stamp(os.path.realpath(found))

    def _seen(
        self, call: CommandLine, residency: Residency, environ: Mapping[str, str]
    ) -> tuple[object, ...]:
        """The files that make it what it is, as they are now."""
        paths = places(residency.reads, environ, home=os.path.expanduser("~"))
        return (self._executable(call, environ), *((path, _stamp(path)) for path in paths))

    def _is_foreign(self, one: Resident, residency: Residency, environ: Mapping[str, str]) -> bool:
        """Return whether another program has continued its conversation since its last turn."""
        if not one.conversation or not residency.stored:
            return False
        name = glob.escape(one.conversation)
        pattern = expand(
            residency.stored.replace("{conversation}", name),
            environ,
            home=os.path.expanduser("~"),
        )
        found = glob.glob(pattern) if pattern is not None else []
        try:
            latest = max((os.stat(path).st_mtime for path in found), default=0.0)
        except OSError:
            return True  # another program has just put another one in its place
        return latest > one.written_until + FOREIGN_S

    # --- how long one stays ---------------------------------------------------------------------

    def _keep_or_end(self, one: Resident) -> None:
        is_full = len(self._all) > self._most() or not self._has_memory()
        if one.is_retired or self._is_closed or is_full or not one.may_stay:
            one.stop()
        self._watch()

    def _watch(self) -> None:
        if not self._is_watched:
            self._is_watched = True
            self._tasks.start_soon(self._end_surplus)

    async def _end_surplus(self) -> None:
        """While there are any."""
        try:
            while self._all and not self._is_closed:
                await anyio.sleep(self._limits.look_s)
                is_short = not self._has_memory()
                resting = sorted(
                    (one for one in self._all if one.is_resting), key=lambda one: one.rests_since
                )
                too_many = len(self._all) - self._most()
                for number, one in enumerate(resting):
                    if is_short or number < too_many:
                        one.stop()
        finally:
            self._is_watched = False

    def _forget(self, one: Resident) -> None:
        self._all.discard(one)
        if one.was_refused and not one.knows_way and one.executable is not None:
            self._refusing.add(one.executable)

    # --- what an earlier daemon has left --------------------------------------------------------

    async def take_up(self) -> None:
        """Find its residents. Call it before any prompt."""
        for directory in sorted(self._directory.glob("*")):
            name = PREFIX + directory.name
            try:
                record = read_resident(directory)
                running = await self._processes.attach(attempt=name, directory=str(directory))
            except OSError:
                continue  # what ran there is unknown: its turn is reported as unstopped
            if record is None or running is None or record.way not in WAYS:
                if running is not None:
                    running.stop(grace_s=0.0)
                    ended = await _drained(running)
                    if record is not None and record.attempt:
                        self._ended[record.attempt] = ended
                await anyio.to_thread.run_sync(partial(shutil.rmtree, directory, True))
                continue
            one = Resident(
                directory.name,
                directory,
                way=record.way,
                session=record.session,
                key="",
                label=("", ""),
                on_over=self._forget,
                on_rest=self._keep_or_end,
                now=self._clock.now,
            )
            self._all.add(one)
            one.recall(record)
            one.expect(running)
            one.is_retired = True
            if record.attempt:
                self._unclaimed[record.attempt] = one
                self._tasks.start_soon(self._end_stray, record.attempt)
            else:
                self._tasks.start_soon(one.run)
                running.stop(grace_s=0.0)

    async def _end_stray(self, attempt: str) -> None:
        await anyio.sleep(self._limits.stray_s)
        await self._end_unclaimed(attempt)

    async def _end_unclaimed(self, attempt: str) -> bool | None:
        one = self._unclaimed.pop(attempt, None)
        if one is None:
            return None
        self._tasks.start_soon(one.run)
        return await one.end()

    async def end_leftover(self, attempt: str, directory: str) -> bool | None:
        """
        End the resident that has a turn of an earlier daemon.

        Returns:
            Whether it is proven to have exited; None: it never was on one.
        """
        if (is_gone := await self._end_unclaimed(attempt)) is not None:
            return is_gone
        try:
            record = read_turn(directory)
        except OSError:
            return None
        if record is None or record.phase == "opened":
            return None
        ended = record.exit or self._ended.get(attempt)
        return ended is not None and ended.gone

    # --- who asks, and what there is ------------------------------------------------------------

    def working_for(self, attempts: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """Return the attempts, with the one whose turn is under way in place of each resident."""
        if attempts is None:
            return None
        by_name = {PREFIX + one.name: one.attempt for one in self._all}
        found = (by_name.get(one, "") if one.startswith(PREFIX) else one for one in attempts)
        return tuple(one for one in found if one)

    def list(self) -> Sequence[Resting]:
        return [
            Resting(
                program=one.label[0],
                cwd=one.label[1],
                state="working" if one.attempt else "ready" if one.is_ready else "starting",
                pid=one.pid,
                since_at=one.rests_since,
                memory_bytes=None if one.pid is None else resident_bytes(one.pid),
            )
            for one in sorted(self._all, key=lambda one: one.rests_since)
            if not one.is_retired
        ]


def _unwritable(error: OSError, directory: str) -> NotStarted:
    name = errno.errorcode.get(error.errno or 0, type(error).__name__)
    text = f"{directory} cannot be written: {error.strerror}"
    return NotStarted(error=name, text=text, gone=True)


async def _drained(running: RunningProcess) -> Exit:
    async for _ in running.chunks():
        pass
    return running.exit


def _stamp(path: str) -> tuple[int, ...] | None:
    """Return a stamp that differs once a file was replaced or written; None: there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)
