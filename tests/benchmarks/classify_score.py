"""
Score `classify` on labelled messages: `python -m tests.benchmarks.classify_score FILE`.

Every line of FILE is one item: `text`, `platform`, `http_status`, `headers`, and its label:
`reason`, `also_ok`, `retryable`, `should_fallback`, `reset_s`, `reset_at`, `thread`. Each goes
through a daemon (one is started, or `--socket` names it) as output of an unknown stream, without
an exit status. `--exit-0-on-benign` repeats the harmless ones with the status that they end with.
"""

import argparse
import collections
import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import anyio
from msgspec import Struct
from tests.benchmarks.actions import is_right_action
from tests.benchmarks.stated_times import Item, is_reset
from tests.support.daemon import running

from fallbackd_client.aio import AsyncClient

Answer = dict[str, Any] | None

KINDS = {
    "openai-api": "openai-http",
    "codex-legacy": "codex",
    "anthropic-api": "anthropic-http",
    "google-api": "google-http",
    "bedrock": "bedrock-http",
    "azure-openai": "azure-http",
    "openrouter": "openrouter-http",
    "ollama": "ollama-http",
}
OWN_KINDS = [
    "claude",
    "codex",
    "opencode",
    "gemini",
    "numasec",
    "copilot",
    "aider",
    "goose",
    "qwen",
    "kimi",
    "crush",
    "hermes",
]
SAME = {
    "tls": "network",
    "local_network": "network",
    "provider_policy": "content_policy",
    "stalled": "timeout",
    "permission": "auth",
    "not_configured": "auth",
}
BENIGN = "benign"
ENOUGH = 10
"""Reasons with fewer items are counted, and not judged on their own."""


class Score(Struct, kw_only=True):
    items: int = 0
    strict: int = 0
    lenient: int = 0
    action: int = 0
    benign: int = 0
    alarms: int = 0
    retryable: int = 0
    fallback: int = 0
    resets: int = 0
    resets_right: int = 0
    resets_unasked: int = 0
    of_reason: collections.Counter[str] = collections.Counter()
    found_of_reason: collections.Counter[str] = collections.Counter()
    wrong: list[str] = []


def kind_of(item: Item) -> str:
    platform = str(item.get("platform") or "")
    return platform if platform in OWN_KINDS else KINDS.get(platform, "generic")


def params_of(
    item: Item, kind: str | None, *, now: float, exit_code: int | None = None
) -> dict[str, Any]:
    evidence: dict[str, Any] = {"text": item["text"], "stream": "unknown"}
    for name in ("http_status", "headers"):
        if item.get(name) is not None:
            evidence[name] = item[name]
    if exit_code is not None:
        evidence["exit_code"] = exit_code
    return {"evidence": evidence, "kind": kind or kind_of(item), "now_at": now}


def reason_of(answer: Answer) -> str:
    if answer is None:
        return BENIGN
    reason: str = answer["reason"]
    return SAME.get(reason, reason)


def add(score: Score, item: Item, answer: Answer, *, now: float) -> None:
    label, got = item["reason"], reason_of(answer)
    is_right, is_fair = got == label, got == label or got in item["also_ok"]
    score.items += 1
    score.strict += is_right
    score.lenient += is_fair
    score.action += is_right_action(got, label, item["also_ok"])
    score.of_reason[label] += 1
    score.found_of_reason[label] += is_right
    hop = answer is not None and answer["hop"]
    score.fallback += hop == item["should_fallback"]
    flags = "" if hop == item["should_fallback"] else " hop"
    if label == BENIGN:
        score.benign += 1
        score.alarms += answer is not None
    else:
        retry = answer is not None and answer["retryable"]
        score.retryable += retry == item["retryable"]
        flags += "" if retry == item["retryable"] else " retryable"
    stated = None if answer is None else answer["stated_reset_at"]
    if item["reset_s"] is not None or item["reset_at"] is not None:
        score.resets += 1
        right = stated is not None and is_reset(item, stated, now=now)
        score.resets_right += right
        flags += "" if right else f" reset({stated} for {item['reset_s'] or item['reset_at']})"
    elif stated is not None:
        score.resets_unasked += 1
        flags += f" unasked-reset({stated})"
    if flags or not is_right:
        mark = "" if is_right else "~ " if is_fair else "! "
        signature = "" if answer is None else answer["signature"]
        text = " ".join(item["text"].split())[:160]
        name = item.get("id", "")
        score.wrong.append(f"{mark}{name} {label} -> {got}{flags} [{signature}] {text}")


