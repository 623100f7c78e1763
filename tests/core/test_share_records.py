"""Records of several machines become one, in whatever order they are heard of."""

from math import inf

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from fallbackd.core.health import Health, Outage, Pause, view
from fallbackd.core.ids import ScopeId
from fallbackd.core.reasons import Reason
from fallbackd.core.share import (
    PersonWord,
    SharedLease,
    SharedMark,
    SharedNames,
    SharedRecord,
    folded,
    in_force,
    is_shared_fact,
    join,
    moved,
    untold,
)

SCOPE = ScopeId("quota:plan")
TIMES = st.integers(0, 12).map(float)
MARKS = st.builds(
    SharedMark,
    state=st.sampled_from(["rate_limited", "broken"]),
    reason=st.sampled_from([Reason.RATE_LIMIT, Reason.USAGE_LIMIT]),
    since_at=TIMES,
    until_at=st.one_of(st.none(), TIMES),
    count=st.integers(1, 3),
    stated=st.booleans(),
    source=st.sampled_from(["a", "b"]),
)
WORDS = st.builds(
    PersonWord,
    id=st.sampled_from(["1", "2", "3"]),
    action=st.sampled_from(["mark", "clear", "pause", "resume"]),
    at=TIMES,
    until_at=st.one_of(st.none(), TIMES),
)


def normal(record: SharedRecord) -> SharedRecord:
    return join(record, SharedRecord(scope=SCOPE))


RECORDS = st.builds(
    SharedRecord,
    scope=st.just(SCOPE),
    marks=st.frozensets(MARKS, max_size=3),
    proven_at=st.one_of(st.none(), TIMES),
    word=st.one_of(st.none(), WORDS),
).map(normal)


def mark(since_at: float, until_at: float | None, *, stated: bool = False) -> SharedMark:
    return SharedMark(
        state="rate_limited",
        reason=Reason.USAGE_LIMIT,
        since_at=since_at,
        until_at=until_at,
        stated=stated,
        source="desktop",
    )


def record(*marks: SharedMark, proven_at: float | None = None) -> SharedRecord:
    return SharedRecord(scope=SCOPE, marks=frozenset(marks), proven_at=proven_at)


@given(RECORDS, RECORDS)
def test_it_makes_no_difference_who_speaks_first(a: SharedRecord, b: SharedRecord) -> None:
    assert join(a, b) == join(b, a)


@given(RECORDS, RECORDS, RECORDS)
def test_it_makes_no_difference_what_is_joined_first(
    a: SharedRecord, b: SharedRecord, c: SharedRecord
) -> None:
    assert join(join(a, b), c) == join(a, join(b, c))


@given(RECORDS, RECORDS)
def test_what_is_heard_twice_is_heard_once(a: SharedRecord, b: SharedRecord) -> None:
    assert join(a, a) == a
    assert join(join(a, b), b) == join(a, b)


@given(RECORDS, RECORDS, TIMES)
def test_a_success_ends_every_mark_from_before_it(
    a: SharedRecord, b: SharedRecord, at: float
) -> None:
    known = join(join(a, b), record(proven_at=at))
    assert all(one.since_at > at for one in known.marks)


def end_of(one: SharedMark) -> float:
    return inf if one.until_at is None else one.until_at


@given(RECORDS, RECORDS, TIMES)
def test_a_stated_time_goes_before_every_window(
    a: SharedRecord, b: SharedRecord, now: float
) -> None:
    known = join(a, b)
    stated = [one for one in known.marks if one.stated and end_of(one) > now]
    best = in_force(known, now=now)
    assert not stated or (best is not None and best.stated)


@given(RECORDS, RECORDS, TIMES)
def test_no_window_is_shortened_by_another_machine(
    a: SharedRecord, b: SharedRecord, now: float
) -> None:
    known = join(a, b)
    best = in_force(known, now=now)
    if best is None or best.stated:
        return
    windows = [one for one in known.marks if not one.stated]
    assert all(end_of(one) <= max(end_of(best), now) for one in windows)


@given(RECORDS, st.floats(-3600, 3600))
def test_another_clock_makes_no_difference(a: SharedRecord, by_s: float) -> None:
    there = moved(a, by_s, scope=SCOPE)
    back = moved(there, -by_s, scope=SCOPE)
    assert len(back.marks) == len(a.marks)
    here, again = in_force(a, now=5.25), in_force(there, now=5.25 + by_s)
    assert (here is None) == (again is None)


@given(RECORDS, RECORDS, TIMES)
def test_hearing_the_same_again_comes_to_rest(a: SharedRecord, b: SharedRecord, now: float) -> None:
    # Health holds one outage: a newer time that was stated and is over, which hides an older one
    # that is not, is forgotten when a window takes its place. Then the older one is heard again.
    once = folded(folded(Health(scope=SCOPE), a, now=now), b, now=now)
    twice = folded(once, b, now=now)
    assert folded(twice, b, now=now) == twice
    is_forgotten = once.outage is not None and once.outage.source == "policy"
    assert twice == once or is_forgotten


def test_what_another_machine_found_is_the_health_of_this_one() -> None:
    health = folded(Health(scope=SCOPE), record(mark(1.0, 100.0)), now=5.0)
    assert view(health, now=5.0).state == "rate_limited"
    assert view(health, now=5.0).until_at == 100.0
    assert health.outage is not None
    assert health.outage.seen_by == "desktop"


def test_a_success_elsewhere_ends_what_was_found_here() -> None:
    health = folded(Health(scope=SCOPE), record(mark(1.0, 100.0)), now=5.0)
    assert view(folded(health, record(proven_at=6.0), now=7.0), now=7.0).state == "healthy"


