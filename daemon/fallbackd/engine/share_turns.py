"""Trials of shared scopes while the arbiter is away: machines take turns, by its clock."""

from collections.abc import Awaitable, Callable, Iterable, Mapping

from msgspec import structs

from fallbackd.core.callers.lease import ReportAnswer, Resolution
from fallbackd.core.decision import Decision, PutHealth, PutStory, StartAttempt
from fallbackd.core.health import Health, Trial
from fallbackd.core.ids import AttemptId, ScopeId
from fallbackd.core.opencode.turns import Redirect, Ruled
from fallbackd.core.share import LEASE_PREFIX, is_peer, turn_of
from fallbackd.engine.api import Engine
from fallbackd.engine.peers import HealthOf
from fallbackd.ports.store import Card, ShareReading

SURE_S = 0.5
"""Clocks that differ by more than what was believed were set."""
PROBES_AT_ONCE = 8
"""Other candidates that may be on trial too, until one is found that needs none."""


def unasked(
    before: HealthOf, decision: Decision, is_ours: Callable[[ScopeId], bool]
) -> list[Health]:
    """
    Scopes of which the decision begins a trial, as they were before it.

    Args:
        is_ours: It needs no grant, or was granted.
    """
    return [
        before.get(one.health.scope, Health(scope=one.health.scope))
        for one in decision.changes
        if isinstance(one, PutHealth)
        and _is_new_trial(before.get(one.health.scope), one.health)
        and not is_ours(one.health.scope)
    ]


def is_running(health: Health | None, *, now: float) -> bool:
    outage = None if health is None else health.outage
    return outage is not None and (outage.until_at is None or now < outage.until_at)


class ProbeTurns:
    """
    Order of the machines' turns, as this machine sees it.

    Args:
        instance: This machine.
        cards: The machines that were there when the server was last heard.
        ahead_s: By how much the server's clock is ahead of this machine's.
    """

    def __init__(self, instance: str, cards: Iterable[Card], *, ahead_s: float) -> None:
        self._instance = instance
        self._names = {one.instance: one.name for one in cards} | {instance: ""}
        self._ahead_s = ahead_s

    def others(self, health: Health, name: ScopeId, *, now: float) -> Health | None:
        """
        The scope as if the machine whose turn it is were at it; None: it is this machine's turn.

        Args:
            name: Under which all machines know the scope.
        """
        if is_running(health, now=now):
            return None  # a last resort: nothing else is usable
        turn = turn_of(name, self._names, now=now + self._ahead_s)
        if turn.instance == self._instance:
            return None
        owner = f"{self._names[turn.instance]} (its turn)"
        return structs.replace(
            health,
            trial=Trial(
                attempt=AttemptId(LEASE_PREFIX + owner),
                generation=health.generation,
                leased_at=now,
                expires_at=now + turn.ends_in_s,
                owner=owner,
            ),
        )

    def weigh(
        self,
        decision: Decision,
        before: HealthOf,
        again: Callable[[HealthOf], Decision],
        *,
        is_ours: Callable[[ScopeId], bool],
        name_of: Callable[[ScopeId], ScopeId],
        now: float,
        why: str,
    ) -> tuple[Decision, tuple[ScopeId, ...]]:
        """
        Revise a decision that begins a trial without a grant. Returns it with the scopes of which
        it still begins one.

        Args:
            again: The decision with health that is a little different.
            name_of: Under which all machines know a scope.
            why: Why no grant was asked for; shown by `explain`.
        """

        def taken(seen: HealthOf, found: Decision) -> dict[ScopeId, Health | None]:
            begun = unasked(seen, found, is_ours)
            return {one.scope: self.others(one, name_of(one.scope), now=now) for one in begun}

        found, others = by_turns(decision, again, taken, before)
        alone = tuple(one.scope for one in unasked({**before, **others}, found, is_ours))
        said = [
            f"{scope} is left to {one.trial.owner}"
            for scope, one in others.items()
            if one.trial is not None
        ]
        if alone:
            said.append(f"others may try {', '.join(alone)} at the same time")
        return noted(found, f"{why}: {'; '.join(said)}"), alone


def by_turns(
    decision: Decision,
    again: Callable[[Mapping[ScopeId, Health]], Decision],
    begins: Callable[[HealthOf, Decision], Mapping[ScopeId, Health | None]],
    before: HealthOf,
) -> tuple[Decision, dict[ScopeId, Health]]:
    """
    The decision as it is where the machines whose turn it is are at their trials; and those
    scopes. Work that would have no other way then is not kept waiting: its decision stands.

    Args:
        again: The decision with health that is a little different.
        begins: Scopes of which a decision begins a trial, as they are in the turn of another
            machine; None: it is this machine's turn.
    """
    others: dict[ScopeId, Health] = {}
    found = decision
    for _ in range(PROBES_AT_ONCE):
        seen = {**before, **others}
        taken = {scope: one for scope, one in begins(seen, found).items() if one is not None}
        if not taken:
            return (found, others) if has_a_way(found) or not others else (decision, {})
        others |= taken
        found = again({**before, **others})
    return decision, {}


def has_a_way(decision: Decision) -> bool:
    """Test whether the work goes to some backend now."""
    answer = decision.answer
    match answer:
        case ReportAnswer():
            return answer.next is not None and answer.next.backend is not None
        case Resolution():
            return answer.backend is not None
        case Redirect():
            return answer.model is not None
        case Ruled():
            return answer.rescue is not None
        case _:
            return any(isinstance(one, StartAttempt) for one in decision.effects)


def noted(decision: Decision, note: str) -> Decision:
    """The decision, with a note for `explain`."""
    changes = tuple(
        structs.replace(one, outcome=f"{one.outcome}; {note}" if one.outcome else note)
        if isinstance(one, PutStory)
        else one
        for one in decision.changes
    )
    return structs.replace(decision, changes=changes)


def _is_new_trial(before: Health | None, after: Health) -> bool:
    trial = after.trial
    if trial is None or is_peer(trial.attempt):
        return False
    return before is None or before.trial is None or before.trial.attempt != trial.attempt


class ServerClock:
    """
    The server's clock beside this machine's.

    Args:
        on_set: One of the two was set.
    """

    def __init__(self, engine: Engine, on_set: Callable[[], None]) -> None:
        self._engine = engine
        self._on_set = on_set
        self.ahead_s: float | None = None
        """Lead over this machine's clock as if that was never set. None: not compared yet."""

    async def timed(self, asking: Awaitable[ShareReading]) -> ShareReading:
        """An answer, by which the clocks are compared."""
        clock = self._engine.clock
        began_at = clock.now()
        seen = await asking
        now = clock.now()
        if now < began_at:
            return seen  # it was set meanwhile
        took_s = now - began_at
        sample_s = seen.at - (began_at + now) / 2 + self._engine.shifted_s
        known_s = self.ahead_s
        if known_s is None or abs(sample_s - known_s) > took_s / 2 + SURE_S:
            self.ahead_s = sample_s
            self._on_set()  # instants of before are others now
        else:
            self.ahead_s = known_s + (sample_s - known_s) * 0.2
        return seen