# --- the whole of it -----------------------------------------------------------------------------


def half_of(item: Item) -> int:
    """0 or 1, by thread: what one thread says of its error is in one half only."""
    return hashlib.sha256(str(item.get("thread", item["text"])).encode()).digest()[0] & 1


def score_all(items: Iterable[Item], answers: Iterable[Answer], *, now: float) -> Score:
    score = Score()
    for item, answer in zip(items, answers, strict=True):
        add(score, item, answer, now=now)
    return score


def render(score: Score, title: str) -> str:
    def share(part: int, whole: int) -> str:
        return f"{part / whole:6.1%} ({part}/{whole})" if whole else "  none"

    failures = score.items - score.benign
    lines = [
        f"{title}: {score.items} items",
        f"  strict           {share(score.strict, score.items)}",
        f"  lenient          {share(score.lenient, score.items)}",
        f"  right action     {share(score.action, score.items)}",
        f"  false alarms     {share(score.alarms, score.benign)}",
        f"  retryable        {share(score.retryable, failures)}",
        f"  should_fallback  {share(score.fallback, score.items)}",
        f"  reset times      {share(score.resets_right, score.resets)},"
        f" {score.resets_unasked} without a label",
    ]
    for reason, count in score.of_reason.most_common():
        few = "" if count >= ENOUGH else "  (few)"
        lines.append(f"  recall {reason:18} {share(score.found_of_reason[reason], count)}{few}")
    return "\n".join(lines)


async def ask(
    client: AsyncClient, items: list[Item], kind: str | None, *, now: float
) -> list[Answer]:
    return [await client.call("classify", params_of(item, kind, now=now)) for item in items]


async def alarms_with_status(
    client: AsyncClient, items: list[Item], kind: str | None, *, now: float
) -> list[str]:
    """The ids of harmless texts that raise an alarm although their program ended well."""
    found = []
    for item in items:
        if item["reason"] == BENIGN and not (item.get("http_status") or 0) >= 400:
            params = params_of(item, kind, now=now, exit_code=0)
            if await client.call("classify", params) is not None:
                found.append(item.get("id", item["text"][:40]))
    return found


async def run(args: argparse.Namespace) -> int:
    with Path(args.file).open(encoding="utf-8") as lines:
        items = [json.loads(line) for line in lines if line.strip()]
    if args.half is not None:
        items = [item for item in items if half_of(item) == args.half]
    if args.socket:
        async with AsyncClient(args.socket) as client:
            await report(client, items, args)
        return 0
    with tempfile.TemporaryDirectory(prefix="fallbackd-score-") as place:
        async with running(Path(place)) as daemon:
            await report(daemon.client, items, args)
    return 0


async def report(client: AsyncClient, items: list[Item], args: argparse.Namespace) -> None:
    now = time.time()
    score = score_all(items, await ask(client, items, args.kind, now=now), now=now)
    part = "" if args.half is None else f", half {args.half}"
    print(render(score, f"{Path(args.file).name}{part}"))
    if args.exit_0_on_benign:
        alarms = await alarms_with_status(client, items, args.kind, now=now)
        print(f"  false alarms with exit status 0: {len(alarms)} {' '.join(alarms)}")
    for line in score.wrong if args.errors else ():
        print(line)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="classify_score", description=__doc__)
    parser.add_argument("file", metavar="FILE")
    parser.add_argument("--socket", help="of a running daemon; without it one is started")
    parser.add_argument("--kind", help="ask for this kind instead of that of the platform")
    parser.add_argument("--half", type=int, choices=(0, 1), help="one half of the threads")
    parser.add_argument("--errors", action="store_true", help="list what is not right")
    parser.add_argument("--exit-0-on-benign", action="store_true")
    return anyio.run(run, parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
