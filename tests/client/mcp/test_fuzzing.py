"""Ten thousand messages that no client would send: each line that comes back is an answer."""

import json
import random
import threading
from pathlib import Path
from typing import Any

from tests.benchmarks.procfs import memory_mib
from tests.client.mcp.driver import META, session
from tests.client.scripted import answering, serving

COUNT = 10_000
SEED = 20_261_123
WARM = 2_000
GROWTH_MIB = 8.0
METHODS = (
    "initialize", "ping", "tools/list", "tools/call", "server/discover", "roots/list", "",
    "notifications/cancelled", "notifications/initialized", "logging/setLevel", "x" * 300,
)  # fmt: skip
TOOLS = ("status", "health", "suggest", "explain", "wait", "cancel", "delegate", "answer", "", None)


def value(luck: random.Random, depth: int = 0) -> Any:
    match luck.randrange(10 if depth < 3 else 7):
        case 0:
            return None
        case 1:
            return luck.choice([True, False])
        case 2:
            return luck.choice([0, -1, 2**63, 1.5, 10**30])
        case 3 | 4 | 5 | 6:
            return luck.choice(["", "d1", "\ud800", "\u2028\n\x00", "a" * 2000, "q1", "list"])
        case 7:
            return [value(luck, depth + 1) for _ in range(luck.randrange(3))]
        case _:
            names = ("prompt", "delegation", "action", "goal", "cwd", "wait_s", "name", "_meta")
            return {luck.choice(names): value(luck, depth + 1) for _ in range(luck.randrange(4))}


def message(luck: random.Random, number: int) -> bytes:
    """Some are whole, most lack something, a tenth is not even JSON."""
    found: dict[str, Any] = {"jsonrpc": "2.0", "method": luck.choice(METHODS)}
    if luck.random() < 0.8:
        found["id"] = luck.choice([number, str(number), 1, "same", None, [], 1.5, True])
    if luck.random() < 0.9:
        params: Any = {"name": luck.choice(TOOLS), "arguments": value(luck)}
        if luck.random() < 0.3:
            version = luck.choice(["2026-07-28", "1999-01-01", 3, None])
            params["_meta"] = {META + "protocolVersion": version, "progressToken": value(luck)}
        if luck.random() < 0.1:
            params |= {"requestState": value(luck), "inputResponses": value(luck)}
        found["params"] = params if luck.random() < 0.9 else value(luck)
    if luck.random() < 0.1:
        found.pop(luck.choice(list(found)))
    if luck.random() < 0.05:
        found["result"] = value(luck)
    line = json.dumps([found] * 3 if luck.random() < 0.02 else found).encode()
    if luck.random() < 0.1:
        at = luck.randrange(len(line))
        line = line[:at] + bytes([luck.randrange(256)]) + line[at + luck.randrange(3) :]
    return line.replace(b"\n", b" ")


def test_nothing_stops_the_server_and_its_memory_stays(tmp_path: Path) -> None:
    luck = random.Random(SEED)
    done = {"delegation": "d1", "state": "succeeded", "text": "ok", "hops": []}
    methods = ("delegate", "delegation.get", "delegation.wait", "delegation.cancel")
    answers: dict[str, Any] = dict.fromkeys(methods, done)
    answers |= {"status": {}, "health": {"health": {}}, "suggest": {"suggestion": "a"}}
    with serving(tmp_path / "s", answering(answers)), session(tmp_path / "s") as s:
        s.initialize()
        ended = threading.Event()

        def read() -> None:
            while s.read().get("id") != "the last":
                pass
            ended.set()

        reader = threading.Thread(target=read)
        reader.start()
        before = 0.0
        for number in range(COUNT):
            s.write(message(luck, number))
            if number == WARM:
                before = memory_mib(s.process.pid)[0]
        s.say(id="the last", method="ping")
        assert ended.wait(120)
        reader.join()
        assert s.process.poll() is None
        assert memory_mib(s.process.pid)[0] - before < GROWTH_MIB
        assert s.request("ping")["result"] == {}
