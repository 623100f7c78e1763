"""What a client meets at the port of the gateway."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "the-token"


@contextmanager
def listening(
    *,
    models: list[str],
    refuses: str = "",
    lacks: str = "",
    others: bool = False,
    asked: list[str] | None = None,
) -> Iterator[int]:
    """
    What the gateway answers to such requests, in front of no backend.

    Args:
        lacks: An API of which it has no models.
        others: A model that it does not list is answered too.
        asked: Gets the path of each request.
    """

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None: ...

        def say(self, status: int, value: Any) -> None:
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def is_known(self) -> bool:
            if asked is not None:
                asked.append(self.path)
            return self.headers["authorization"] == f"Bearer {TOKEN}"

        def do_GET(self) -> None:
            if not self.is_known():
                self.say(401, {"error": {}})
                return
            is_lacking = lacks and self.path.endswith(f"api={lacks}")
            data = [{"id": one} for one in ([] if is_lacking else models)]
            self.say(200, {"data": data, "serves_other_models": others})

        def do_POST(self) -> None:
            if asked is not None:
                asked.append(self.path)
            self.rfile.read(int(self.headers["content-length"]))
            self.say(404 if refuses and refuses in self.path else 400, {"error": {}})

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
