"""
A store in one SQLite file.

What decisions read is in memory (`Mirror`), and on disk as well: a decision is made on the
mirror, written in one transaction by a worker thread, and only then taken over by the mirror and
acknowledged. Decisions that come while the disk is busy are made one after the other and written
together. What has ended is read from disk.

Changes that need to outlive nothing are kept as `_backlog`, and written with the next ones; so are
those that must go on while nothing can be written.
"""

import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import anyio
from anyio import to_thread
from anyio.lowlevel import checkpoint_if_cancelled

from fallbackd.core.decision import Decision, Journaled, Note, PutStory
from fallbackd.core.health import from_disk
from fallbackd.core.history import HourUse, hour_of
from fallbackd.core.ids import DelegationId, SessionId
from fallbackd.core.records import Delegation, Keys, Snapshot
from fallbackd.lib.failpoints import hit
from fallbackd.ports.store import ALL, Outlives, ReportT, Selection, StoreUnwritable
from fallbackd.stores.database import Database, decoded, read_hours
from fallbackd.stores.mirror import Draft, Mirror, ReadsMirror, newest_first
from fallbackd.stores.opening import Damaged, StoreTooNew
from fallbackd.stores.trouble import sentence, warn
from fallbackd.stores.writes import Writes, hour_name, writes_of

CommitAnswer = tuple[Decision, Sequence[Journaled]]


class CommitRequest:
    """One call of `transact`, until it has its answer."""

    def __init__(
        self,
        keys: Keys,
        run: Callable[[Snapshot], Decision],
        *,
        must_keep: bool,
        outlives: Outlives = "machine",
    ) -> None:
        self.keys = keys
        self.must_keep = must_keep
        self.outlives = outlives
        self.answer: CommitAnswer | None = None
        self.error: Exception | None = None
        self._run = run

    @property
    def is_done(self) -> bool:
        return self.answer is not None or self.error is not None

    def result(self) -> CommitAnswer:
        """
        Raises:
            Exception: What the decision raised, or why it cannot be kept.
        """
        if self.error is not None:
            raise self.error
        assert self.answer is not None
        return self.answer

    def decide(self, draft: Draft) -> tuple[CommitAnswer, Writes] | None:
        """Add the decision to a draft. None: it raised, and the draft is as it was."""
        try:
            decision = self._run(draft.snapshot(self.keys))
            writes = writes_of(decision.changes, after_seq=draft.last_seq)
        except Exception as error:  # raised where it was asked for, not to those beside it
            self.error = error
            return None
        return (decision, draft.add(decision.changes)), writes


class Commit:
    """Decisions that are being written together."""

    def __init__(self, requests: Sequence[CommitRequest], draft: Draft, writes: Writes) -> None:
        self.requests = requests
        self.draft = draft
        self.writes = writes
        self.answers: list[tuple[CommitRequest, CommitAnswer]] = []
        self.is_tried = False
        self.error: Exception | None = None

    def write(self, database: Database) -> None:
        """Once, however often it is asked for."""
        if self.is_tried:
            return
        try:
            self.writes.outlives_machine = not self.requests or any(
                one.outlives == "machine" for one in self.requests
            )
            database.write(self.writes)
        except Exception as error:  # whatever it is, nothing was written; the caller raises it
            self.error = error
        self.is_tried = True


ResultT = TypeVar("ResultT")

MAX_TOGETHER = 64
"""Decisions that are written in one transaction."""
MAX_ENDED = 256
"""Ended delegations at hand. More than the keys of `MAX_TOGETHER` decisions can name."""
MAX_JOURNAL = 2048
UNWRITABLE = (sqlite3.Error, OSError, Damaged, StoreTooNew)


