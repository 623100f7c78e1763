"""What every store keeps to. A store's own test inherits this and says how it is opened."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from msgspec import structs
from tests.stores.records import (
    NOW,
    a_delegation,
    a_meter,
    a_note,
    a_session,
    a_story,
    an_ended,
    an_outage,
    deciding,
)

from fallbackd.core.decision import (
    Decision,
    DropSession,
    PutDelegation,
    PutHealth,
    PutHour,
    PutMeter,
    PutSession,
)
from fallbackd.core.history import HourUse
from fallbackd.core.ids import BackendId, DelegationId, SessionId
from fallbackd.core.records import Keys, Snapshot
from fallbackd.ports.store import Selection, Store
from fallbackd.stores import open_store

D1, D2, D3 = DelegationId("d1"), DelegationId("d2"), DelegationId("d3")
S1, S2, S3 = SessionId("s1"), SessionId("s2"), SessionId("s3")
NONE = Keys()


async def look(store: Store, keys: Keys) -> Snapshot:
    """What a decision with these keys is shown."""
    shown: list[Snapshot] = []

    def run(snapshot: Snapshot) -> Decision:
        shown.append(snapshot)
        return Decision()

    await store.transact(keys, run)
    return shown[-1]


class StoreContract:
    def url(self, tmp_path: Path) -> str:
        raise NotImplementedError

    @asynccontextmanager
    async def opened(self, tmp_path: Path) -> AsyncIterator[Store]:
        store = await open_store(self.url(tmp_path), now=NOW)
        try:
            yield store
        finally:
            await store.aclose()

    async def test_an_empty_store_shows_nothing(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            assert store.peek() == Snapshot()
            assert await look(store, Keys(delegation=D1, session=S1, request_id="r")) == Snapshot()
            assert store.last_seq == 0
            assert store.problem is None
            assert store.set_aside == ()
            assert await store.finished_counts() == {}

    async def test_what_one_decision_puts_the_next_one_reads(self, tmp_path: Path) -> None:
        delegation, session = a_delegation(request_id="r1"), a_session()
        health, meter = an_outage(), a_meter()
        async with self.opened(tmp_path) as store:
            await store.transact(
                NONE,
                deciding(
                    PutDelegation(delegation),
                    PutSession(session),
                    PutHealth(health),
                    PutMeter(meter),
                ),
            )
            shown = await look(store, Keys(delegation=D1, session=S1, request_id="r1"))
        assert shown == Snapshot(
            health={health.scope: health},
            delegation=delegation,
            session=session,
            same_request=delegation,
            active={D1: delegation},
            meters={meter.backend: meter},
            session_count=1,
        )

    async def test_hours_of_use_are_read_from_one_on_and_dropped_when_they_are_old(
        self, tmp_path: Path
    ) -> None:
        codex = BackendId("codex")
        hours = [HourUse(backend=codex, hour=number, calls=1) for number in range(9, 13)]
        async with self.opened(tmp_path) as store:
            again = HourUse(backend=codex, hour=12, calls=3)
            for one in (*hours, again):
                await store.transact(NONE, deciding(PutHour(one)), outlives="nothing")
            assert await store.hours(list, since_hour=11) == [hours[2], again]
            await store.flush()
            assert await store.hours(list, since_hour=0) == [*hours[:3], again]
            await store.prune(
                delegations_before_at=0,
                journal_before_at=0,
                max_journal=1000,
                max_sessions=10,
                sessions_before_at=0,
                hours_before_at=11 * 3600.0,
            )
            assert await store.hours(list, since_hour=0) == [hours[2], again]

    async def test_a_delegation_is_shown_with_its_session(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            await store.transact(
                NONE, deciding(PutDelegation(a_delegation()), PutSession(a_session()))
            )
            assert (await look(store, Keys(delegation=D1))).session == a_session()

    async def test_transact_gives_back_the_decision_itself(self, tmp_path: Path) -> None:
        decision = Decision(changes=(a_note(),), answer={"any": "thing"})
        async with self.opened(tmp_path) as store:
            given, notes = await store.transact(NONE, lambda _: decision)
        assert given is decision
        assert [one.note for one in notes] == [a_note()]

    async def test_a_snapshot_stays_what_it_was(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            await store.transact(NONE, deciding(PutDelegation(a_delegation())))
            before = store.peek()
            await store.transact(
                NONE,
                deciding(PutHealth(an_outage()), PutDelegation(an_ended()), PutMeter(a_meter())),
            )
            assert before == Snapshot(active={D1: a_delegation()})
            assert set(store.peek().health) == {an_outage().scope}

    async def test_concurrent_decisions_are_one_after_the_other(self, tmp_path: Path) -> None:
        def one_more(snapshot: Snapshot) -> Decision:
            assert snapshot.session is not None
            return Decision(
                changes=(
                    PutSession(a_session(ignored_reports=snapshot.session.ignored_reports + 1)),
                    a_note("counted", n=snapshot.session.ignored_reports),
                )
            )

        async with self.opened(tmp_path) as store:
            await store.transact(NONE, deciding(PutSession(a_session())))
            async with anyio.create_task_group() as counters:
                for _ in range(50):
                    counters.start_soon(store.transact, Keys(session=S1), one_more)
            kept = await store.session(S1)
            journal = await store.journal(after_seq=0)
        assert kept is not None
        assert kept.ignored_reports == 50
        assert [one.note.fields["n"] for one in journal] == list(range(50))
        assert [one.seq for one in journal] == list(range(1, 51))

    async def test_a_decision_that_raises_leaves_nothing(self, tmp_path: Path) -> None:
        def broken(_snapshot: Snapshot) -> Decision:
            raise ZeroDivisionError("a bug")

        async with self.opened(tmp_path) as store:
            await store.transact(NONE, deciding(a_note()))
            with pytest.raises(ZeroDivisionError, match="a bug"):
                await store.transact(NONE, broken)
            assert store.last_seq == 1
            _, notes = await store.transact(NONE, deciding(a_note()))
            assert [one.seq for one in notes] == [2]

    async def test_what_outlives_nothing_is_decided_at_once_where_nothing_waits(
        self, tmp_path: Path
    ) -> None:
        def broken(_snapshot: Snapshot) -> Decision:
            raise ZeroDivisionError("a bug")

        async with self.opened(tmp_path) as store:
            found = store.transact_now(NONE, deciding(a_note("at once")))
            assert found is not None
            assert [one.seq for one in found[1]] == [1]
            with pytest.raises(ZeroDivisionError, match="a bug"):
                store.transact_now(NONE, broken)
            await store.transact(NONE, deciding(a_note("later")))
            kinds = [one.note.kind for one in await store.journal(after_seq=0)]
            assert kinds == ["at once", "later"]

    async def test_a_decision_that_raises_spares_those_beside_it(self, tmp_path: Path) -> None:
        failed: list[str] = []

        def broken(_snapshot: Snapshot) -> Decision:
            raise ZeroDivisionError("a bug")

        async with self.opened(tmp_path) as store:

            async def fail() -> None:
                try:
                    await store.transact(NONE, broken)
                except ZeroDivisionError as error:
                    failed.append(str(error))

            async with anyio.create_task_group() as beside:
                for number in range(12):
                    if number % 3 == 1:
                        beside.start_soon(fail)
                    else:
                        beside.start_soon(store.transact, NONE, deciding(a_note()))
            journal = await store.journal(after_seq=0)
        assert failed == ["a bug"] * 4
        assert [one.seq for one in journal] == list(range(1, 9))

    async def test_an_ended_delegation_is_read_by_its_keys(self, tmp_path: Path) -> None:
        ended = an_ended(request_id="r1", metadata={"ticket": 7}, warnings=("w",))
        async with self.opened(tmp_path) as store:
            await store.transact(NONE, deciding(PutDelegation(a_delegation(request_id="r1"))))
            await store.transact(NONE, deciding(PutDelegation(ended)))
            shown = await look(store, Keys(delegation=D1, request_id="r1"))
            assert (shown.delegation, shown.same_request) == (ended, ended)
            assert shown.active == {}
            assert await store.delegation(D1) == ended
            assert (await look(store, Keys(request_id="other"))).same_request is None
            assert await store.delegation(D2) is None

    async def test_delegations_are_listed_newest_first(self, tmp_path: Path) -> None:
        first = an_ended("d1", at=NOW)
        second = a_delegation("d2", at=NOW + 1, session=S2)
        third = an_ended("d3", at=NOW + 2, state="failed", session=S2)
        async with self.opened(tmp_path) as store:
            await store.transact(
                NONE, deciding(*(PutDelegation(one) for one in (third, first, second)))
            )
            assert list(await store.delegations()) == [third, second, first]
            assert list(await store.delegations(limit=2)) == [third, second]
            assert list(await store.delegations(Selection(session=S2))) == [third, second]
            assert list(await store.delegations(Selection(state="succeeded"))) == [first]
            assert list(await store.delegations(Selection(session=S2, state="failed"))) == [third]
            assert list(await store.delegations(Selection(session=S3))) == []

    async def test_ended_delegations_are_listed_by_their_end_page_by_page(
        self, tmp_path: Path
    ) -> None:
        early = structs.replace(an_ended("d4", at=NOW), ended_at=NOW + 5)
        late = structs.replace(an_ended("d1", at=NOW - 9), ended_at=NOW + 7)
        same = structs.replace(an_ended("d2", at=NOW - 9), ended_at=NOW + 5)
        busy = a_delegation("d3", at=NOW + 3)
        async with self.opened(tmp_path) as store:
            await store.transact(
                NONE, deciding(*(PutDelegation(one) for one in (early, late, same, busy)))
            )
            ended = Selection(is_ended=True)
            assert list(await store.delegations(ended)) == [late, early, same]
            assert list(await store.delegations(Selection(is_ended=False))) == [busy]
            after_late = structs.replace(ended, before=ended.place(late))
            assert list(await store.delegations(after_late, limit=1)) == [early]
            after_early = structs.replace(ended, before=ended.place(early))
            assert list(await store.delegations(after_early)) == [same]
            assert list(await store.delegations(Selection(is_ended=True, since_at=NOW + 6))) == [
                late
            ]
            assert list(await store.delegations(Selection(since_at=NOW))) == [busy, early]
            assert list(await store.delegations(Selection(prefix="d2"))) == [same]
            assert list(await store.delegations(Selection(prefix="d2x"))) == []

    async def test_sessions_are_listed_by_their_last_use(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            await store.transact(
                NONE, deciding(*(PutSession(a_session(f"s{n}", at=NOW + n)) for n in (1, 2, 3)))
            )
            await store.transact(NONE, deciding(PutSession(a_session("s1", at=NOW + 9))))
            assert [one.session for one in await store.sessions()] == [S1, S3, S2]
            assert [one.session for one in await store.sessions(limit=1)] == [S1]
            await store.transact(NONE, deciding(DropSession(S3)))
            assert [one.session for one in await store.sessions()] == [S1, S2]
            assert await store.session(S3) is None
            assert store.peek().session_count == 2

    async def test_dropping_an_unknown_session_changes_nothing(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            await store.transact(NONE, deciding(PutSession(a_session())))
            await store.transact(NONE, deciding(DropSession(S2)))
            assert store.peek().session_count == 1

    async def test_the_last_of_two_puts_in_one_decision_stays(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            await store.transact(
                NONE,
                deciding(
                    PutSession(a_session(depth=1)),
                    DropSession(S1),
                    PutSession(a_session(depth=2)),
                    PutDelegation(a_delegation()),
                    PutDelegation(an_ended()),
                ),
            )
            assert await store.session(S1) == a_session(depth=2)
            assert await store.delegation(D1) == an_ended()
            assert store.peek() == Snapshot(session_count=1)
            assert await store.finished_counts() == {"succeeded": 1}

    async def test_the_journal_is_read_in_order_from_any_place(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            _, notes = await store.transact(
                NONE, deciding(a_note("a", x=[1, {"y": None}]), a_note("b"))
            )
            await store.transact(NONE, deciding(a_note("c")))
            assert [one.seq for one in notes] == [1, 2]
            assert store.last_seq == 3
            assert [one.note.kind for one in await store.journal(after_seq=0)] == ["a", "b", "c"]
            assert [one.seq for one in await store.journal(after_seq=1, limit=1)] == [2]
            assert list(await store.journal(after_seq=3)) == []
            assert list(await store.journal(after_seq=99)) == []
            first = (await store.journal(after_seq=0))[0]
            assert first.note == a_note("a", x=[1, {"y": None}])

    async def test_a_story_is_told_from_its_beginning(self, tmp_path: Path) -> None:
        told = [a_story(event="one"), a_story(event="two")]
        async with self.opened(tmp_path) as store:
            await store.transact(NONE, deciding(told[0], a_story("d2"), told[1]))
            assert list(await store.story(D1)) == told
            assert list(await store.story(D3)) == []

    async def test_ended_delegations_are_counted_once_each(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            await store.transact(NONE, deciding(PutDelegation(a_delegation("d1"))))
            await store.transact(NONE, deciding(PutDelegation(an_ended("d1"))))
            await store.transact(
                Keys(delegation=D1), deciding(PutDelegation(an_ended("d1", warnings=("late",))))
            )
            await store.transact(NONE, deciding(PutDelegation(an_ended("d2", state="refused"))))
            await store.transact(NONE, deciding(PutDelegation(an_ended("d3", state="refused"))))
            assert await store.finished_counts() == {"succeeded": 1, "refused": 2}

    async def test_facts_are_kept_by_key(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            assert await store.get_meta("boot") is None
            await store.set_meta("boot", "a")
            await store.set_meta("boot", "b")
            assert await store.get_meta("boot") == "b"

    async def test_pruning_drops_what_is_old_and_ended(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            await store.transact(
                NONE,
                deciding(
                    PutDelegation(an_ended("d1", at=NOW, request_id="r1")),
                    PutDelegation(a_delegation("d2", at=NOW)),
                    PutDelegation(an_ended("d3", at=NOW + 100)),
                    a_story("d1"),
                    a_story("d3"),
                    a_note("old", at=NOW),
                    a_note("new", at=NOW + 100),
                ),
            )
            dropped, sessions = await store.prune(
                delegations_before_at=NOW + 50,
                journal_before_at=NOW + 50,
                max_journal=1_000_000,
                max_sessions=10,
                sessions_before_at=NOW,
            )
            assert (list(dropped), list(sessions)) == ([D1], [])
            assert [one.delegation for one in await store.delegations()] == [D3, D2]
            assert (await look(store, Keys(request_id="r1"))).same_request is None
            assert list(await store.story(D1)) == []
            assert list(await store.story(D3)) == [a_story("d3")]
            assert [one.note.kind for one in await store.journal(after_seq=0)] == ["new"]
            assert await store.finished_counts() == {"succeeded": 2}

    async def test_pruning_a_whole_journal_keeps_its_place(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            await store.transact(NONE, deciding(a_note(), a_note()))
            await self.prune_all(store)
            assert list(await store.journal(after_seq=0)) == []
            _, notes = await store.transact(NONE, deciding(a_note()))
            assert [one.seq for one in notes] == [3]
            assert [one.seq for one in await store.journal(after_seq=0)] == [3]

    async def test_a_journal_of_too_many_entries_keeps_the_last_ones(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            await store.transact(NONE, deciding(*(a_note(f"n{n}", at=NOW) for n in range(10))))
            await store.prune(
                delegations_before_at=NOW,
                journal_before_at=NOW,
                max_journal=3,
                max_sessions=10,
                sessions_before_at=NOW,
            )
            assert [one.seq for one in await store.journal(after_seq=0)] == [8, 9, 10]
            assert store.last_seq == 10

    async def test_pruning_names_idle_sessions_that_are_due(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            await store.transact(
                NONE,
                deciding(
                    PutSession(a_session("old", at=NOW)),
                    PutSession(a_session("busy", at=NOW, running=D1)),
                    *(PutSession(a_session(f"s{n}", at=NOW + 100 + n)) for n in range(4)),
                ),
            )
            _, past_their_time = await store.prune(
                delegations_before_at=NOW,
                journal_before_at=NOW,
                max_journal=1_000_000,
                max_sessions=10,
                sessions_before_at=NOW + 50,
            )
            _, too_many = await store.prune(
                delegations_before_at=NOW,
                journal_before_at=NOW,
                max_journal=1_000_000,
                max_sessions=4,
                sessions_before_at=NOW,
            )
            assert list(past_their_time) == ["old"]
            assert list(too_many) == ["old", "s0"]
            assert store.peek().session_count == 6

    async def test_a_healthy_store_has_nothing_left_to_write(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            ended = PutDelegation(an_ended())
            await store.transact(NONE, deciding(a_note(), ended), must_keep=False)
            assert store.is_kept(D1)
            assert await store.flush() is True
            assert [one.seq for one in await store.journal(after_seq=0)] == [1]

    async def test_a_cancelled_decision_is_kept_whole_or_not_at_all(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            for _ in range(20):
                async with anyio.create_task_group() as asked:
                    for _ in range(3):
                        asked.start_soon(store.transact, NONE, deciding(a_note("a"), a_note("b")))
                    await anyio.lowlevel.checkpoint()
                    await anyio.lowlevel.checkpoint()
                    asked.cancel_scope.cancel()
            await store.transact(NONE, deciding(a_note("a"), a_note("b")))
            journal = await store.journal(after_seq=0)
            assert [one.seq for one in journal] == list(range(1, store.last_seq + 1))
            assert [one.note.kind for one in journal] == ["a", "b"] * (len(journal) // 2)

    async def prune_all(self, store: Store) -> None:
        await store.prune(
            delegations_before_at=NOW + 1e6,
            journal_before_at=NOW + 1e6,
            max_journal=1_000_000,
            max_sessions=0,
            sessions_before_at=NOW + 1e6,
        )
