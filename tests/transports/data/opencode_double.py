"""
Speaks the calls and events of `opencode serve` that the transport uses, and does as it is told.

The prompt is the script: its first word names what happens. Recorded events are replayed from
the directory in RECORDED_EVENTS, with the session's id put in. Standard library only.
"""

import asyncio
import base64
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))
from opencode2 import EARLY, LATER, SecondFace

PORT = int(sys.argv[sys.argv.index("--port") + 1])
START = os.environ.get("DOUBLE_START", "")
NOTES = Path(os.environ["DOUBLE_NOTES"])
TOKEN = base64.b64encode(f"opencode:{os.environ['OPENCODE_SERVER_PASSWORD']}".encode()).decode()

listeners: set[asyncio.Queue] = set()
asked: list[dict] = []
sessions: dict[str, dict] = {}
background: set[asyncio.Task] = set()


def note(word: str, **more) -> None:
    with NOTES.open("a") as file:
        file.write(json.dumps({"word": word, **more}) + "\n")


def emit(session: str, kind: str, **properties) -> None:
    payload = {"type": kind, "properties": {"sessionID": session, **properties}}
    send({"directory": "x", "payload": payload})


def send(event: dict) -> None:
    events = [event] if face is None else face.events(event["payload"])
    for queue in listeners:
        for each in events:
            queue.put_nowait(each)


def status(session: str, kind: str, **more) -> None:
    sessions[session]["busy"] = kind != "idle"
    emit(session, "session.status", status={"type": kind, **more})
    if kind == "idle":
        emit(session, "session.idle")


def answer(session: str, text: str) -> None:
    number = len(sessions[session]["messages"])
    name = f"msg_a{number}" if number else "msg_a"
    info = {"id": name, "sessionID": session, "role": "assistant", "finish": "stop"}
    sessions[session]["messages"].append({"info": info, "parts": [{"type": "text", "text": text}]})
    emit(session, "message.updated", info=info)


def replay(session: str, name: str) -> None:
    lines = (Path(os.environ["RECORDED_EVENTS"]) / f"{name}.jsonl").read_text().splitlines()
    for line in lines:
        event = json.loads(line)["event"]
        old = event["properties"]["sessionID"]
        event = json.loads(json.dumps(event).replace(old, session))
        if event["type"] == "session.status":
            sessions[session]["busy"] = event["properties"]["status"]["type"] != "idle"
        emit(session, event["type"], **event["properties"] | {"sessionID": session})


def sleeper(cwd: str, *, stubborn: bool = False) -> subprocess.Popen:
    """A tool as opencode starts it: in a session of its own, its working directory the prompt's."""
    code = "import signal,sys,time\n"
    if stubborn:
        code += "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    code += "print('up', flush=True)\ntime.sleep(600)"
    tool = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code],
        cwd=cwd,
        start_new_session=True,
        stdout=subprocess.PIPE,
    )
    tool.stdout.readline()
    return tool


async def obey(session: str, fifo: str) -> None:
    """Do what the lines of a pipe say, and note each when it is done. Text is stored at its end."""
    state = sessions[session]
    info = {"id": "msg_o", "sessionID": session, "role": "assistant"}
    part = {"id": "prt_o", "messageID": "msg_o", "sessionID": session, "type": "text", "text": ""}
    with open(os.open(fifo, os.O_RDWR)) as lines:
        while line := (await asyncio.to_thread(lines.readline)).strip():
            word, _, rest = line.partition(" ")
            match word:
                case "begin":
                    state["messages"].append({"info": info, "parts": [part]})
                    emit(session, "message.updated", info=info)
                    emit(session, "message.part.updated", part=part)
                case "delta":
                    said = {"messageID": "msg_o", "partID": "prt_o", "field": "text"}
                    emit(session, "message.part.delta", **said, delta=rest)
                case "text":
                    part["text"] = rest
                    emit(session, "message.part.updated", part=part)
                case "tool":
                    state["tool"] = sleeper(state["cwd"])
                    run = {"status": "running", "input": {"pid": state["tool"].pid}}
                    tool = {
                        "id": "prt_t",
                        "type": "tool",
                        "tool": "bash",
                        "callID": "c",
                        "state": run,
                    }
                    state["messages"][-1]["parts"].append(tool)
                    emit(session, "message.part.updated", part=tool)
                case "child":
                    name = f"{session}_child"
                    sessions[name] = {"cwd": state["cwd"], "busy": True, "tool": None}
                    born = {"id": name, "parentID": session}
                    said = {"id": "msg_c", "sessionID": name, "role": "assistant"}
                    sessions[name] |= {"info": born, "messages": [{"info": said, "parts": []}]}
                    emit(name, "session.created", info=born)
                    emit(name, "message.updated", info=said)
                case "ask":
                    asked.append({"id": "per_o", "sessionID": session, "permission": "bash"})
                    emit(session, "permission.asked", **asked[-1])
                case "fail":
                    error = {"name": "APIError", "data": {"message": "no key", "statusCode": 401}}
                    emit(session, "session.error", error=error)
                    info |= {"error": error, "time": {"completed": 1}}
                    status(session, "idle")
                case "end":
                    info |= {"finish": "stop", "time": {"completed": 1}}
                    emit(session, "message.updated", info=info)
                    status(session, "idle")
                case "quiet":
                    state["busy"] = False
            note("obeyed", line=line)


async def prompt(session: str, body: dict) -> None:
    state = sessions[session]
    text = body["parts"][0]["text"]
    word, _, rest = text.partition(" ")
    note("prompt", session=session, cwd=state["cwd"], model=body.get("model"), text=text)
    emit(session, "message.updated", info={"id": "msg_u", "role": "user", "sessionID": session})
    status(session, "busy")
    match word:
        case "replay":
            replay(session, rest)
            if rest == "answer":
                answer(session, "whole answer")
        case "say":
            answer(session, rest)
            status(session, "idle")
        case "retry":
            status(session, "retry", attempt=1, message="Rate limit reached", next=0)
        case "later":
            next_at = (time.time() + float(rest.split()[0])) * 1000
            status(session, "retry", attempt=1, message="Rate limit reached", next=next_at)
        case "beats":
            while True:
                send({"payload": {"type": "server.heartbeat", "properties": {}}})
                note("beat")
                await asyncio.sleep(0.1)
        case "tool" | "stubborn" | "leaky":
            tool = sleeper(state["cwd"], stubborn=word == "stubborn")
            state["tool"] = tool if word == "tool" else None
            part = {"id": "p1", "type": "tool", "tool": "bash", "callID": "c1"}
            part["state"] = {"status": "running", "input": {"pid": tool.pid}}
            emit(session, "message.part.updated", part=part)
            if word == "leaky":
                answer(session, "left something behind")
                status(session, "idle")
        case "unstoppable":
            state["deaf"] = True
            status(session, "retry", attempt=1, message="deaf", next=0)
        case "ask":
            emit(session, "permission.asked", id="per_1", permission="bash")
        case "question":
            emit(session, "question.asked", id="que_1")
        case "gap":
            for queue in listeners:
                queue.put_nowait(None)
            answer(session, "unheard")
            sessions[session]["busy"] = False
        case "child":
            emit("ses_child", "session.created", info={"id": "ses_child", "parentID": session})
            emit("ses_child", "session.status", status={"type": "busy"})
            emit("ses_child", "session.idle")
            emit("ses_stranger", "session.status", status={"type": "busy"})
            answer(session, "with help")
            status(session, "idle")
        case "obey":
            await obey(session, rest)
        case "die":
            print("panic: out of luck", file=sys.stderr, flush=True)
            os._exit(3)
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)