class SqliteStore(ReadsMirror):
    """Open it with `open_sqlite`."""

    kind = "sqlite"

    def __init__(self, database: Database, mirror: Mirror, problem: str | None) -> None:
        super().__init__(mirror)
        self._database = database
        self._problem = problem
        self._backlog = Writes()
        self._is_flushing = False
        """True while decisions are written; more may be decided in memory meanwhile."""
        self._waiting: list[CommitRequest] = []
        self._commit: Commit | None = None
        """Commit under way, or left over from a task that was killed meanwhile."""
        self._lock = anyio.Lock(fast_acquire=True)
        self._limiter = anyio.CapacityLimiter(1)
        self._reading = anyio.CapacityLimiter(1)
        """Reports that are read at a time."""
        self._thread_lock = threading.Lock()

    @property
    def problem(self) -> str | None:
        return self._problem

    @property
    def set_aside(self) -> tuple[str, ...]:
        return self._database.set_aside

    async def transact(
        self,
        keys: Keys,
        run: Callable[[Snapshot], Decision],
        *,
        must_keep: bool = True,
        outlives: Outlives = "machine",
    ) -> tuple[Decision, Sequence[Journaled]]:
        await checkpoint_if_cancelled()
        request = CommitRequest(keys, run, must_keep=must_keep, outlives=outlives)
        if self._needs_disk(request):
            await self._in_turn(request)
        else:
            self._decide_alone(request, must_write=False)
        return request.result()

    def transact_now(
        self, keys: Keys, run: Callable[[Snapshot], Decision]
    ) -> tuple[Decision, Sequence[Journaled]] | None:
        request = CommitRequest(keys, run, must_keep=False, outlives="nothing")
        if self._needs_disk(request):
            return None
        self._decide_alone(request, must_write=False)
        return request.result()

    async def _in_turn(self, request: CommitRequest) -> None:
        self._waiting.append(request)
        try:
            # What is being written cannot be called back. The disk answers, or gives an error.
            with anyio.CancelScope(shield=True):
                while not request.is_done:
                    async with self._lock:
                        await self._settle()
                        if not request.is_done:
                            await self._decide_waiting()
        finally:
            if request in self._waiting:
                self._waiting.remove(request)

    def _needs_disk(self, request: CommitRequest) -> bool:
        """Or those before it do."""
        is_undecided = bool(self._waiting) or (self._lock.locked() and not self._is_flushing)
        is_busy = is_undecided or (self._commit is not None and bool(self._commit.requests))
        return request.outlives != "nothing" or is_busy or self._missing([request]) != ([], [])

    async def _decide_waiting(self) -> None:
        requests = [one for one in self._waiting if not one.is_done][:MAX_TOGETHER]
        await self._fetch(requests)
        commit = Commit(requests, Draft(self._mirror), self._backlog.joined(Writes()))
        is_changed = is_urgent = False
        for request in requests:
            decided = None if request.is_done else request.decide(commit.draft)
            if decided is not None:
                answer, writes = decided
                commit.answers.append((request, answer))
                commit.writes.merge(writes)
                if not writes.is_empty:
                    is_changed = True
                    is_urgent = is_urgent or request.outlives != "nothing"
        if is_changed:
            self._count_finished(commit.draft, commit.writes)
        if is_urgent:
            await self._write(commit)
        else:
            self._backlog = commit.writes
            self._acknowledge(commit)

    async def _fetch(self, requests: Sequence[CommitRequest]) -> None:
        """Bring what these decisions want to read and what is only on disk into the mirror."""
        missing, unseen = self._missing(requests)
        if not missing and not unseen:
            return
        try:
            found = await self._on_disk(lambda: self._database.delegations_by_key(missing, unseen))
        except sqlite3.Error as error:
            for request in requests:
                if request.keys.delegation in missing or request.keys.request_id in unseen:
                    request.error = StoreUnwritable(sentence(self._database.path, error))
            return
        for delegation in found:
            if self._mirror.delegation(delegation.delegation) is None:
                self._mirror.remember(delegation)

    def _missing(self, requests: Sequence[CommitRequest]) -> tuple[list[DelegationId], list[str]]:
        """Delegations and ids of requests that are to be read from the disk first, if at all."""
        keys = [one.keys for one in requests]
        delegations = {one.delegation for one in keys if one.delegation}
        request_ids = {one.request_id for one in keys if one.request_id}
        missing = [one for one in delegations if self._mirror.delegation(one) is None]
        return missing, list(request_ids - self._mirror.requests.keys())

    async def _write(self, commit: Commit) -> None:
        self._commit = commit
        await self._on_disk(lambda: commit.write(self._database))
        self._conclude(commit)

    async def _settle(self) -> None:
        """Finish what a task left behind that was killed in the middle of it."""
        if self._commit is not None:
            await self._write(self._commit)

    def _conclude(self, commit: Commit) -> None:
        self._commit = None
        if not commit.requests:
            self._conclude_flush(commit)
            return
        if commit.error is None:
            self._backlog = Writes()
            self._tell(None)
            self._acknowledge(commit)
            return
        self._tell(sentence(self._database.path, commit.error))
        for request in commit.requests:
            if not request.is_done:
                self._decide_alone(request, must_write=True)

    def _conclude_flush(self, commit: Commit) -> None:
        """Meanwhile more may have been decided, which is in the mirror and in a new backlog."""
        if commit.error is not None:
            self._backlog = commit.writes.joined(self._backlog)
        self._tell(None if commit.error is None else sentence(self._database.path, commit.error))
        if self._backlog.is_empty:
            self._mirror.forget_surplus()

    def _acknowledge(self, commit: Commit) -> None:
        self._mirror.apply(commit.draft)
        for request, answer in commit.answers:
            request.answer = answer
        if self._backlog.is_empty:
            self._mirror.forget_surplus()
        hit("store.acknowledged")

    def _decide_alone(self, request: CommitRequest, *, must_write: bool) -> None:
        """
        Decide in memory, to be written later. `must_write`: what has to be kept is refused, since
        the disk takes nothing now.
        """
        draft = Draft(self._mirror)
        decided = request.decide(draft)
        if decided is None:
            return
        answer, writes = decided
        if must_write and request.must_keep and not writes.is_empty:
            request.error = StoreUnwritable(self._problem)
            return
        self._count_finished(draft, writes)
        self._backlog.merge(writes)
        self._mirror.apply(draft)
        request.answer = answer

    def _count_finished(self, draft: Draft, writes: Writes) -> None:
        for state, count in draft.finished.items():
            if self._mirror.finished.get(state) != count:
                writes.put("finished", state, count)

    def _tell(self, problem: str | None) -> None:
        if problem is not None and self._problem is None:
            warn("store.stopped_writing", problem=problem)
        if problem is None and self._problem is not None:
            warn("store.resumed_writing")
        self._problem = problem

    async def _on_disk(self, work: Callable[[], ResultT]) -> ResultT:
        """Work in a thread, one piece at a time, even after a task was killed."""

        def alone() -> ResultT:
            with self._thread_lock:
                return work()

        return await to_thread.run_sync(alone, limiter=self._limiter)

    async def unknown(self, names: Collection[DelegationId]) -> Sequence[DelegationId]:
        if not names:
            return ()
        async with self._lock:
            await self._settle()
            known = await self._on_disk(self._database.delegation_ids)
        known |= {one.delegation for one in self._mirror.in_memory()}
        return sorted(set(names) - known)

    def is_kept(self, delegation: DelegationId) -> bool:
        unwritten = (self._backlog, *(() if self._commit is None else (self._commit.writes,)))
        return not any(one.has("delegations", delegation) for one in unwritten)

    async def delegation(self, delegation: DelegationId) -> Delegation | None:
        found = self._mirror.delegation(delegation)
        if found is not None:
            return found
        async with self._lock:
            await self._settle()
            found = self._mirror.delegation(delegation)
            if found is not None:
                return found
            read = await self._on_disk(lambda: self._database.delegations_by_key([delegation], []))
        return read[0] if read else None

    async def delegations(
        self, wanted: Selection = ALL, *, limit: int = 100
    ) -> Sequence[Delegation]:
        async with self._lock:
            await self._settle()
            # What is not written yet may differ from what is on disk, and so be left out below.
            reach = limit + self._backlog.count("delegations")
            read = await self._on_disk(
                lambda: self._database.newest_delegations(wanted, limit=reach)
            )
            known = {one.delegation: one for one in read}
            known.update((one.delegation, one) for one in self._mirror.in_memory())
        return newest_first(known.values(), wanted, limit=limit)

    async def story(self, delegation: DelegationId) -> Sequence[PutStory]:
        async with self._lock:
            await self._settle()
            rows = await self._on_disk(lambda: self._database.story(delegation))
            rows += [data for one, data in self._backlog.stories if one == delegation]
        return decoded(PutStory, ((delegation, data) for data in rows))

    async def hours(
        self, use: Callable[[Iterable[HourUse]], ReportT], *, since_hour: int
    ) -> ReportT:
        since, writes = hour_name(since_hour), self._backlog
        if self._commit is not None:
            writes = self._commit.writes.joined(writes)
        unwritten = {
            key: row[1]
            for (table, key), row in writes.rows.items()
            if table == "hours" and key >= since and row is not None
        }

        def read() -> ReportT:
            try:
                return use(read_hours(self._database.path, since, unwritten))
            except sqlite3.Error as error:
                raise StoreUnwritable(sentence(self._database.path, error)) from error

        return await to_thread.run_sync(read, limiter=self._reading)

    async def journal(self, *, after_seq: int, limit: int = 1000) -> Sequence[Journaled]:
        if after_seq + 1 >= self._mirror.first_seq():
            return self._mirror.journal(after_seq=after_seq, limit=limit)
        async with self._lock:
            await self._settle()
            rows = await self._on_disk(
                lambda: self._database.journal(after_seq=after_seq, limit=limit)
            )
            rows += [(seq, data) for seq, _, data in self._backlog.notes if seq > after_seq]
        read = []
        for seq, data in rows[:limit]:
            read += [Journaled(seq=seq, note=note) for note in decoded(Note, ((seq, data),))]
        return read

    async def set_meta(self, key: str, value: str) -> None:
        """Kept in memory, and reported in `problem`, while it cannot be written."""
        async with self._settled():
            self._mirror.facts[key] = value
            self._backlog.put("facts", key, value)
            hit("store.fact.before")
            await self._write_backlog()
        hit("store.fact.after")

    async def flush(self) -> bool:
        if self._problem is None and self._backlog.is_empty:
            return True
        async with self._settled():
            await self._write_backlog()
        return self._problem is None

    async def _write_backlog(self) -> None:
        """Also when it is empty: whether the disk is back shows only by writing."""
        writes, self._backlog = self._backlog, Writes()
        writes.put("meta", "last_seq", str(self._mirror.last_seq))
        self._is_flushing = True
        try:
            await self._write(Commit([], Draft(self._mirror), writes))
        finally:
            self._is_flushing = False

    async def checkpoint(self) -> None:
        """Ignores errors: trouble with the disk is reported by the next write."""
        async with self._settled():
            await self._on_disk(self._database.checkpoint)

    async def prune(
        self,
        *,
        delegations_before_at: float,
        journal_before_at: float,
        max_journal: int,
        max_sessions: int,
        sessions_before_at: float,
        hours_before_at: float = 0.0,
    ) -> tuple[Sequence[DelegationId], Sequence[SessionId]]:
        """Drops nothing while nothing can be written."""
        dropped: list[DelegationId] = []
        is_more = await self.flush()
        try:
            while is_more:
                is_more = await self._prune_some(dropped, before_at=delegations_before_at)
            if self._problem is None:
                await self._prune_journal(before_at=journal_before_at, max_journal=max_journal)
                async with self._settled():
                    before = hour_name(hour_of(hours_before_at))
                    await self._on_disk(lambda: self._database.prune_hours(before=before))
        except UNWRITABLE as error:
            self._tell(sentence(self._database.path, error))
        due = self._mirror.due_sessions(max_sessions=max_sessions, before_at=sessions_before_at)
        return dropped, due

    async def _prune_some(self, dropped: list[DelegationId], *, before_at: float) -> bool:
        async with self._settled():
            if not self._backlog.is_empty:
                return False
            gone, is_more = await self._on_disk(
                lambda: self._database.prune_delegations(before_at=before_at)
            )
            for delegation in gone:
                self._mirror.forget(delegation)
        dropped += gone
        return is_more

    async def _prune_journal(self, *, before_at: float, max_journal: int) -> None:
        async with self._settled():
            last_seq = self._mirror.last_seq
            up_to_seq = last_seq - max_journal
            await self._on_disk(
                lambda: self._database.prune_journal(
                    before_at=before_at, up_to_seq=up_to_seq, last_seq=last_seq
                )
            )
            self._mirror.forget_journal(before_at=before_at, up_to_seq=up_to_seq)

    @asynccontextmanager
    async def _settled(self) -> AsyncIterator[None]:
        """Alone with the file, once what was under way is done; not to be cancelled."""
        with anyio.CancelScope(shield=True):
            async with self._lock:
                await self._settle()
                yield

    async def aclose(self) -> None:
        """Write the rest and close. What cannot be written now is lost with the process."""
        with anyio.CancelScope(shield=True):
            await self.flush()
            async with self._lock:
                await self._on_disk(self._database.close)


Since = Callable[[Mapping[str, str]], tuple[float, float]]
"""Reads from the facts: now on the clock of the records, and for how many seconds no daemon ran."""


async def open_sqlite(
    path: Path, *, now: float, since: Since | None = None, database: Database | None = None
) -> SqliteStore:
    """
    Open a database, or make one. Never fails for the state the file or the disk is in: what could
    not be read is in `set_aside`, why nothing can be written in `problem`.

    Args:
        now: For the age of what is loaded, and the names of files that are put aside.
        since: What the facts say about `now` and about the last run; None: nothing.

    Raises:
        StoreTooNew: The file was written by a newer version.
    """
    opening = database or Database(path)
    loaded, trouble = await to_thread.run_sync(lambda: opening.open(now=now))
    stopped_s = 0.0
    if since is not None:
        now, stopped_s = since(loaded.facts)
    running = {one.running.attempt for one in loaded.active if one.running is not None}
    mirror = Mirror(max_ended=MAX_ENDED, max_journal=MAX_JOURNAL)
    health = [
        from_disk(one, now=now, stopped_s=stopped_s, running=running) for one in loaded.health
    ]
    mirror.load(loaded._replace(health=health))
    problem = None if trouble is None else sentence(path, trouble)
    if problem is not None:
        warn("store.stopped_writing", problem=problem)
    return SqliteStore(opening, mirror, problem)
