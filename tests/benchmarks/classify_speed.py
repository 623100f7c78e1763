"""
What it costs to watch the output of an agent: its parser, line by line, then the verdict.

Beside a plain `for line in file` over the same bytes in the same run. Output of agents comes in
chunks of 64 KiB at most, and is read once. The learned model stands beside a loop of Python.
"""

import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import anyio.to_thread
from tests.benchmarks.table import Row
from tests.classify.test_hostile import UNITS

from fallbackd.backends import KINDS, SIGNATURES
from fallbackd.backends.spec import Options
from fallbackd.classify.classifier import classify
from fallbackd.classify.model import shipped
from fallbackd.core.protocol import Chunk, Evidence, ProcessExit, Reply, StreamName

ROUNDS = 7
CHUNK_BYTES = 65_536
LINES = 20_000
TIMES_PLAIN = 40.0
TIMES_DOUBLED = 2.2
TEXT_CHARS, SQUARES, TIMES_SQUARES = 4_000, 20_000, 4.0
"""Here the squares take 1.25 ms where nothing else runs: four times that is 5 ms."""
LINES_OF_OUTPUT, TIMES_WORST = 40, 8.0
"""Eight times the squares is 10 ms."""
MESSAGES = Path(__file__).parents[1] / "classify/data/messages"
NOW = 1785578400.0

WORDS = "The parser now keeps the last window. HTTP 429 is retried, src/client.py:118 says why. "


def claude(lines: int) -> bytes:
    tool = {"type": "tool_result", "tool_use_id": "t", "content": WORDS * 12}
    events = [
        {
            "type": "assistant",
            "message": {"model": "m", "content": [{"type": "text", "text": WORDS}]},
        },
        {"type": "user", "message": {"content": [tool]}},
        {"type": "stream_event", "event": {"delta": {"text": WORDS}}},
    ]
    return _jsonl(events, lines)


def codex(lines: int) -> bytes:
    ran = {"type": "command_execution", "command": "make", "aggregated_output": WORDS * 12}
    events = [
        {"type": "item.started", "item": {"id": "1", **ran}},
        {"type": "item.completed", "item": {"id": "1", **ran, "exit_code": 0}},
        {"type": "item.completed", "item": {"id": "2", "type": "agent_message", "text": WORDS}},
    ]
    return _jsonl(events, lines)


def prose(lines: int) -> bytes:
    parts = [WORDS, "+    raise RateLimitError('Too many requests')", "", "- handles 503 and 529"]
    return "".join(f"{parts[n % 4]}\n" for n in range(lines)).encode()


def _jsonl(events: Sequence[Mapping[str, object]], lines: int) -> bytes:
    encoded = [json.dumps(event).encode() + b"\n" for event in events]
    return b"".join(encoded[n % len(encoded)] for n in range(lines))


OUTPUTS: dict[str, tuple[str, StreamName, Callable[[int], bytes]]] = {
    "claude, events": ("claude", "stdout", claude),
    "codex, events": ("codex", "stdout", codex),
    "any program, text on stdout": ("generic-cli", "stdout", prose),
    "any program, text on stderr": ("generic-cli", "stderr", prose),
}


async def measure(place: Path) -> list[Row]:
    return await anyio.to_thread.run_sync(_measure, place)


def _measure(place: Path) -> list[Row]:
    rows: list[Row] = []
    for name, (kind, stream, make) in OUTPUTS.items():
        small, large = place / "small", place / "large"
        small.write_bytes(make(LINES))
        large.write_bytes(make(2 * LINES))
        plain_s, once_s, twice_s = [], [], []
        for _ in range(ROUNDS):
            plain_s.append(timed(read_lines, small))
            once_s.append(timed(watch, small, kind, stream))
            twice_s.append(timed(watch, large, kind, stream))
        plain, once, twice = min(plain_s), min(once_s), min(twice_s)
        size = small.stat().st_size / 1e6
        rows.append(
            Row(
                what=f"watched: {name}",
                measured=f"{size / once:,.0f} MB/s",
                beside=f"for line in file {size / plain:,.0f} MB/s",
                ratio=once / plain,
                at_most=TIMES_PLAIN,
            )
        )
        rows.append(
            Row(
                what=f"watched: {name}, twice as long",
                measured=f"{twice * 1e3:.1f} ms",
                beside=f"once {once * 1e3:.1f} ms",
                ratio=twice / once,
                at_most=TIMES_DOUBLED,
            )
        )
    return [*rows, *_pasted(place), _guessed(), _worst()]


