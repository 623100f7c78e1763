"""
Programs named as the agent CLIs are, that print what the real ones have printed.

The lines are those of recorded runs; only times, ids and the answer's words are of no concern.
"""

import json
import shlex
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support.agents import program
from tests.support.daemon import ROOT

TRANSCRIPTS = ROOT / "tests" / "backends" / "transcripts"
RECORDED = {
    "codex": {"ok": "ok", "429": "429_rate", "503": "503"},
    "opencode": {"ok": "ok", "429": "429_rate", "503": "500"},
    "gemini": {"ok": "ok", "429": "429_rate_long", "503": "503"},
}
ANSWER = "PONG-OK from the fake provider."


def recorded(cli: str, run: str) -> dict[str, Any]:
    runs = json.loads((TRANSCRIPTS / f"{cli}.json").read_text())["runs"]
    found: dict[str, Any] = next(one for one in runs if one["name"] == run)
    return found


def body(cli: str, behaviour: str, *, say: str = ANSWER) -> str:
    """
    A shell script that does what `behaviour` says.

    Args:
        behaviour: `ok`, `429`, `503` as recorded, `exit N`, or lines of shell.
        say: Words of the answer instead of the recorded ones.
    """
    start = f'cat >/dev/null; echo >> "$HOME/{cli}.runs"\n'
    if behaviour.startswith("exit "):
        return f"{start}{behaviour}"
    if behaviour not in RECORDED["codex"]:
        return start + behaviour
    # Relatives of opencode print the same events.
    source = "opencode" if cli == "numasec" else cli
    run = recorded(source, RECORDED[source][behaviour])
    lines = [start]
    for _, stream, text in run["lines"]:
        if "Reconnecting" in text:
            continue  # told in the same second, retries are of no interest
        text = text.replace(ANSWER, json.dumps(say)[1:-1])
        lines.append(f"printf '%s\\n' {shlex.quote(text)}{' >&2' if stream == 'stderr' else ''}")
    # A run that was stopped from outside goes on until it is stopped again.
    lines.append("exec sleep 1000" if run["code"] is None else f"exit {run['code']}")
    return "\n".join(lines)


def install(
    directory: Path, behaviours: Mapping[str, str], *, say: Mapping[str, str] | None = None
) -> None:
    """
    Executables of these names in `directory`.

    Args:
        say: Words of the answer by name, instead of the recorded ones.
    """
    for cli, behaviour in behaviours.items():
        words = (say or {}).get(cli, ANSWER)
        program(directory, cli, body(cli, behaviour, say=words))


class Hermes:
    """An API on loopback that answers every request with `status` and `answer`."""

    def __init__(self, status: int, answer: dict[str, Any]) -> None:
        self.status = status
        self.answer = answer
        self.requests: list[dict[str, Any]] = []
        self.url = ""


HERMES_ANSWERS: dict[str, tuple[int, dict[str, Any]]] = {
    "ok": (
        200,
        {
            "choices": [{"message": {"content": "hermes says hello"}, "finish_reason": "stop"}],
            "usage": {},
        },
    ),
    "401": (401, {"error": {"message": "Invalid API key", "code": "invalid_api_key"}}),
    "503": (503, {"error": {"message": "Service Unavailable"}}),
}


@contextmanager
def hermes(behaviour: str = "ok") -> Iterator[Hermes]:
    """The API of a Hermes agent on a free port."""
    state = Hermes(*HERMES_ANSWERS[behaviour])

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            size = int(self.headers.get("content-length", 0))
            state.requests.append(json.loads(self.rfile.read(size)))
            data = json.dumps(state.answer).encode()
            self.send_response(state.status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=lambda: server.serve_forever(0.05), daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
