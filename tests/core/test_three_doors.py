"""
One script of failures through the three doors: a delegation, a caller that resolves and reports
(in a session, and without one), and a turn of an opencode session. Each has to try the same
candidates in the same order, leave the same marks, hold no lease at its end, and end alike.

Where the doors differ, and why:

* Only a delegation is retried by the engine: the same call of the same candidate counts as one
  visit here, and no wait is long enough to be worth it (`wait_threshold_s = 0`).
* An opencode server calls with keys of its own, has no stand-in for a missing model, and cannot
  hand work back: worlds with credentials, `fallback_model` or in-session entries have two doors.
* A message to an opencode server is redirected only while its model is out. It goes to a model
  that recovers or is under trial, and where no model is usable it goes to its own, without a trial;
  a delegation takes a healthy candidate first, holds a service that recovers to be out for as long
  as `on_outage` says so, and may make one last-resort trial.
* A session of an opencode server returns to a better model by the user's choice, not by policy:
  only worlds with a single request have the third door.
"""

from collections.abc import Iterator
from typing import Any

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from msgspec import Struct, structs
from tests.support.playbook import (
    T0,
    Playbook,
    delegate,
    fail,
    failed,
    policy_of,
    succeeded,
)

from fallbackd.core.callers.lease import ReportAnswer, Resolution
from fallbackd.core.events import (
    CancelRequested,
    RedirectAsked,
    Reported,
    RescueAdvanced,
    ResolveRequested,
    TurnAnswered,
    TurnBegan,
    TurnFailed,
)
from fallbackd.core.failures import Failure
from fallbackd.core.health import Health, Outage, Pause, Trial
from fallbackd.core.ids import AttemptId, BackendId, ScopeId, SessionId
from fallbackd.core.opencode.turns import Redirect, Ruled
from fallbackd.core.policy import HOPPING, IN_SESSION_KIND, Backend, Entry, Policy, Role
from fallbackd.core.reasons import Reason

S = SessionId("s")
ROLE = "r"
Place = tuple[str, str | None, str | None]
"""Backend, model, credential."""


class Fate(Struct, frozen=True, kw_only=True):
    """How calls of one candidate end. Reason null: they succeed."""

    reason: Reason | None = None
    stated_s: float | None = None
    is_certain: bool = True
    helps_elsewhere: bool | None = None
    """Null: by the table of the reason."""


class Ask(Struct, frozen=True, kw_only=True):
    named: bool
    pause_s: float
    """Before it."""
    fates: tuple[Fate, ...]


class World(Struct, frozen=True, kw_only=True):
    policy: Policy
    requested: BackendId
    role: str | None
    asks: tuple[Ask, ...]
    health: tuple[Health, ...]
    prompt_tokens: int | None
    allow_metered: bool
    says_again: bool
    """Whether a report repeats what was asked of `resolve`."""

    def play(self) -> Playbook:
        return Playbook(self.policy).put_health(*self.health)

    def fate(self, ask: Ask, place: Place, at: float) -> Failure | None:
        backend, model, credential = place
        backends = self.policy.backends
        number = 4 * list(backends).index(BackendId(backend))
        number += 2 * (model != backends[BackendId(backend)].model) + (credential == "k2")
        fate = ask.fates[number % len(ask.fates)]
        if fate.reason is None:
            return None
        made = fail(
            fate.reason,
            wait_s=fate.stated_s,
            at=at,
            confidence="structured" if fate.is_certain else "text",
        )
        if fate.helps_elsewhere is not None:
            made = structs.replace(made, hop=fate.helps_elsewhere)
        return made


class Visits(Struct, frozen=True, kw_only=True):
    """What one request came to."""

    places: tuple[Place, ...]
    is_served: bool
    marks: tuple[tuple[Any, ...], ...]
    current: str | None
    depth: int


