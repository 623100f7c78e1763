"""A double of an agent that speaks the Agent Client Protocol; a prompt's first word says what."""

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
SESSION = f"s-{os.getpid()}"
FAILURES: dict[str, dict[str, Any]] = {
    "login": {"code": -32000, "message": "Authentication required"},
    "key": {"code": -32603, "message": "Internal error", "data": {"details": "401 bad key"}},
    "http": {"code": 429, "message": "Too many requests"},
    "limit": {"code": -32603, "message": "x", "data": {"codexErrorInfo": "usageLimitExceeded"}},
    "throttle": {"code": -32603, "message": "x", "data": {"errorKind": "rate_limit"}},
    "text": {"code": -32603, "message": "Internal error", "data": "500 Internal Server Error"},
}
turns = 0


def note(word: str, **more: Any) -> None:
    with NOTES.open("a") as file:
        file.write(json.dumps({"word": word, "pid": os.getpid(), **more}) + "\n")


def put(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def update(what: str, **more: Any) -> None:
    said = {"sessionId": SESSION, "update": {"sessionUpdate": what, **more}}
    put(method="session/update", params=said)


def say(text: str) -> None:
    update("agent_message_chunk", content={"type": "text", "text": text})


def next_message() -> dict[str, Any]:
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    found: dict[str, Any] = json.loads(line)
    return found


def until_cancelled() -> None:
    while next_message().get("method") != "session/cancel":
        pass
    note("cancelled")


def ask(**call: Any) -> str:
    options = [
        {"optionId": "a-1", "kind": "allow_once", "name": "Yes"},
        {"optionId": "r-1", "kind": "reject_once", "name": "No"},
    ]
    put(
        id="q1",
        method="session/request_permission",
        params={"sessionId": SESSION, "toolCall": call, "options": options},
    )
    outcome: dict[str, str] = next_message()["result"]["outcome"]
    note("told", outcome=outcome)
    return outcome.get("optionId", "")


def take(prompt: str) -> dict[str, Any]:
    global SESSION
    word, _, rest = prompt.partition(" ")
    result: dict[str, Any] = {"stopReason": "end_turn", "usage": {"inputTokens": 3}}
    if word in FAILURES:
        return {"error": FAILURES[word]}
    match word:
        case "say":
            for piece in rest.split(" "):
                say(f"{piece} ")
        case "nothing":
            pass
        case "thinks":
            update("agent_thought_chunk", content={"type": "text", "text": "hm"})
        case "hang":
            until_cancelled()
            result["stopReason"] = rest or "cancelled"
            if rest:
                say("as if nothing had been")
        case "deaf":
            signal.pause()
        case "die":
            os._exit(3)
        case "shell":
            call = {"toolCallId": "t1", "title": "Shell", "kind": "execute"}
            update("tool_call", **call, status="pending", rawInput={"command": rest})
            # Some ask with the name of the call alone.
            if ask(toolCallId="t1") == "a-1":
                subprocess.run(rest, shell=True, check=False)
                update("tool_call_update", toolCallId="t1", status="completed")
            else:
                update("tool_call_update", toolCallId="t1", status="failed")
            say("done")
        case "tool":
            call = {"toolCallId": "t1", "title": "Shell", "kind": "execute"}
            update("tool_call", **call, status="in_progress", rawInput={"command": "sleep"})
            code = "import time; time.sleep(600)"
            child = subprocess.Popen([sys.executable, "-I", "-c", code], start_new_session=True)
            note("child", child=child.pid)
            until_cancelled()
            result["stopReason"] = "cancelled"
        case "noise":
            sys.stdout.write('no json\n{broken\n\x00\n[1]\n{"id":7}\n')
            sys.stdout.write('{"jsonrpc":"2.0","id":"turn.999","result":{}}\n')
            put(method="fs/read_text_file", id="f1", params={"path": "/etc/passwd"})
            note("told", outcome=next_message())
            say("heard")
        case "long":
            say("x" * int(rest))
        case "codex":
            error = {"message": "Reconnecting... 1/5", "willRetry": True}
            error["codexErrorInfo"] = {"responseStreamDisconnected": {"httpStatusCode": 429}}
            error["additionalDetails"] = "exceeded retry limit, last status: 429"
            update("session_info_update", _meta={"codex": {"error": error}})
            error = {"message": "exceeded retry limit, last status: 429", "willRetry": False}
            update("session_info_update", _meta={"codex": {"error": error}})
            say("exceeded retry limit, last status: 429 Too Many Requests")
        case "slow":
            time.sleep(float(rest))
            say("slow")
        case "refusal":
            result["stopReason"] = "refusal"
    return {"result": result}


note("start", argv=sys.argv[1:], cwd=os.getcwd(), mark=os.environ.get("FALLBACKD_ATTEMPT"))
if START == "mute":
    signal.pause()
while True:
    message = next_message()
    method, params, id = message.get("method"), message.get("params", {}), message.get("id")
    note("called", method=method, params=params)
    answer: dict[str, Any] = {"result": {}}
    match method:
        case "initialize":
            answer["result"] = {
                "protocolVersion": 1,
                "agentCapabilities": {"loadSession": True},
                "agentInfo": {"name": "double", "version": "1.0"},
            }
        case "session/new" if START == "logged-out":
            answer = {"error": {"code": -32000, "message": "Authentication required"}}
        case "session/load" if START == "forgets":
            answer = {"error": {"code": -32603, "message": "Invalid session identifier"}}
        case "session/new" | "session/load":
            SESSION = params.get("sessionId", SESSION)
            if method == "session/load":
                say("what was said before")
            modes = [{"id": "auto"}, {"id": "default"}]
            answer["result"] = {
                "sessionId": SESSION,
                "modes": {"currentModeId": "auto", "availableModes": modes},
            }
        case "session/prompt":
            turns += 1
            answer = take(params["prompt"][0]["text"].rpartition("\n")[2])
    if id is not None and method is not None:
        put(id=id, **answer)
