"""Callers that ask for everything a daemon can do, and remember what they were told."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import anyio
from msgspec import Struct, field
from tests.support.agents import backend_script, chain

from fallbackd_client.aio import AsyncClient
from fallbackd_client.errors import NoDaemon, RpcError

BACK_S = 3600.0
"""A caller outlives one death after the other; the scene knows how long each may take."""
USED = ("throttled", "works", "slow", "long", "tried")
MARKED = tuple(f"marked{number}" for number in range(12))
"""Backends that are never used for work: their marks are the callers' alone."""

LEDGER = 'cat >/dev/null; echo "$FALLBACKD_ATTEMPT" >> "$HOME/ledger"; '
THROTTLED = LEDGER + "echo 'rate limited' >&2; exit 75"
WORKS = LEDGER + 'echo "done by $FALLBACKD_ATTEMPT"'
SLOW = LEDGER + 'for n in 1 2 3; do echo "line $n"; sleep 0.1; done; echo "done late"'
LONG = LEDGER + "echo begun; exec sleep 1000"


def configure(bin_dir: Path, *, imported: Path) -> Callable[[int], str]:
    """
    Write the programs.

    Returns:
        The configuration file, by number: another one gives another file for the same work.
    """
    marked = "".join(
        f'[backends.{name}]\nkind = "generic-cli"\ncommand = ["/bin/true"]\n' for name in MARKED
    )
    head = f'export_voice_health = "~/voice.json"\nimport = ["{imported}"]\n'
    backends = (
        backend_script(bin_dir, "throttled", THROTTLED)
        + backend_script(bin_dir, "limited", THROTTLED)
        + backend_script(bin_dir, "works", WORKS)
        + backend_script(bin_dir, "slow", SLOW)
        + backend_script(bin_dir, "long", LONG)
        + backend_script(bin_dir, "tried", WORKS)
        + marked
        + chain("throttled", "works")
        + 'limited = ["works"]\n'
    )

    def text(number: int) -> str:
        settle_s = 1 + number % 50 / 100
        return f"{head}[defaults]\nstop_grace_s = 0.5\nsettle_s = {settle_s}\n{backends}"

    return text


class Said(Struct):
    """What the callers were told: promises that outlive the daemon that made them."""

    params: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Of each `delegate`, by request id."""
    taken: dict[str, str] = field(default_factory=dict)
    """Request id to delegation: acknowledged."""
    ends: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Request id, and the delegation as it ended."""
    marks: dict[str, str] = field(default_factory=dict)
    """Backend to the words of the mark that was acknowledged."""
    limited: list[dict[str, Any]] = field(default_factory=list)
    """Health of the backend that failed and is never cleared, each time that somebody looked."""
    unknown: int = 0
    """Calls whose fate the caller does not know, and may not repeat."""
    surprises: list[str] = field(default_factory=list)


class Caller:
    """One of many, with a session of its own. `run` goes on until `is_enough` says so."""

    def __init__(
        self,
        client: AsyncClient,
        said: Said,
        *,
        name: str,
        seed: str,
        pause_s: float,
        reconfigure: Callable[[], Awaitable[None]],
    ) -> None:
        self._client = client
        self._said = said
        self._name = name
        self._chance = Random(seed)
        self._pause_s = pause_s
        self._reconfigure = reconfigure
        self._number = 0

    async def run(self, is_enough: Callable[[], bool]) -> None:
        steps: tuple[Callable[[], Awaitable[None]], ...] = (
            self._fall_back,
            self._fall_back,
            self._work,
            self._work_slowly,
            self._cancel,
            self._mark,
            self._try_again,
            self._clear,
            self._change_configuration,
            self._look,
        )
        # Everybody begins elsewhere, so that all of it is asked for soon.
        turn = self._chance.randrange(len(steps))
        while not is_enough():
            try:
                await steps[turn % len(steps)]()
            except RpcError as error:
                self._said.surprises.append(f"{self._name}: {error!r}")
            await anyio.sleep(self._chance.random() * self._pause_s)
            turn += 1 if self._chance.random() < 0.8 else self._chance.randrange(len(steps))

    # --- work ------------------------------------------------------------------------------

    async def _fall_back(self) -> None:
        await self._delegate(self._chance.choice(["throttled", "throttled", "limited"]))

    async def _work(self) -> None:
        await self._delegate("works", session=False)

    async def _work_slowly(self) -> None:
        await self._delegate("slow")

    async def _try_again(self) -> None:
        """The backend comes back by the clock alone: whoever is first makes its trial."""
        mark = {"action": "mark", "target": "tried", "reason": "overloaded", "ttl_s": 0.05}
        await self._once("health", mark)
        await anyio.sleep(0.06)
        await self._delegate("tried", session=False)

    async def _cancel(self) -> None:
        request_id, found = await self._begin("long", session=False, wait="accepted")
        await anyio.sleep(self._chance.random() * 0.2)
        await self._client.call("delegation.cancel", {"delegation": found["delegation"]})
        await self._end(request_id, found["delegation"])

    async def _delegate(self, backend: str, *, session: bool = True) -> None:
        wait = self._chance.choice(["accepted", "settled", "finished"])
        request_id, found = await self._begin(backend, session=session, wait=wait)
        if wait == "finished":
            self._said.ends.append((request_id, found))
        await self._end(request_id, found["delegation"])

    async def _begin(self, backend: str, *, session: bool, wait: str) -> tuple[str, dict[str, Any]]:
        self._number += 1
        request_id = f"{self._name}-{self._number}"
        params: dict[str, Any] = {"prompt": "x" * 50, "backend": backend, "request_id": request_id}
        if session:
            params["session"] = self._name
        self._said.params[request_id] = params
        found = await self._client.call("delegate", {**params, "wait": wait})
        self._said.taken[request_id] = found["delegation"]
        return request_id, found

    async def _end(self, request_id: str, delegation: str) -> None:
        found = await self._client.call("delegation.wait", {"delegation": delegation})
        self._said.ends.append((request_id, found))

    # --- health, configuration -------------------------------------------------------------

    async def _mark(self) -> None:
        name, words = self._chance.choice(MARKED), f"{self._name} {self._number}"
        self._said.marks.pop(name, None)  # unknown until it is acknowledged
        params = {"action": "mark", "target": name, "reason": words, "ttl_s": 86_400}
        found = await self._once("health", params)
        if found is not None:
            # Another caller may have been later: what was shown is what has to stay.
            self._said.marks.pop(name, None)
            shown = await self._client.call("health", {"action": "get", "target": name})
            self._said.marks[name] = shown["health"][name]["detail"]

    async def _clear(self) -> None:
        for target in self._chance.sample(USED, 2):
            await self._once("health", {"action": "clear", "target": target})

    async def _look(self) -> None:
        found = await self._client.call("health", {"action": "get", "target": "limited"})
        self._said.limited.append(found["health"]["limited"])
        await self._client.call("status")
        await self._client.call("session.list")

    async def _change_configuration(self) -> None:
        await self._reconfigure()
        await self._once("config.reload", {})

    async def _once(self, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        """What must not be sent twice. None: nobody knows whether it was done."""
        try:
            found: dict[str, Any] = await self._client.call(method, params)
        except NoDaemon:
            self._said.unknown += 1
            await self._client.call("daemon.ping")  # until it is back
            return None
        return found


def voice_file(number: int) -> str:
    """A file of another program that marks a backend; another one each time."""
    entry = {"marked_at": 1_000_000_000.0 + number, "reason": "by others", "ttl_seconds": 3e9}
    return json.dumps({"imported": entry})
