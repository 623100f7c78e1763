"""
The hands of an agent: tries what stands in a file, and prints what became of each.

    python3 hands.py TABLE              a line `NAME: done` or `NAME: WORD`, why it was refused
    python3 hands.py TABLE --way NAME   the answer of the last of several calls

A program of its own, which loads nothing but the standard library: an agent runs it.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys


class Line:
    """A connection to the control socket."""

    def __init__(self, place):
        self.peer = socket.socket(socket.AF_UNIX)
        self.peer.connect(place)
        self.lines = self.peer.makefile()

    def call(self, method, params):
        call = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        self.peer.sendall(json.dumps(call).encode() + b"\n")
        while True:
            answer = json.loads(self.lines.readline())
            if "id" in answer:  # not a notification
                return answer


def rpc(table, method, params):
    answer = Line(table["socket"]).call(method, params)
    if "error" in answer:
        return answer["error"].get("data", {}).get("kind", str(answer["error"]["code"]))
    wanted = table["had"].get(method)  # the field of a result that says that it was done
    return "done" if wanted is None or answer["result"].get(wanted) else "nothing"


def gateway(table, place, token, *headers, model="paid"):
    is_unix = place == "socket"
    with socket.socket(socket.AF_UNIX if is_unix else socket.AF_INET) as peer:
        peer.connect(table["gateway"] if is_unix else ("127.0.0.1", table["port"]))
        body = json.dumps({"model": model, "messages": [{"role": "user", "content": "x"}]})
        own = os.environ.get("FALLBACKD_GATEWAY_TOKEN", "none")
        head = ["POST /v1/chat/completions HTTP/1.1", "connection: close", *headers]
        head += ["x-api-key: " + token.replace("OWN", own)] if token else []
        head += [f"host: 127.0.0.1:{table['port']}", "content-type: application/json"]
        head += [f"content-length: {len(body)}", "", body]
        peer.sendall("\r\n".join(head).encode())
        status = peer.makefile("rb").readline().split()[1].decode()
    return "done" if status == "200" else status


def shell(table, line):
    ended = subprocess.run(["/bin/sh", "-c", line], capture_output=True, check=False)
    return "done" if ended.returncode == 0 else f"exit {ended.returncode}"


def mcp(table, tool, arguments):
    env = {**os.environ, "PYTHONPATH": table["path"]}
    command = [sys.executable, "-m", "fallbackd_client.cli.main", "--socket", table["socket"]]
    said = [
        {"id": 1, "method": "initialize", "params": table["hello"]},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": {"name": tool, "arguments": arguments}},
    ]
    with subprocess.Popen(
        [*command, "mcp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    ) as server:
        for one in said:
            server.stdin.write(json.dumps({"jsonrpc": "2.0", **one}) + "\n")
            server.stdin.flush()
        for line in server.stdout:
            answer = json.loads(line)
            if answer.get("id") == 2:
                break
        server.stdin.close()
    failed = "error" in answer or answer["result"].get("isError")
    return "refused" if failed else "done"


def passed_on(table, method, params):
    """By a process that has lost its parents, has a session of its own, and no variable."""
    read, write = os.pipe()
    again = [sys.executable, "-I", __file__, table["here"], "--passed", method, json.dumps(params)]
    subprocess.run(
        ["setsid", "-f", "env", "-i", *again], stdout=write, stderr=subprocess.DEVNULL, check=True
    )
    os.close(write)
    with os.fdopen(read) as said:
        return said.read().strip()


DOORS = {"rpc": rpc, "gateway": gateway, "shell": shell, "mcp": mcp, "passed on": passed_on}


def way(table, name):
    line, names = Line(table["socket"]), {}
    for number, (method, params) in enumerate(table["ways"][name]):
        text = json.dumps(params)
        for word, value in names.items():
            text = text.replace(word, value)
        answer = line.call(method, json.loads(text))
        names[f"#{number}"] = answer.get("result", {}).get("delegation", "")
    return answer.get("result", {}).get("text") or json.dumps(answer)


def main(place, *names):
    with open(place) as file:
        table = {**json.load(file), "here": place}
    if names[:1] == ("--passed",):
        print(rpc(table, names[1], json.loads(names[2])))
        return
    if names[:1] == ("--way",):
        print(way(table, names[1]))
        return
    for name, (door, *asked) in table["attempts"].items():
        try:
            word = DOORS[door](table, *asked)
        except OSError as error:
            word = type(error).__name__
        with contextlib.suppress(BrokenPipeError):
            print(f"{name}: {word}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
