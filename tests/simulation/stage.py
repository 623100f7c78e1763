"""What everybody in a play shares: the time, the condition of providers, what was written down."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskGroup
from tests.simulation.agents import Condition
from tests.simulation.script import Member, Script, Spell

from fallbackd.core.ids import BackendId, DelegationId
from fallbackd.core.records import Delegation

if TYPE_CHECKING:
    from tests.simulation.daemon import Daemon
    from tests.simulation.laws import Laws
    from tests.simulation.programs import Program, Programs

T0 = 1_800_000_000.0


class Stage:
    laws: "Laws"
    programs: "Programs"
    nest: "Callable[[Program], Awaitable[None]]"

    tasks: TaskGroup
    """Where the world lives."""
    time: Callable[[], float]
    """Of the loop."""

    def __init__(self, script: Script, place: Path) -> None:
        self.script = script
        self.place = place
        self.trace: list[str] = []
        self.settings = script.settings
        self.daemon: Daemon | None = None
        """None while there is none."""
        self.is_over = False
        self.has_route = True
        self.tick_s = script.tick_s
        self._luck = Random(f"{script.seed} luck")
        self._minted = 0
        self._slept_s = 0.0
        self._set_s = 0.0
        self._sleeps: list[float] = []
        self._deaths: list[float] = []
        self._booted_s = 0.0
        self.boot = "boot 0.0"
        self._touched: dict[str, int] = {}
        self._members = {member.backend.id: member for member in script.members}
        self._up = anyio.Event()

    # --- time --------------------------------------------------------------------------------

    def elapsed(self) -> float:
        """Seconds since the beginning, sleep of the machine included."""
        return self.time() + self._slept_s

    def wall(self) -> float:
        return T0 + self.elapsed() + self._set_s

    def sleep_machine(self, for_s: float) -> None:
        """Time goes by at once, and nobody was there."""
        self._slept_s += for_s
        self._sleeps.append(self.elapsed())

    def set_clock(self, by_s: float) -> None:
        self._set_s += by_s

    def slept_since(self, since_s: float) -> bool:
        """Whether a program that began then has been alive while nothing could run."""
        return any(at_s >= since_s for at_s in self._sleeps)

    def uptime(self) -> float:
        return self.elapsed() - self._booted_s

    def reboot(self) -> None:
        self._booted_s = self.elapsed()
        self.boot = f"boot {self._booted_s}"

    def died(self) -> None:
        self._deaths.append(self.elapsed())

    def deaths_between(self, begin_s: float, end_s: float) -> int:
        return sum(begin_s <= at_s <= end_s for at_s in self._deaths)

    # --- the daemon --------------------------------------------------------------------------

    def up(self, daemon: "Daemon") -> None:
        self.daemon = daemon
        self._up.set()

    def down(self) -> None:
        self.daemon = None
        if self._up.is_set():
            self._up = anyio.Event()

    async def until_up(self) -> "Daemon":
        while self.daemon is None:
            await self._up.wait()
        return self.daemon

    # --- the world ---------------------------------------------------------------------------

    def member(self, backend: str) -> Member:
        return self._members[BackendId(backend)]

    def spell(self, member: Member) -> Spell | None:
        now_s = self.elapsed()
        if self.is_over:
            return None
        return next((one for one in member.spells if one.begin_s <= now_s < one.end_s), None)

    def condition(self, member: Member) -> Condition:
        spell = self.spell(member)
        return "healthy" if spell is None else spell.condition

    def was_missing(self, member: Member) -> bool:
        """A moment ago, when somebody looked: it takes a while until that is written down."""
        now_s = self.elapsed()
        return any(
            one.condition == "missing"
            and one.begin_s <= now_s
            and (now_s < one.end_s + 1 or self.slept_since(now_s - 1))
            for one in member.spells
        )

    def find_program(self, name: str) -> str | None:
        member = self.member(name.rpartition("/")[2])
        return None if self.condition(member) == "missing" else name

    def fingerprint(self, directory: str) -> dict[str, tuple[int, int]]:
        return {"made.txt": (self._touched.get(directory, 0), 1)}

    def touch(self, directory: str) -> None:
        self._touched[directory] = self._touched.get(directory, 0) + 1

    def luck(self) -> float:
        return self._luck.random()

    def mint(self) -> str:
        self._minted += 1
        return f"{self._minted:04}"

    # --- records -----------------------------------------------------------------------------

    def record_of(self, delegation: str) -> Delegation:
        return self.laws.delegations[DelegationId(delegation)]

    def task_of(self, delegation: Delegation) -> str:
        return str(delegation.metadata["task"])

    def tell(self, what: str) -> None:
        self.trace.append(f"{self.elapsed():10.3f} {what}")
