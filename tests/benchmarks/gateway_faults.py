"""
Sixteen faults of a provider, each met through the gateway, as a careful client sees what comes.

The faults and what counts are those of the public Failover Bench v0.1; the provider that fails
(`gateway_wall`) is ours. *pass*: the whole answer came (S13: the provider's error) and nothing that
is watched was wrong; *partial*: it came, and something advisory was wrong; *safe*: a clean error in
time; *fail*: a hang, a short answer told as whole, or a provider that was hammered.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import httpx2
from msgspec import Struct
from tests.benchmarks.gateway_wall import ANSWER, DOWN_S, FAULTS, Wall, host_of, wall
from tests.benchmarks.table import Row
from tests.support.daemon import running
from tests.support.gateway import free_port, listening

WHAT = {
    "S01": "429, once, retry after 2 s",
    "S02": "429 again and again",
    "S03": "500 once",
    "S04": "503 again and again",
    "S05": "connection reset before the answer",
    "S06": "no answer at all",
    "S07": "first word after 20 s",
    "S08": "cut after 40 of 60 words",
    "S09": "silent after 20 words",
    "S10": "one event is not JSON",
    "S11": "no [DONE] at the end",
    "S12": "context too long",
    "S13": "refused by a content filter",
    "S14": "cut, and the next one takes no prefill",
    "S15": "down for 60 s, then well; 20 requests",
    "S16": "503: who answered, and what it used",
}
LIMIT_S = {"S06": 130, "S07": 60, "S09": 70, "S02": 40, "S04": 40, "S08": 40, "S14": 40, "S16": 40}
ASKED = 20
EVERY_S = 4.0
BUDGET_PASSED = {"commit": 13, "whole": 16}


class Got(Struct, kw_only=True):
    """What one request came to."""

    fault: str
    status: int = 0
    text: str = ""
    error: str = ""
    is_hung: bool = False
    model: str = ""
    has_usage: bool = False
    took_s: float = 0.0

    @property
    def is_whole(self) -> bool:
        return not self.error and self.text == ANSWER


async def ask(client: httpx2.AsyncClient, fault: str) -> Got:
    got = Got(fault=fault)
    began_at = time.monotonic()
    body = {
        "model": fault,
        "messages": [{"role": "user", "content": "sixty words"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    with anyio.move_on_after(LIMIT_S.get(fault, 30)) as limit:
        try:
            async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
                got.status = answer.status_code
                if answer.status_code != 200:
                    got.error = (await answer.aread()).decode()
                else:
                    await read(answer, got)
        except httpx2.HTTPError as error:
            got.error = got.error or type(error).__name__
    got.is_hung = limit.cancelled_caught
    got.took_s = time.monotonic() - began_at
    return got


async def read(answer: httpx2.Response, got: Got) -> None:
    async for line in answer.aiter_lines():
        data = line.removeprefix("data:").strip()
        if not line.startswith("data:") or data == "[DONE]":
            continue
        event: dict[str, Any] = json.loads(data)
        if "error" in event:
            got.error = str(event["error"])
            return
        got.model = event.get("model") or got.model
        got.has_usage = got.has_usage or bool(event.get("usage"))
        for choice in event.get("choices", ()):
            got.text += choice["delta"].get("content") or ""


def verdict(got: Got, tries: list[float], *, is_alive: bool, is_prefilled: bool) -> str:
    is_short = not got.error and got.text != ANSWER
    wrong = got.is_hung or is_short or not is_alive or is_prefilled
    wrong = wrong or not all(rule(got, tries) for rule in REQUIRED.get(got.fault, ()))
    if wrong:
        return "fail"
    is_rescued = bool(got.error) if got.fault == "S13" else got.is_whole
    if not is_rescued:
        return "safe" if got.error else "partial"
    is_clean = all(rule(got, tries) for rule in ADVISED.get(got.fault, ()))
    return "pass" if is_clean else "partial"


Rule = Callable[[Got, list[float]], bool]


def within(tries: list[float], seconds: float) -> int:
    return sum(one - tries[0] < seconds for one in tries)


REQUIRED: dict[str, tuple[Rule, ...]] = {
    "S01": (lambda _, tries: within(tries, 1.5) <= 2,),
    "S02": (lambda _, tries: within(tries, 3) <= 4 and len(tries) <= 6,),
    "S04": (lambda _, tries: len(tries) <= 6,),
    "S06": (lambda got, _: got.took_s <= 100,),
    "S09": (lambda got, _: got.took_s <= 45,),
    "S11": (lambda got, _: got.took_s <= 8,),
    "S12": (lambda _, tries: len(tries) == 1,),
    "S13": (lambda _, tries: len(tries) == 1,),
    "S16": (lambda got, tries: got.model == "spare" and len(tries) <= 6,),
}
ADVISED: dict[str, tuple[Rule, ...]] = {
    "S01": (lambda _, tries: len(tries) >= 2 and tries[1] - tries[0] >= 1.8,),
    "S03": (lambda _, tries: len(tries) >= 2,),
    "S06": (lambda _, tries: len(tries) == 1,),
    "S07": (lambda got, _: got.took_s <= 15,),
    "S11": (lambda got, _: got.has_usage,),
    "S16": (lambda got, _: got.has_usage,),
}


async def flapping(client: httpx2.AsyncClient, wall: Wall) -> tuple[str, str]:
    """Verdict and figures of S15."""
    wall.began_at = time.monotonic()
    found: list[Got] = []
    for number in range(ASKED):
        await anyio.sleep(max(0.0, wall.began_at + number * EVERY_S - time.monotonic()))
        found.append(await ask(client, "S15"))
    ups_at = wall.began_at + DOWN_S
    tries = wall.tries["S15"]
    asked_down = sum(number * EVERY_S < DOWN_S for number in range(ASKED))
    tried_down = sum(one < ups_at for one in tries)
    back = [one - ups_at for one in tries if one >= ups_at]
    figures = f"{tried_down} tries for {asked_down} requests while down, "
    figures += f"back after {back[0]:.1f} s" if back else "not back"
    is_back = bool(back) and back[0] <= 30
    if not all(one.is_whole for one in found) or not is_back or tried_down > asked_down:
        return "fail", figures
    return "pass", figures


def config(port: int, at: int, *, hold: str) -> str:
    lines = ["[gateway]", "enabled = true", f"port = {at}", f'hold = "{hold}"']
    names = {fault: host_of(fault) for fault in FAULTS} | {"spare": "127.0.0.1"}
    for name, host in names.items():
        lines += [f"[backends.{name}]", 'kind = "openai-http"', 'api_mode = "chat_completions"']
        lines += [f'base_url = "http://{host}:{port}/v1"', f'model = "{name}"', 'cost = "local"']
        lines += [f"context_tokens = {100_000 if name == 'spare' else 8192}"]
        lines += ["first_answer_s = 10", "stall_s = 10"]
    # A provider that is down is looked for as often after its second failure as after its first.
    lines += ["[policy.overloaded]", "growth = 1"]
    lines += ["[chains]", *(f'{fault} = ["{fault}", "spare"]' for fault in FAULTS)]
    return "\n".join(lines) + "\n"


async def faults(place: Path, hold: str) -> list[Row]:
    found: dict[str, tuple[str, str]] = {}
    port = free_port()
    async with wall() as one, running(place, config(one.port, port, hold=hold)) as daemon:
        await listening(port)
        token = (Path(daemon.state_dir) / "gateway.token").read_text().strip()
        async with httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{port}",
            headers={"authorization": f"Bearer {token}"},
            timeout=None,
            trust_env=False,
        ) as client:

            async def one_of(fault: str) -> None:
                if fault == "S15":
                    found[fault] = await flapping(client, one)
                    return
                got = await ask(client, fault)
                alive = await ask(client, "spare")
                judged = verdict(
                    got,
                    one.tries[fault],
                    is_alive=alive.is_whole,
                    is_prefilled=bool(one.prefilled),
                )
                told = got.error[:60] if got.error else f"the whole answer of {got.model}"
                found[fault] = judged, f"{got.took_s:.1f} s, {told}"

            async with anyio.create_task_group() as tasks:
                for fault in FAULTS:
                    tasks.start_soon(one_of, fault)
    passed = sum(judged == "pass" for judged, _ in found.values())
    safe = sum(judged == "safe" for judged, _ in found.values())
    rows = [
        Row(
            what=f"faults: {fault} {WHAT[fault]}, {hold}",
            measured=found[fault][0],
            beside=found[fault][1],
        )
        for fault in FAULTS
    ]
    budget = BUDGET_PASSED[hold]
    rows.append(
        Row(
            what=f"faults: passed of 16, {hold}",
            measured=f"{passed}",
            beside=f"budget {budget}, safe besides {safe}",
            ratio=budget / max(1, passed),
            at_most=1.0,
        )
    )
    return rows


async def measure(place: Path) -> list[Row]:
    found: dict[str, list[Row]] = {}

    async def run(hold: str) -> None:
        found[hold] = await faults(place / hold, hold)

    async with anyio.create_task_group() as tasks:
        for hold in BUDGET_PASSED:
            tasks.start_soon(run, hold)
    return [row for hold in BUDGET_PASSED for row in found[hold]]