def marks(play: Playbook) -> tuple[tuple[Any, ...], ...]:
    """What is on record of every scope, without what only the engine's own attempts leave."""
    found = []
    for scope, one in sorted(play.memory.mirror.health.items()):
        outage = one.outage
        told = None
        if outage is not None:
            told = (outage.state, outage.reason, outage.since_at, outage.until_at, outage.count)
        held = None if one.trial is None else one.trial.attempt
        if told or held or one.pause:
            found.append((scope, told, held, one.pause is not None))
    return tuple(found)


def visits(play: Playbook, places: list[Place], *, is_served: bool) -> Visits:
    session = play.memory.mirror.session(S)
    return Visits(
        places=tuple(places),
        is_served=is_served,
        marks=marks(play),
        current=None if session is None or not places else session.current,
        depth=0 if session is None else session.depth,
    )


def arrive(play: Playbook, places: list[Place], place: Place) -> None:
    """A call takes a second; the same call again is no visit of its own, and takes no time."""
    if not places or places[-1] != place:
        places.append(place)
        play.at(play.now + 1)


# --- the doors -----------------------------------------------------------------------------------


def by_delegate(world: World) -> Iterator[Visits]:
    play = world.play()
    for number, ask in enumerate(world.asks):
        play.at(play.now + ask.pause_s)
        name = f"d{number}"
        play.when(
            delegate(
                name,
                session=S,
                backend=world.requested if ask.named else None,
                role=world.role,
                prompt_tokens=world.prompt_tokens,
                allow_metered=world.allow_metered,
            )
        )
        places: list[Place] = []
        if play.decision.rejection is not None:  # nothing to choose from
            yield visits(play, places, is_served=False)
            continue
        while (running := play.delegation(name).running) is not None:
            place = (running.backend, running.model, running.credential)
            arrive(play, places, place)
            failure = world.fate(ask, place, play.now)
            ended = running.attempt
            play.when(succeeded(ended) if failure is None else failed(ended, failure))
            play.at(play.now)
        state = play.delegation(name).state
        if not play.delegation(name).is_ended:
            play.when(CancelRequested(delegation=play.delegation(name).delegation))
        yield visits(play, places, is_served=state == "succeeded")


def by_caller(world: World, session: SessionId | None = S) -> Iterator[Visits]:
    """Without a session the caller sends what it was answered with (`turn` on the wire)."""
    play = world.play()
    leases = (AttemptId(f"lease-{number}") for number in range(1000))
    for ask in world.asks:
        play.at(play.now + ask.pause_s)
        asked: dict[str, Any] = {
            "role": world.role,
            "prompt_tokens": world.prompt_tokens,
            "allow_metered": world.allow_metered,
        }
        play.when(
            ResolveRequested(
                session=session,
                backend=world.requested if ask.named else None,
                lease=next(leases),
                **asked,
            )
        )
        found: Resolution | None = play.decision.answer
        turn = None if found is None else found.turn
        places: list[Place] = []
        is_served = False
        while found is not None and found.backend is not None:
            backend = BackendId(found.backend)
            if world.policy.backends[backend].kind == IN_SESSION_KIND:
                break
            began_at = play.wall
            place = (found.backend, found.model, found.credential)
            arrive(play, places, place)
            failure = world.fate(ask, place, play.now)
            lease = found.lease_id
            play.when(
                Reported(
                    outcome="success" if failure is None else "failure",
                    session=session,
                    turn=None if session else turn,
                    backend=backend,
                    model=found.model,
                    credential=found.credential,
                    lease=None if lease is None else AttemptId(lease),
                    next_lease=next(leases),
                    started_at=began_at,
                    failure=failure,
                    **(asked if world.says_again else {}),
                )
            )
            answer = play.decision.answer
            assert isinstance(answer, ReportAnswer)
            assert not answer.ignored
            is_served = failure is None
            found, turn = answer.next, answer.turn
        yield visits(play, places, is_served=is_served)


