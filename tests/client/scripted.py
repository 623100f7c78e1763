"""A daemon at the other end of a socket that does what a test tells it: a fake at the edge."""

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LIMIT_S = 60.0
"""Only a hang takes this long."""


class Peer:
    """One accepted connection."""

    def __init__(self, connection: socket.socket, requests: list[dict[str, Any]]) -> None:
        self._socket = connection
        self._socket.settimeout(LIMIT_S)
        self._file = connection.makefile("rb")
        self._requests = requests

    def read(self) -> dict[str, Any] | None:
        """The next request; None at the end."""
        try:
            line = self._file.readline()
        except (OSError, ValueError):  # closed meanwhile, by `stop`
            return None
        if not line:
            return None
        request: dict[str, Any] = json.loads(line)
        self._requests.append(request)
        return request

    def raw(self, data: bytes) -> None:
        self._socket.sendall(data)

    def say(self, message: Mapping[str, Any]) -> None:
        self.raw(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def answer(self, request: Mapping[str, Any], result: object) -> None:
        self.say({"id": request["id"], "result": result})

    def error(
        self, request: Mapping[str, Any], code: int, message: str = "no", data: object = None
    ) -> None:
        error: dict[str, Any] = {"code": code, "message": message}
        if data is not None:
            error["data"] = data
        self.say({"id": request["id"], "error": error})

    def event(self, **fields: object) -> None:
        self.say({"method": "event", "params": fields})

    def close(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._file.close()
        self._socket.close()


Script = Callable[[Peer], None]


class Failing:
    """An answer that is an error."""

    def __init__(self, code: int, message: str = "no", data: object = None) -> None:
        self.code, self.message, self.data = code, message, data


def answering(answers: Mapping[str, Any]) -> Script:
    """
    A script that answers by method until the caller goes.

    A value is the result, a `Failing` the error, a list is used up one by one (its last stays),
    a callable gets the params.
    """
    queues = {name: list(v) if isinstance(v, list) else [v] for name, v in answers.items()}

    def script(peer: Peer) -> None:
        while (request := peer.read()) is not None:
            queue = queues.get(request["method"])
            if queue is None:
                peer.error(request, -32601, f"there is no method {request['method']}")
                continue
            answer = queue.pop(0) if len(queue) > 1 else queue[0]
            if callable(answer):
                answer = answer(request.get("params") or {})
            if isinstance(answer, Failing):
                peer.error(request, answer.code, answer.message, answer.data)
            else:
                peer.answer(request, answer)

    return script


class Server:
    """
    Listens on `path`; connection n is given to script n, the last script serves all later ones.
    """

    def __init__(self, path: Path, scripts: tuple[Script, ...]) -> None:
        self.path = str(path)
        self.requests: list[dict[str, Any]] = []
        self.accepted = 0
        self.failures: list[BaseException] = []
        self._scripts = scripts
        self._peers: list[Peer] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        self._listener.listen(16)
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    def methods(self) -> list[str]:
        return [request["method"] for request in self.requests]

    def params(self, method: str) -> dict[str, Any]:
        """Of the last call of a method."""
        found = [one for one in self.requests if one["method"] == method]
        params: dict[str, Any] = found[-1]["params"]
        return params

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            script = self._scripts[min(self.accepted, len(self._scripts) - 1)]
            self.accepted += 1
            peer = Peer(connection, self.requests)
            self._peers.append(peer)
            thread = threading.Thread(target=self._serve, args=(script, peer), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, script: Script, peer: Peer) -> None:
        try:
            script(peer)
        except OSError:  # the caller has gone, or `stop` closed it meanwhile
            pass
        except BaseException as failure:
            self.failures.append(failure)
        finally:
            peer.close()

    def stop(self) -> None:
        try:
            self._listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._listener.close()
        self._acceptor.join(LIMIT_S)
        for peer in self._peers:
            peer.close()
        for thread in self._threads:
            thread.join(LIMIT_S)
        Path(self.path).unlink(missing_ok=True)
        if self.failures:
            raise self.failures[0]


@contextmanager
def serving(path: Path, *scripts: Script) -> Iterator[Server]:
    server = Server(path, scripts)
    try:
        yield server
    finally:
        server.stop()
