"""
Cases carried over as data: what is given, what is called, what is expected of the answer.

```json
{"id": "…", "rule": "…", "installed": ["codex"], "hermes": "ok", "does": {"codex": "429"},
 "config": "toml", "marks": [{"target": "codex"}],
 "steps": [{"after_s": 600, "call": "health", "params": {}, "expect": {}}]}
```

An expected object is a part of the answer; a list is the whole list. `"a[].b"` is the list of all
`b`. `{"$at": 600}` is 600 s after the beginning; the other words are in `WORDS`.
"""

import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.clock import ManualClock
from tests.support.daemon import InProcess, in_process
from tests.support.fakes import hermes, install

from fallbackd.engine.ticker import tick
from fallbackd_client.errors import RpcError

DATA = Path(__file__).parent / "data"
SLACK_S = 20.0
"""How long a case may take on a busy machine before its instants are off."""
INSTALLED = ("opencode", "codex", "gemini", "numasec")
ALWAYS = """\
[backends.opencode]
serve = false
[backends.hermes-api]
base_url = "{url}"
"""

Case = dict[str, Any]


def load(name: str) -> list[Case]:
    cases: list[Case] = json.loads((DATA / f"{name}.json").read_text())
    return cases


def name_of(case: Case) -> str:
    return str(case["id"])


WORDS: dict[str, Callable[[Any, Any], bool]] = {
    "$any": lambda found, wanted: any(differences(found, one) == [] for one in wanted),
    "$not": lambda found, wanted: differences(found, wanted) != [],
    "$says": lambda found, wanted: isinstance(found, str) and wanted in found,
    "$starts": lambda found, wanted: isinstance(found, str) and found.startswith(wanted),
    "$between": lambda found, wanted: found is not None and wanted[0] <= found <= wanted[1],
    "$has": lambda found, wanted: all(one in found for one in wanted),
    "$lacks": lambda found, wanted: not any(one in found for one in wanted),
    "$count": lambda found, wanted: len(found) == wanted,
    "$each": lambda found, wanted: all(differences(one, wanted) == [] for one in found),
    "$set": lambda found, wanted: (found is not None and found != "") is wanted,
}


def differences(found: Any, wanted: Any, *, begun_at: float = 0.0, where: str = "") -> list[str]:
    """What is not as wanted, each with its place; empty: all is."""
    if isinstance(wanted, dict):
        words = [word for word in wanted if word.startswith("$")]
        if "$at" in wanted:
            is_there = isinstance(found, float | int)
            if is_there and abs(found - begun_at - wanted["$at"]) <= SLACK_S:
                return []
            return [f"{where}: {found!r} is not {wanted['$at']} s after {begun_at}"]
        if words:
            return [
                f"{where}: {found!r} is not {word} {wanted[word]!r}"
                for word in words
                if not WORDS[word](found, wanted[word])
            ]
        told = []
        for key, value in wanted.items():
            try:
                part = _part(found, key)
            except (KeyError, TypeError):
                told.append(f"{where}.{key}: is not there")
                continue
            told += differences(part, value, begun_at=begun_at, where=f"{where}.{key}")
        return told
    if isinstance(wanted, list) and isinstance(found, list):
        if len(found) != len(wanted):
            return [f"{where}: {found!r} is not {wanted!r}"]
        pairs = enumerate(zip(found, wanted, strict=True))
        return [
            line
            for at, (one, other) in pairs
            for line in differences(one, other, begun_at=begun_at, where=f"{where}[{at}]")
        ]
    return [] if found == wanted else [f"{where}: {found!r} is not {wanted!r}"]


def _part(found: Any, key: str) -> Any:
    listed, each, rest = key.partition("[].")
    if each:
        return [one[rest] for one in found[listed]]
    if match := re.fullmatch(r"(\w+)\[(\w.*?)=(.+)\]", key):
        name, field, value = match.groups()
        return next((one for one in found[name] if one[field] == value), None)
    return found[key]


class Stage:
    """One case as it is played."""

    def __init__(self, daemon: InProcess, clock: ManualClock, home: Path) -> None:
        self.daemon = daemon
        self.clock = clock
        self.home = home
        self.begun_at = clock.now()
        self.last: Any = None

    async def call(self, method: str, params: dict[str, Any]) -> Any:
        """The result, or the error as `{"error": {code, message, data}}`."""
        try:
            return await self.daemon.client.call(method, params)
        except RpcError as error:
            data = {"code": error.code, "message": error.message, "data": error.data}
            return {"error": data}

    async def step(self, step: dict[str, Any]) -> None:
        if (after_s := step.get("after_s")) is not None:
            self.clock.advance(after_s)
            await self.daemon.engine.look_at_clock()
        if step.get("tick"):
            await tick(self.daemon.engine)
        if (method := step.get("call")) is None:
            return
        found = await self.call(method, step.get("params", {}))
        wanted = step.get("expect", {})
        told = differences(found, wanted, begun_at=self.begun_at)
        if isinstance(found, dict) and "error" in found and "error" not in wanted:
            told.append(f"error: {found['error']}")
        assert not told, "\n".join([f"{method}:", *told])
        self.last = found


@asynccontextmanager
async def stage(tmp_path: Path, case: Case) -> AsyncIterator[Stage]:
    """A daemon as the case gives it, with its marks made."""
    behaviours = dict.fromkeys(case.get("installed", INSTALLED), "exit 1")
    install(tmp_path / "bin", {**behaviours, **case.get("does", {})}, say=case.get("say"))
    clock = ManualClock()
    with hermes(case.get("hermes", "ok")) as api:
        config = case.get("config", "") + "\n" + ALWAYS.format(url=api.url)
        env = {"PATH": f"{tmp_path / 'bin'}:/usr/local/bin:/usr/bin:/bin"}
        async with in_process(tmp_path, config, clock=clock, env=env) as daemon:
            played = Stage(daemon, clock, tmp_path / "home")
            for mark in case.get("marks", []):
                params = {"action": "mark", "reason": "down", **mark}
                await daemon.client.call("health", params)
            yield played


async def play(tmp_path: Path, case: Case) -> None:
    async with stage(tmp_path, case) as played:
        for step in case["steps"]:
            await played.step(step)