def by_opencode(world: World) -> Iterator[Visits]:
    """Nothing where the message goes to its own model though a delegation might not."""
    play = world.play()
    (ask,) = world.asks
    play.at(play.now + ask.pause_s)
    play.when(
        RedirectAsked(
            session=S, backend=world.requested, role=world.role, lease=AttemptId("lease-0")
        )
    )
    redirect = play.decision.answer
    assert isinstance(redirect, Redirect)
    own = redirect.verdicts[0]
    is_recovering = own.state == "healthy" and own.reason is not None
    is_free = is_recovering or own.state == "cooldown" or own.verdict == "in_trial"
    if is_free or all(one.verdict != "chosen" for one in redirect.verdicts):
        return
    backend = BackendId(redirect.model or world.requested)
    message = "m0"
    play.when(TurnBegan(session=S, message=message, backend=backend, role=world.role))
    places: list[Place] = []
    is_served = False
    while True:
        place = (backend, world.policy.backends[backend].model, None)
        arrive(play, places, place)
        failure = world.fate(ask, place, play.now)
        if failure is None:
            play.when(TurnAnswered(session=S, message=message, backend=backend))
            is_served = True
            break
        play.when(
            TurnFailed(
                session=S,
                message=message,
                backend=backend,
                failure=failure,
                role=world.role,
                rescue=f"rescue-{message}",
                new_message=f"{message}+",
            )
        )
        ruled = play.decision.answer
        assert isinstance(ruled, Ruled)
        if ruled.rescue is None:
            break
        for step in ("revert", "prompt", "done"):
            play.when(RescueAdvanced(session=S, rescue=ruled.rescue.id, outcome=step))
            assert play.decision.answer is True
        backend, message = ruled.rescue.to, ruled.rescue.new_message
    yield visits(play, places, is_served=is_served)


# --- worlds --------------------------------------------------------------------------------------

REASONS_OF_CALLS = sorted(set(Reason) - {Reason.MANUAL})

fates = st.builds(
    Fate,
    reason=st.one_of(
        st.sampled_from(sorted(HOPPING)), st.sampled_from(REASONS_OF_CALLS), st.none()
    ),
    stated_s=st.sampled_from([None, None, 7200.0]),
    is_certain=st.booleans(),
    helps_elsewhere=st.sampled_from([None] * 9 + [False]),
)
fallback_on = st.one_of(
    st.none(), st.none(), st.frozensets(st.sampled_from(REASONS_OF_CALLS), max_size=20)
)


