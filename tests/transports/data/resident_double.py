"""A double of a program that takes prompts one after another, as `claude` does; see `SAYS`."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

NOTES = Path(os.environ["DOUBLE_NOTES"])
START = os.environ.get("DOUBLE_START", "")
conversation = sys.argv[sys.argv.index("--resume") + 1] if "--resume" in sys.argv else "c1"
turns = 0


def note(word: str, **more: Any) -> None:
    with NOTES.open("a") as file:
        file.write(json.dumps({"word": word, "pid": os.getpid(), **more}) + "\n")


def put(event: Any) -> None:
    text = event if isinstance(event, str) else json.dumps(event, separators=(",", ":")) + "\n"
    sys.stdout.write(text)
    sys.stdout.flush()


def result(text: str, **more: Any) -> None:
    event = {"type": "result", "subtype": "success", "is_error": False, "result": text}
    put({**event, "session_id": conversation, "total_cost_usd": 0.5 * turns, **more})


def hang() -> None:
    while True:
        line = sys.stdin.readline()
        if not line:
            sys.exit(0)
        event = json.loads(line)
        if event["type"] == "control_request" and event["request"]["subtype"] == "interrupt":
            note("interrupt")
            answered(event)
            return


def answered(event: Any) -> None:
    said = {"subtype": "success", "request_id": event["request_id"]}
    put({"type": "control_response", "response": said})


def sleeper(*, session: bool) -> None:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    child = subprocess.Popen(
        [sys.executable, "-I", "-c", code], start_new_session=session, stdin=subprocess.DEVNULL
    )
    note("child", child=child.pid)


def take(prompt: str) -> None:
    word, _, rest = prompt.partition(" ")
    put({"type": "system", "subtype": "init", "session_id": conversation})
    match word:
        case "say":
            result(rest)
        case "limit":
            result("limit reached", is_error=True, api_error_status=429)
        case "hang":
            hang()
            result("", subtype="error_during_execution", is_error=True)
            if rest == "late":
                result("an answer of the turn that was cancelled")
        case "deaf":
            signal.pause()
        case "die":
            os._exit(3)
        case "tool":
            sleeper(session=True)
            result("tool left running")
        case "helper":
            sleeper(session=False)
            result("helper left running")
        case "many":
            piece = "x" * 65_000
            for _ in range(int(rest)):
                put({"type": "stream_event", "event": {"note": piece}})
            result("many")
        case "ask":
            put({"type": "control_request", "request_id": "q1", "request": {"subtype": "may"}})
            note("told", event=json.loads(sys.stdin.readline()))
            result("asked")
        case "noise":
            put("no json\n{broken\n\x00\n" + json.dumps([1, {"type": "result"}]) + "\n")
            result("noise")
        case "then-noise":
            result("quiet")
            put("between two turns\n" + json.dumps({"type": "result", "result": "stray"}) + "\n")
            put("half a line")
        case "then-die":
            result("last words")
            os._exit(0)
        case "then-deaf":
            result("last words")
            note("deaf")
            signal.pause()
        case "slow":
            time.sleep(float(rest))
            result("slow")


note("start", argv=sys.argv[1:], cwd=os.getcwd(), mark=os.environ.get("FALLBACKD_ATTEMPT"))
if START == "refuses-to-start":
    sys.stderr.write("not logged in\n")
    sys.exit(2)
if START == "noisy":
    put("x" * 100_000 + "\n")
for line in sys.stdin:
    event = json.loads(line)
    if event["type"] == "control_request":
        if START == "old":
            refused = {"subtype": "error", "request_id": event["request_id"], "error": "what?"}
            put({"type": "control_response", "response": refused})
            continue
        note("control", request=event["request"])
        answered(event)
    elif event["type"] == "user":
        turns += 1
        text = event["message"]["content"][0]["text"]
        note("prompt", text=text)
        take(text)