def route(method: str, path: str, cwd: str, body: dict):
    steps = path.strip("/").split("/")
    match method, steps:
        case "GET", ["global", "health"]:
            return 200, {"healthy": True}
        case "GET", ["api", "info"]:
            return 200, {"version": "3.0.0", "pid": os.getpid(), "urls": []}
        case "POST", ["session"]:
            if cwd.endswith("nowhere"):
                return 500, {"name": "UnknownError", "data": {"message": "Unexpected error"}}
            name = f"ses_{len(sessions) + 1}"
            sessions[name] = {"cwd": cwd, "busy": False, "messages": [], "tool": None}
            return 200, {"id": name, "title": body["title"], "directory": cwd}
        case "GET", ["session", "status"]:
            return 200, {name: {"type": "busy"} for name, s in sessions.items() if s["busy"]}
        case "POST", ["session", name, "prompt_async"]:
            if body["parts"][0]["text"] == "refuse":
                return 400, {"name": "BadRequest", "data": {"message": "no such thing"}}
            task = asyncio.get_running_loop().create_task(prompt(name, body))
            background.add(task)
            return 204, None
        case "POST", ["session", name, "abort"]:
            note("abort", session=name)
            state = sessions[name]
            if not state.get("deaf"):
                if state["tool"] is not None:
                    state["tool"].kill()
                    state["tool"].wait()
                status(name, "idle")
            return 200, True
        case "GET", ["session", name, "children"]:
            note("looked", session=name)
            born = [s["info"] for s in sessions.values() if "info" in s]
            return 200, [each for each in born if each["parentID"] == name]
        case "GET", ["session", name] if name in sessions:
            return 200, {"id": name, "directory": sessions[name]["cwd"]}
        case "DELETE", ["session", name]:
            note("delete", session=name)
            return 200, sessions.pop(name, None) is not None
        case "POST", ["instance", "dispose"]:
            note("dispose", cwd=cwd, busy=[s["busy"] for s in sessions.values() if s["cwd"] == cwd])
            return 200, True
        case "GET", ["permission"]:
            return 200, asked
        case "GET", ["session", name, "message"] if name not in sessions:
            return 404, {"name": "NotFoundError", "data": {"message": f"Session not found: {name}"}}
        case "GET", ["session", name, "message"]:
            return 200, sessions[name]["messages"]
        case "POST", ["permission" | "question" as kind, name, reply]:
            note(kind, id=name, reply=body.get("reply", reply))
            if asked:
                asked.clear()
                return 200, True
            session = next(reversed(sessions))
            answer(session, f"{kind} {body.get('reply', reply)}")
            status(session, "idle")
            return 200, True
    return 404, {"name": "NotFound", "data": {"message": path}}


async def first(method: str, path: str, cwd: str, body: object) -> tuple[int, object]:
    return route(method, path, cwd, body or {})


VERSION = {"second": LATER, "early": EARLY}.get(START)
face = None if VERSION is None else SecondFace(first, version=VERSION)


async def events(writer: asyncio.StreamWriter) -> None:
    queue: asyncio.Queue = asyncio.Queue()
    listeners.add(queue)
    connected = {"type": "server.connected"}
    inside = {"payload": {**connected, "properties": {}}}
    queue.put_nowait(inside if face is None else {**connected, "id": "evt_0", "data": {}})
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
    try:
        while (event := await queue.get()) is not None:
            writer.write(b"data: " + json.dumps(event).encode() + b"\n\n")
            await writer.drain()
    finally:
        listeners.discard(queue)


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while head := (await reader.readuntil(b"\r\n\r\n")).decode():
            first, *lines = head.split("\r\n")
            method, target, _ = first.split(" ")
            headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines if line)}
            raw = await reader.readexactly(int(headers.get("content-length", "0")))
            if headers.get("authorization") != f"Basic {TOKEN}":
                writer.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")
                continue
            url = urlsplit(target)
            stream = "/global/event" if face is None and START != "version-3" else "/api/event"
            if url.path == stream:
                await events(writer)
                return
            if START == "version-3" and url.path != "/api/info":
                page = b"<!doctype html><div id=root></div>"
                start = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {len(page)}"
                writer.write(start.encode() + b"\r\n\r\n" + page)
                continue
            cwd = parse_qs(url.query).get("directory", [""])[0]
            if b'"swallow"' in raw:
                note("swallowed")
                await asyncio.Event().wait()
            body = json.loads(raw) if raw else {}
            kind = "application/json"
            if face is None:
                code, value = route(method, url.path, cwd, body)
            else:
                query = {key: one[0] for key, one in parse_qs(url.query).items()}
                code, value = await face.answer(method, url.path, query, body)
                kind = "text/html" if isinstance(value, str) else kind
            data = b"" if value is None else json.dumps(value).encode()
            start = (
                f"HTTP/1.1 {code} X\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n\r\n"
            )
            writer.write(start.encode() + data)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def main() -> None:
    note("start", pid=os.getpid(), tmpdir=os.environ["TMPDIR"], cwd=str(Path.cwd()))
    (Path(os.environ["TMPDIR"]) / "leak.so").write_bytes(b"x" * 100)
    if START == "broken":
        print(
            "\x1b[91m\x1b[1mError: \x1b[0mConfig file is not valid JSON(C)",
            file=sys.stderr,
            flush=True,
        )
        sys.exit(1)
    if START == "port-taken-once" and NOTES.read_text().count('"start"') == 1:
        print("Error: Unexpected error / ServeError", file=sys.stderr, flush=True)
        sys.exit(1)
    if START == "silent":
        await asyncio.Event().wait()
    await asyncio.start_server(serve, "127.0.0.1", PORT)
    name = "opencode server" if face is None else "server"
    print(f"{name} listening on http://127.0.0.1:{PORT}", flush=True)
    await asyncio.Event().wait()


asyncio.run(main())
