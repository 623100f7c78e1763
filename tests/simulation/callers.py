"""Who asks the daemon for something, and what they expect of its answers."""

from collections.abc import Callable
from random import Random
from typing import Any

import anyio
from msgspec import structs
from tests.simulation.agents import BLAME, statement
from tests.simulation.daemon import Lost
from tests.simulation.programs import Program
from tests.simulation.script import STATES, Ask
from tests.simulation.stage import Stage

from fallbackd.core.events import Reported, ResolveRequested
from fallbackd.core.ids import BackendId, DelegationId
from fallbackd.core.protocol import Evidence
from fallbackd.core.records import Delegation
from fallbackd.engine import callers as asking
from fallbackd.engine.api import Engine
from fallbackd.engine.requests import Draining, Invalid, NewWork, Refused, Unknown

AGAIN_S = 1.0
PATIENCE_S = 30 * 86_400.0
REPORTABLE = frozenset({"throttled", "plan_limit", "login_gone", "overloaded", "server_error"})


class Callers:
    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.acknowledged: set[str] = set()
        self.answers: dict[str, Delegation] = {}
        self.recovered: list[Delegation] = []
        self.refused = 0
        self._luck = Random(f"{stage.script.seed} callers")

    # --- asking for work -------------------------------------------------------------------------

    def work_of(self, ask: Ask) -> NewWork:
        place = str(self.stage.place.parent / ask.place) if ask.place else None
        return NewWork(cwd=place, metadata={"task": ask.task, "number": ask.number}, **ask.fields)

    async def ask(self, ask: Ask) -> None:
        """One caller, from the request to the answer."""
        work = self.work_of(ask)
        name = await self.delegate(work, for_s=ask.leaves_after_s)
        if name is None:
            return
        self.acknowledged.add(name)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.answer_of, name)
            if ask.repeats and work.request_id is not None:
                tasks.start_soon(self._repeat, work, name)
            if ask.cancels_after_s is not None:
                tasks.start_soon(self._cancel, name, ask.cancels_after_s)

    async def delegate(self, work: NewWork, *, for_s: float | None = None) -> str | None:
        """The name of the delegation; None: it was refused, or nobody knows."""
        while True:
            daemon = await self.stage.until_up()
            try:
                accepted = await daemon.call(lambda engine: engine.delegate(work), for_s=for_s)
            except Lost:
                if work.request_id is None:
                    return None
                for_s = None
            except Draining:
                pass
            except Refused as refused:
                self.stage.tell(f"task {work.metadata['number']}: {refused.rejection.kind}")
                self.refused += 1
                return None
            else:
                name = accepted.delegation
                self.stage.tell(f"task {work.metadata['number']} is {name}")
                return name
            await anyio.sleep(AGAIN_S)

    async def answer_of(self, name: str) -> Delegation:
        """Wait for the one answer, over as many lives of the daemon as it takes."""
        stage = self.stage
        while True:
            daemon = await stage.until_up()
            try:
                ended, is_over = await daemon.call(
                    lambda engine: engine.wait(
                        DelegationId(name), until="finished", timeout_s=PATIENCE_S
                    )
                )
                text = await daemon.call(lambda engine, ended=ended: engine.text(ended))
                break
            except Lost:
                await anyio.sleep(AGAIN_S)
            except Unknown:
                stage.laws.require(False, f"{name} was acknowledged and is not known")
                raise
        stage.laws.require(is_over and ended.is_ended, f"{name} had no answer in a month")
        stage.tell(f"{name} is {ended.state} by {ended.served_by}: {ended.message or ''}")
        known = self.answers.setdefault(name, ended)
        stage.laws.require(known == ended, f"{name} was answered in two ways")
        if ended.state == "succeeded":
            expected = f"answer of {ended.attempts[-1].attempt}"
            said = expected in (text or "")
            stage.laws.require(said, f"{name} was answered with {text!r}, not {expected!r}")
        return ended

    async def _repeat(self, work: NewWork, name: str) -> None:
        again = await self.delegate(work)
        self.stage.laws.require(again == name, f"{work.request_id} became {name} and {again}")
        other = structs.replace(work, prompt="something else")
        found = await self.delegate(other)
        self.stage.laws.require(found is None, f"{work.request_id} was taken for another task")

    async def _cancel(self, name: str, after_s: float) -> None:
        await anyio.sleep(after_s)
        await self.tell(lambda engine: engine.cancel(DelegationId(name)))

    async def nest(self, program: Program) -> None:
        """A program asks for help, and goes on when it has it."""
        mine = program.delegation
        work = NewWork(
            prompt="a part",
            parent=program.attempt,
            cwd=mine.cwd or None,
            permissions=mine.permissions,
            request_id=f"part of {program.attempt}",
            metadata={"task": "plain" if mine.nesting else "nests", "number": -1},
            wait="accepted",
        )
        async with anyio.create_task_group() as tasks:

            async def help_it() -> None:
                name = await self.delegate(work)
                if name is not None:
                    await self.answer_of(name)
                tasks.cancel_scope.cancel()

            async def until_stopped() -> None:
                await program.stopping.wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(help_it)
            tasks.start_soon(until_stopped)

    async def tell(self, ask: Callable[[Engine], Any]) -> Any:
        """Something that is asked for once; nobody repeats it when the connection is lost."""
        daemon = await self.stage.until_up()
        try:
            return await daemon.call(ask)
        except (Lost, Unknown, Refused, Draining, Invalid) as error:
            self.stage.tell(f"not done: {type(error).__name__} {error}")
            return None

    # --- callers that talk to providers themselves ---------------------------------------------

    async def resolve(self, backend: str, reports_after_s: float | None) -> None:
        """Ask whom to use, use it, and say how that went; or never say it."""
        stage = self.stage
        found = await self.tell(
            lambda engine: asking.resolve(
                engine, ResolveRequested(backend=BackendId(backend)), lease=True
            )
        )
        if found is None or found.backend is None or reports_after_s is None:
            return
        began_at = stage.wall()
        await anyio.sleep(reports_after_s)
        condition = stage.condition(stage.member(found.backend))
        evidence = None
        if condition in REPORTABLE:
            stated_s = 30.0 if condition in STATES else None
            text = statement(condition, stated_s)
            evidence = Evidence(text=f"Error: {text}", stream="stderr", exit_code=1)
        elif condition != "healthy":
            await self.tell(
                lambda engine: asking.report(
                    engine,
                    Reported(outcome="released", backend=found.backend, lease=found.lease_id),
                )
            )
            return
        answer = await self.tell(
            lambda engine: asking.report(
                engine,
                Reported(
                    outcome="success" if evidence is None else "failure",
                    backend=found.backend,
                    lease=found.lease_id,
                    started_at=began_at,
                ),
                evidence=evidence,
            )
        )
        if answer is not None and answer.failure is not None:
            reason = answer.failure.reason
            stage.laws.require(reason in BLAME[condition], f"{condition} was read as {reason}")