def _pasted(place: Path) -> list[Row]:
    """A tail of mixed output as `classify` gets it, long enough that its middle is left out."""
    text = prose(LINES).decode()
    (place / "pasted").write_text(text)
    once_s = min(timed(judge, text) for _ in range(ROUNDS))
    twice_s = min(timed(judge, text * 2) for _ in range(ROUNDS))
    plain_s = min(timed(read_lines, place / "pasted") for _ in range(ROUNDS))
    return [
        Row(
            what="classified: one long text",
            measured=f"{once_s * 1e3:.1f} ms",
            beside=f"for line in file {plain_s * 1e3:.1f} ms",
            ratio=once_s / plain_s,
            at_most=TIMES_PLAIN,
        ),
        Row(
            what="classified: one long text, twice as long",
            measured=f"{twice_s * 1e3:.1f} ms",
            ratio=twice_s / once_s,
            at_most=TIMES_DOUBLED,
        ),
    ]


def _guessed() -> Row:
    """What the learned model costs, on what programs print: four thousand characters of it."""
    files = sorted(MESSAGES.glob("*.json"))
    messages = [one["text"] for file in files for one in json.loads(file.read_bytes())["messages"]]
    whole = "\n".join(messages)
    texts = [whole[at : at + TEXT_CHARS] for at in range(0, 40 * TEXT_CHARS, TEXT_CHARS)]
    model = shipped()
    guessed_s, plain_s = [], []
    for _ in range(ROUNDS):
        plain_s.append(timed(squares))
        guessed_s.append(timed(lambda: [model.guess(text) for text in texts]) / len(texts))
    guessed, plain = min(guessed_s), min(plain_s)
    return Row(
        what="guessed: a text of 4,000 characters",
        measured=f"{guessed * 1e3:.2f} ms",
        beside=f"{SQUARES:,} squares {plain * 1e3:.2f} ms",
        ratio=guessed / plain,
        at_most=TIMES_SQUARES,
    )


def _worst(lines: int = 100_000) -> Row:
    """The dearest verdict of a fuzz: lines of errors with parts repeated, cut and mixed."""
    luck = random.Random(7)
    files = sorted(MESSAGES.glob("*.json"))
    said = [one["text"] for file in files for one in json.loads(file.read_bytes())["messages"]]
    parts = [part for text in said for part in text.split()] + UNITS
    judge_text("Error: x")  # what is built once
    plain_s = min(timed(squares) for _ in range(ROUNDS))
    worst_s = 0.0
    for _ in range(lines // LINES_OF_OUTPUT):
        text = "\n".join(_fuzzed(luck, said, parts) for _ in range(LINES_OF_OUTPUT))
        spent_s = timed(judge_text, text)
        if spent_s > worst_s:  # the machine may have been busy
            worst_s = max(worst_s, min(timed(judge_text, text + " ") for _ in range(2)))
    return Row(
        what=f"classified: the worst of {lines:,} fuzzed lines",
        measured=f"{worst_s * 1e3:.1f} ms",
        beside=f"{SQUARES:,} squares {plain_s * 1e3:.2f} ms",
        ratio=worst_s / plain_s,
        at_most=TIMES_WORST,
    )


def _fuzzed(luck: random.Random, said: Sequence[str], parts: Sequence[str]) -> str:
    match luck.randrange(4):
        case 0:
            return luck.choice(parts) * luck.randrange(1, 40)
        case 1:
            return " ".join(luck.choices(parts, k=luck.randrange(1, 30)))
        case 2:
            text = luck.choice(said)
            return text[luck.randrange(len(text)) :]
        case _:
            return f"Error: {luck.choice(said)}"


def judge_text(text: str) -> None:
    evidence = Evidence(text=text, stream="unknown", exit_code=1)
    classify(evidence, SIGNATURES["codex"], now=NOW, kind="codex")


def squares() -> None:
    sum(number * number for number in range(SQUARES))


def timed(do: Callable[..., object], *args: object) -> float:
    before = time.process_time()
    do(*args)
    return time.process_time() - before


def read_lines(path: Path) -> None:
    with path.open() as lines:
        for _ in lines:
            pass


def watch(path: Path, kind: str, stream: StreamName) -> None:
    parser = KINDS[kind].parser(Options())
    with path.open("rb") as file:
        while data := file.read(CHUNK_BYTES):
            parser.feed(Chunk(stream, data, NOW))
    outcome = parser.finish(ProcessExit(gone=True, code=1, at=NOW))
    if not isinstance(outcome, Reply):
        classify(outcome, KINDS[kind].rules, now=NOW)


def judge(text: str) -> None:
    classify(Evidence(text=text, stream="unknown"), (), now=NOW)