@st.composite
def outages(draw: st.DrawFn, scopes: list[str]) -> Health:
    scope = ScopeId(draw(st.sampled_from(scopes)))
    kind = draw(st.sampled_from(["out", "recovering", "unproven", "broken", "paused", "tried"]))
    reason = draw(st.sampled_from([Reason.RATE_LIMIT, Reason.CRASH, Reason.AUTH]))
    if kind == "paused":
        return Health(scope=scope, pause=Pause(since_at=T0 - 5))
    until_at = T0 + draw(st.sampled_from([50.0, 5000.0]))
    is_over = kind in ("recovering", "unproven", "tried")
    outage = Outage(
        state="broken" if kind == "broken" else "rate_limited",
        reason=Reason.AUTH if kind == "broken" else reason,
        since_at=T0 - draw(st.sampled_from([10.0, 400.0, 4000.0])),
        until_at=T0 - 5 if is_over else until_at,
        cooldown_s=0.0 if kind == "unproven" else 6000.0,
        source=draw(st.sampled_from(["policy", "provider", "person"])),
        count=draw(st.integers(1, 4)),
        last_failure_at=T0 - 10,
    )
    trial = None
    if kind == "tried":
        trial = Trial(attempt=AttemptId("d99.1"), generation=1, leased_at=T0 - 1)
    return Health(scope=scope, outage=outage, trial=trial, generation=1)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    is_served = draw(st.booleans())
    count = draw(st.sampled_from([2, 3, 4, 5, 6, 6]))
    is_retried = draw(st.booleans())
    pick = st.sampled_from
    backends = [
        Backend(
            id=BackendId(f"p/m{number}" if is_served else f"b{number}"),
            kind="opencode" if is_served else "codex",
            model=f"p/m{number}" if is_served else draw(pick([None, "m"])),
            provider=draw(pick([None, "p1", "p2"])),
            context_tokens=draw(pick([None, None, 1000, 5000])),
            cost=draw(pick([None, None, "metered", "subscription", "local"])),
            family=draw(pick([None, "gpt", "claude"])),
            credentials=() if is_served else draw(pick([(), (), ("k1",), ("k1", "k2")])),
            fallback_model=None if is_served else draw(pick([None, None, "other"])),
            retries=draw(pick([None, 0])) if is_retried else 0,
        )
        for number in range(count)
    ]
    if not is_served and draw(st.booleans()):
        backends.append(Backend(id=BackendId("in-session"), kind=IN_SESSION_KIND))
    names = [one.id for one in backends]
    tiers = st.sampled_from([None, None, None, "primary"] + ([] if is_served else ["api"]))
    chain = [
        Entry(backend=name, tier=None if name == "in-session" else draw(tiers))
        for name in draw(st.permutations(names))
    ]
    chain = chain[: draw(pick([0, 1, 2, 3, 9, 9, 9]))]
    role = None
    if draw(st.booleans()):
        role = Role(
            name=ROLE,
            chain=tuple(chain),
            kind=draw(pick([None, None, "creative", "validator"])),
            on_outage=draw(pick([None, "fallback", "fallback", "stop", "skip", "ask"])),
            fallback_on=draw(fallback_on),
            max_fallback_depth=draw(pick([None, 1, 2, 5])),
            must_differ_from=draw(pick([(), (), (), ("gpt",), ("author",)])),
            allow_metered=draw(st.booleans()),
            idle_s=draw(pick([None, 2.0])),
            return_policy=draw(pick(["idle", "new_session", "successes"])),
            return_n=draw(pick([1, 2])),
        )
    is_single = all(one.retries == 0 for one in backends if one.kind != IN_SESSION_KIND)
    requested = draw(pick([one.id for one in backends if one.kind != IN_SESSION_KIND]))
    policy = policy_of(
        *backends,
        chains={} if role else {requested: chain, "*": [names[0]]},
        roles={ROLE: role} if role else {},
        wait_threshold_s=0.0,
        backoff_base_s=0.0,
        max_fallback_depth=draw(pick([1, 2, 3, 10, 10])),
        # A retry of the engine is a call that only a delegation makes.
        max_attempts=draw(pick([50, 2, 3, 4])) if is_single else 50,
        retry_floor=1000,
    )
    policy = structs.replace(policy, served=frozenset(names) if is_served else frozenset())
    scopes = [f"backend:{one.id}" for one in backends if one.kind != IN_SESSION_KIND]
    scopes += [f"model:{one.id}/{one.model}" for one in backends if one.model]
    scopes += [f"credential:{one.provider or one.id}/k1" for one in backends if one.credentials]
    scopes += ["provider:p1"]
    ask = st.builds(
        Ask,
        named=st.just(True) if is_served else st.booleans(),
        pause_s=st.sampled_from([0.0, 4.0, 400.0, 4000.0]),
        fates=st.lists(fates, min_size=1, max_size=8).map(tuple),
    )
    asks = draw(st.lists(ask, min_size=1, max_size=1 if is_served else 3))
    return World(
        policy=policy,
        requested=requested,
        role=ROLE if role else None,
        asks=tuple(asks),
        health=tuple(draw(st.lists(outages(scopes), max_size=3, unique_by=lambda h: h.scope))),
        prompt_tokens=None if is_served else draw(pick([None, 10, 3000])),
        allow_metered=False if is_served else draw(st.booleans()),
        says_again=draw(st.booleans()),
    )


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(world=worlds())
def test_every_door_leads_to_the_same_candidates(world: World) -> None:
    delegated = tuple(by_delegate(world))
    assert tuple(by_caller(world)) == delegated
    if len(delegated) == 1:
        (alone,) = by_caller(world, session=None)
        assert structs.replace(delegated[0], current=None, depth=0) == alone
    event(f"visits: {max(len(one.places) for one in delegated)}")
    if world.policy.served:
        turns = tuple(by_opencode(world))
        event(f"turns: {len(turns)}")
        assert turns in ((), delegated)