def test_what_is_wrong_with_this_machine_alone_no_other_one_ends() -> None:
    own = Outage(state="rate_limited", reason=Reason.NETWORK, since_at=1.0, until_at=50.0)
    health = Health(scope=SCOPE, outage=own)
    assert not is_shared_fact(own)
    assert folded(health, record(proven_at=6.0), now=7.0).outage == own
    assert untold(health, record(), now=7.0) is None


def test_what_a_person_cleared_here_stays_cleared_whoever_repeats_it() -> None:
    health = Health(scope=SCOPE, cleared_at=10.0)
    assert folded(health, record(mark(9.0, 100.0)), now=11.0) == health
    assert folded(health, record(mark(10.5, 100.0)), now=11.0).outage is not None
    assert untold(health, record(mark(9.0, 100.0)), now=11.0) is None


def said(action: str, at: float, **more: object) -> SharedRecord:
    fields = {"id": f"{at}", "action": action, "at": at, "source": "desktop", **more}
    return SharedRecord(scope=SCOPE, word=PersonWord(**fields))  # type: ignore[arg-type]


def test_a_persons_word_is_followed_once_and_a_later_one_here_stands() -> None:
    paused = folded(Health(scope=SCOPE), said("pause", 5.0), now=6.0)
    assert view(paused, now=6.0).state == "paused"
    resumed = structs.replace(paused, pause=None)
    assert folded(resumed, said("pause", 5.0), now=7.0) == resumed
    assert view(folded(resumed, said("pause", 8.0), now=9.0), now=9.0).state == "paused"


def test_a_resume_from_before_the_pause_here_ends_nothing() -> None:
    health = Health(scope=SCOPE, pause=Pause(since_at=10.0))
    assert folded(health, said("resume", 5.0), now=11.0).pause is not None
    assert folded(health, said("resume", 10.5), now=11.0).pause is None


def test_a_persons_mark_stands_before_what_machines_find() -> None:
    health = folded(Health(scope=SCOPE), said("mark", 5.0, until_at=50.0), now=6.0)
    assert view(health, now=6.0).state == "broken"
    assert folded(health, record(mark(6.0, 20.0, stated=True)), now=7.0) == health
    assert view(folded(health, said("clear", 8.0), now=9.0), now=9.0).state == "healthy"


def test_what_is_said_for_all_machines_ends_after_eight_days() -> None:
    paused = folded(Health(scope=SCOPE), said("pause", 5.0), now=6.0)
    assert view(paused, now=4.0 + 8 * 86_400).state == "paused"
    assert view(paused, now=6.0 + 8 * 86_400).state == "healthy"
    for until_at in (None, 1e12):
        marked = folded(Health(scope=SCOPE), said("mark", 5.0, until_at=until_at), now=6.0)
        assert marked.outage is not None
        assert marked.outage.until_at == 5.0 + 8 * 86_400


def test_the_trial_of_another_machine_is_nobody_elses_until_it_ends() -> None:
    out = folded(Health(scope=SCOPE), record(mark(1.0, 10.0)), now=5.0)
    lease = SharedLease(owner="desktop", until_at=75.0)
    held = structs.replace(record(mark(1.0, 10.0)), lease=lease)
    there = folded(out, held, now=15.0)
    assert there.trial is not None
    assert there.trial.owner == "desktop"
    assert there.trial.expires_at == 75.0
    assert folded(there, record(mark(1.0, 10.0)), now=20.0).trial is None


def test_a_hostile_time_is_bounded() -> None:
    health = folded(Health(scope=SCOPE), record(mark(1.0, 1e12)), now=5.0)
    assert health.outage is not None
    assert health.outage.until_at == 5.0 + 8 * 86_400


def test_what_the_others_have_lost_is_told_again() -> None:
    own = Outage(state="rate_limited", reason=Reason.USAGE_LIMIT, since_at=1.0, until_at=50.0)
    health = Health(scope=SCOPE, outage=own)
    assert untold(health, record(), now=5.0) == "failure"
    assert untold(health, record(mark(1.0, 50.0)), now=5.0) is None
    assert untold(health, record(), now=60.0) is None
    proven = Health(scope=SCOPE, proven_at=40.0)
    assert untold(proven, record(mark(1.0, 50.0)), now=45.0) == "success"
    assert untold(proven, record(mark(42.0, 50.0)), now=45.0) is None


def test_only_names_that_mean_the_same_everywhere_are_told() -> None:
    local = ScopeId("credential:openai/work")
    shared = ScopeId("credential:openai/0123456789abcdef")
    names = SharedNames(
        remote=frozenset({"api"}),
        private=frozenset({"127.0.0.1"}),
        identities={local: shared},
    )
    assert names.mirrored(ScopeId("quota:plan")) == "quota:plan"
    assert names.mirrored(ScopeId(f"{local}+model:m")) == f"{shared}+model:m"
    assert names.local(ScopeId(f"{shared}+model:m")) == f"{local}+model:m"
    assert names.mirrored(ScopeId("credential:openai/other")) is None
    assert names.mirrored(ScopeId("backend:codex")) is None
    assert names.named(ScopeId("backend:codex")) == "backend:codex"
    assert names.mirrored(ScopeId("model:api/m")) == "model:api/m"
    assert names.mirrored(ScopeId("model:codex/m")) is None
    assert names.mirrored(ScopeId("provider:api.openai.com")) == "provider:api.openai.com"
    assert names.mirrored(ScopeId("provider:127.0.0.1")) is None
