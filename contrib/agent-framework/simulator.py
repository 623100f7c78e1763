"""A provider on loopback that speaks chat completions and fails as its script says, by key."""

import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Refusal = tuple[int, dict[str, Any], dict[str, str]]
"""Status, error body, headers."""

THROTTLED: Refusal = (429, {"message": "Too Many Requests"}, {})
USED_UP: Refusal = (
    429,
    {"type": "usage_limit_reached", "message": "The usage limit has been reached"},
    {},
)
REVOKED: Refusal = (401, {"code": "token_revoked", "message": "Token has been revoked"}, {})
NO_MONEY: Refusal = (402, {"message": "Payment Required"}, {})


class Simulator:
    """
    `with Simulator({"sk-1": THROTTLED}) as provider:` answers on `provider.url`.

    Attributes:
        calls: The key of each call, in order.
    """

    def __init__(self, refusals: Mapping[str, Refusal] | None = None) -> None:
        self.refusals = dict(refusals or {})
        self.calls: list[str] = []
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> "Simulator":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, key: str, body: Mapping[str, Any]) -> Refusal:
        with self._lock:
            self.calls.append(key)
        refusal = self.refusals.get(key)
        if refusal is not None:
            status, error, headers = refusal
            return status, {"error": error}, headers
        text = f"answered with {body.get('model')}"
        choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 7, "completion_tokens": 3}
        return 200, {"choices": [choice], "usage": usage}, {}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        simulator = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                size = int(self.headers.get("content-length", 0))
                body = json.loads(self.rfile.read(size) or b"{}")
                key = self.headers.get("authorization", "").removeprefix("Bearer ")
                status, answer, headers = simulator.answer(key, body)
                data = json.dumps(answer).encode()
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler
