"""What must hold once a daemon stands again and its callers have their answers."""

import json
import os
from collections import Counter
from collections.abc import Iterable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
from tests.support.daemon import HANG_S, Daemon
from tests.support.survival.load import Said

from fallbackd_client.aio import AsyncClient

LOOK_S = 0.02
ALIKE = ("delegation", "state", "text", "served_by", "failure", "hops", "ended_at", "request_id")
"""What everybody who asks for the same delegation is told alike."""
LOST = ("crash", "unknown")
"""Reasons of an end that nobody has seen."""
DRAFTS = (".part", ".new", ".tmp")


class Audit:
    """
    Collects what is wrong, in words; `problems` is empty where everything holds.

    Args:
        is_spared: Only the daemon died: every program came to its own end, and that is known.
    """

    def __init__(self, daemon: Daemon, said: Said, *, is_spared: bool) -> None:
        self._daemon = daemon
        self._said = said
        self._is_spared = is_spared
        self.problems: list[str] = []
        self.delegations: dict[str, dict[str, Any]] = {}
        self.events = 0

    async def run(self) -> None:
        self.problems += self._said.surprises
        async with AsyncClient(self._daemon.socket, timeout_s=HANG_S) as client:
            await self._become_quiet(client)
            await self._answers(client)
            await self._journal(client)
            await self._marks(client)
            await self._locks(client)
        self._attempts()
        await self._files()
        await self._processes()

    def _expect(self, holds: bool, text: str) -> None:
        if not holds:
            self.problems.append(text)

    async def _become_quiet(self, client: AsyncClient) -> None:
        with anyio.fail_after(HANG_S):
            while True:
                status = await client.call("status")
                counts = status["delegations"]
                busy = ("queued", "running", "waiting", "awaiting_answer")
                if not any(counts.get(word) for word in busy):
                    return
                await anyio.sleep(LOOK_S)

    # --- what was promised -----------------------------------------------------------------

    async def _answers(self, client: AsyncClient) -> None:
        """Acknowledged is answered, exactly once, and alike for all who ask."""
        for request_id, params in self._said.params.items():
            asked = await client.call("delegate", {**params, "wait": "finished"})
            name = asked["delegation"]
            taken = self._said.taken.get(request_id, name)
            self._expect(taken == name, f"{request_id} was {taken} and is {name}")
            found = await client.call("delegation.get", {"delegation": name})
            self._expect(_alike(asked) == _alike(found), f"{name} is told in two ways")
            self._expect(found["ended_at"] is not None, f"{name} is {found['state']}")
            reason = (found["failure"] or {}).get("reason")
            if self._is_spared:
                self._expect(reason not in LOST, f"{name} has lost its end: {found['failure']}")
            self.delegations[name] = found
        for request_id, told in self._said.ends:
            now = self.delegations[self._said.taken.get(request_id, told["delegation"])]
            self._expect(
                _alike(told) == _alike(now),
                f"{now['delegation']} was answered {_alike(told)}, now {_alike(now)}",
            )

    async def _journal(self, client: AsyncClient) -> None:
        """No hole, no double, and each delegation is taken once and ends once."""
        last = int((await client.call("events.subscribe", {"kinds": []}))["seq"])
        events: list[dict[str, Any]] = []
        async with aclosing(client.events(since=0)) as stream:
            with anyio.fail_after(HANG_S):
                while not events or events[-1]["seq"] < last:
                    events.append(await anext(stream))
        self.events = len(events)
        places = [event["seq"] for event in events]
        self._expect(places == list(range(1, last + 1)), f"the journal has holes: {_gaps(places)}")
        for kind in ("delegation.accepted", "delegation.ended"):
            counted = Counter(one["delegation"] for one in events if one["kind"] == kind)
            twice = [name for name, count in counted.items() if count > 1]
            self._expect(not twice, f"{kind} more than once: {twice}")
            missing = [name for name in self.delegations if name not in counted]
            self._expect(not missing, f"{kind} never: {missing}")
        for kind in ("attempt.started", "attempt.ended"):
            counted = Counter(one["attempt"] for one in events if one["kind"] == kind)
            twice = [name for name, count in counted.items() if count > 1]
            self._expect(not twice, f"{kind} more than once: {twice}")

    async def _marks(self, client: AsyncClient) -> None:
        health = (await client.call("health"))["health"]
        for name, words in self._said.marks.items():
            now = health[name]
            self._expect(
                now["state"] == "broken" and now["detail"] == words,
                f"the mark of {name} was {words!r} and is {now['state']} {now['detail']!r}",
            )

        now_at = (await client.call("daemon.ping"))["at"]
        limited = health["limited"]
        for seen in self._said.limited:
            if (seen["until_at"] or 0.0) > now_at:
                self._expect(
                    limited["state"] in ("rate_limited", seen["state"])
                    and limited["until_at"] >= seen["until_at"]
                    and limited["count"] >= seen["count"],
                    f"the mark of limited was {seen} and is {limited}",
                )

    async def _locks(self, client: AsyncClient) -> None:
        """No lease of a trial, no lock of a session is left."""
        health = (await client.call("health"))["health"]
        for name, entry in health.items():
            for scope in entry["scopes"]:
                self._expect(scope["trial"] is None, f"{name}: {scope['scope']} leased for ever")
        for session in (await client.call("session.list"))["sessions"]:
            self._expect(session["running"] is None, f"{session['session']} is locked for ever")
        sessions = {one["session"] for one in self._said.params.values() if "session" in one}
        await client.call("health", {"action": "clear", "target": "works"})
        for session in sorted(sessions):
            done = await client.call(
                "delegate",
                {"prompt": "x", "backend": "works", "session": session, "wait": "finished"},
            )
            self._expect(done["state"] == "succeeded", f"{session} takes no more work: {done}")
            self.delegations[done["delegation"]] = done

    # --- what is left behind ---------------------------------------------------------------

    def _attempts(self) -> None:
        """Agents write down their attempt when they begin: none began twice, none in secret."""
        ledger = self._daemon.home / "ledger"
        begun = Counter(ledger.read_text().split() if ledger.exists() else ())
        twice = [attempt for attempt, count in begun.items() if count > 1]
        self._expect(not twice, f"attempts that ran twice: {twice}")
        known = {one["attempt"] for found in self.delegations.values() for one in found["attempts"]}
        secret = sorted(set(begun) - known)
        self._expect(not secret, f"attempts that nobody knows: {secret}")

    async def _files(self) -> None:
        runs = self._daemon.state_dir / "runs"
        strangers = sorted({each.name for each in runs.iterdir()} - set(self.delegations))
        self._expect(not strangers, f"run directories of nobody: {strangers}")
        # The daemon lives, and may be amid a file that it writes after each change of health.
        with anyio.move_on_after(HANG_S):
            while drafts := self._drafts():
                await anyio.sleep(LOOK_S)
        self._expect(not drafts, f"drafts that are left: {drafts}")

    def _drafts(self) -> list[str]:
        return [str(path) for path in self._daemon.home.rglob("*") if path.name.endswith(DRAFTS)]

    async def _processes(self) -> None:
        """Runners leave a moment after the answer: they are waited for."""
        with anyio.move_on_after(HANG_S):
            while left := self._left():
                await anyio.sleep(LOOK_S)
        self._expect(not left, f"processes that are left: {left}")

    def _left(self) -> list[str]:
        home = f"HOME={self._daemon.home}".encode()
        found = [
            f"{pid} {words[0].decode(errors='replace')}"
            for pid, words, environ in _processes()
            if home in environ and any(one.startswith(b"FALLBACKD_ATTEMPT=") for one in environ)
        ]
        for record in (self._daemon.state_dir / "runs").glob("*/*/attempt.json"):
            known = json.loads(record.read_bytes())
            if _starts_at(known["runner"]) == known["runner_start"]:
                found.append(f"runner {known['runner']} of {record.parent}")
        return found


def descriptors(pid: int) -> list[str]:
    """What a process holds open."""
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.append(os.readlink(entry))
        except OSError:
            continue
    return sorted(found)


def _alike(found: dict[str, Any]) -> dict[str, Any]:
    return {name: found[name] for name in ALIKE}


def _gaps(places: list[int]) -> list[tuple[int, int]]:
    pairs = zip([0, *places], places, strict=False)
    return [(before, after) for before, after in pairs if after != before + 1][:10]


def _processes() -> Iterable[tuple[int, list[bytes], list[bytes]]]:
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            environ = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # it has ended, or is somebody else's
        yield int(entry.name), words, environ


def _starts_at(pid: int) -> int | None:
    """Clock ticks since boot; None: there is none, or it is only waited for."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = stat.rpartition(b")")[2].split()
    return None if fields[0] in b"ZX" else int(fields[19])
