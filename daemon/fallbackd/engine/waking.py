"""Delegations that wait are put further: their time has come, or something else has changed."""

from typing import TYPE_CHECKING

import anyio

from fallbackd.core.effects import WakeAt
from fallbackd.core.events import Woke
from fallbackd.core.ids import DelegationId
from fallbackd.core.records import Delegation
from fallbackd.core.work.fairness import free_places, turns

if TYPE_CHECKING:
    from fallbackd.engine.loop import Performer


def _hears(delegation: Delegation) -> bool:
    """
    Whether a change elsewhere may put it further: of the questions only one about an outage can be
    closed by a change, and work that waits for a place is woken when there is one.
    """
    is_blocked = delegation.blocked_by is not None
    question = delegation.question
    asks = question is not None and question.kind == "outage"
    return delegation.state == "waiting" or is_blocked or delegation.cancelling or asks


class Waking:
    def __init__(self, host: "Performer") -> None:
        self._host = host

    async def wake(self, wake: WakeAt) -> None:
        host = self._host
        # Before the watch is taken: what it shows and the time of the decision are of one clock.
        with anyio.CancelScope(shield=True):
            await host.follow_clock()
        live = None if wake.attempt is None else host.live(wake.attempt)
        watch = None if live is None else live.watch
        if host.is_held(wake.delegation):
            await host.handle(
                Woke(
                    delegation=wake.delegation,
                    attempt=wake.attempt,
                    watch=watch,
                    luck=host.world.luck(),
                )
            )

    async def wake_waiting(self) -> None:
        host = self._host
        for name in list(host.store.peek().active):
            delegation = host.store.peek().active.get(name)
            is_idle = delegation is not None and delegation.running is None
            if delegation is not None and is_idle and _hears(delegation):
                await host.handle(Woke(delegation=name, luck=host.world.luck()))
        await self.fill_places()

    async def fill_places(self) -> None:
        """Wake those that wait for a place, each in its turn, while there are free ones."""
        host = self._host
        woken: set[DelegationId] = set()
        while True:
            active = host.store.peek().active
            free = free_places(active, host.settings.policy.defaults.max_running)
            due = [one for one in turns(active) if one not in woken]
            is_nested = bool(due) and active[due[0]].parent is not None
            if not due or (free <= 0 and not is_nested):
                return
            woken.add(due[0])
            await host.handle(Woke(delegation=due[0], luck=host.world.luck()))
