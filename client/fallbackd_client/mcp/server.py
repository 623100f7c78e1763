"""
The server: one thread reads, each tool call has a thread and a connection of its own.

Nothing here knows what a tool does.
"""

from __future__ import annotations

import json
import sys
import threading
import time

from fallbackd_client.client import Client
from fallbackd_client.errors import ClientError, NoDaemon
from fallbackd_client.mcp import protocol, tools
from fallbackd_client.mcp.call import Abandoned, Call, NeedsInput, ToolFailed
from fallbackd_client.mcp.protocol import (
    MAX_LINE_BYTES,
    Answer,
    LineReader,
    LineWriter,
    Malformed,
    Peer,
    Request,
    TooLong,
)
from fallbackd_client.wire.codes import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST
from fallbackd_client.wire.codes import METHOD_NOT_FOUND as NO_METHOD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from fallbackd_client.calls import Json
    from fallbackd_client.mcp.tools import Offer

MAX_CALLS = 32
"""Under way at once; a call that waits costs a thread and a connection."""
LAST_CALLS_S = 2.0
"""How long calls may still be answered after the client has closed its side."""
LAST_CANCELS_S = 10.0
"""How long work may still be stopped that the client has cancelled before."""
_POLL_S = 0.05
_CONNECT_S = 0.3
_RECONNECT_S = 60.0
_LOOK_S = 1.0


class Server:
    """
    Args:
        path: Of the daemon's socket; None: found at each call.
        offer: Which tools there are.
    """

    def __init__(self, reader: LineReader, writer: LineWriter, *, path: str | None, offer: Offer):
        self._reader = reader
        self._writer = writer
        self._path = path
        self._offer = offer
        self._session = Peer()
        self._lock = threading.Lock()
        self._calls: dict[str, Call] = {}
        self._asked: dict[str, _Asked] = {}
        self._last_asked = 0

    def serve(self) -> None:
        """Serve until the client closes its side."""
        for line in self._reader.lines():
            if isinstance(line, TooLong):
                self._refuse(protocol.too_long(line, MAX_LINE_BYTES))
            elif line.strip():
                for message in protocol.read(line):
                    self._take(message)
        self._finish()

    def _finish(self) -> None:
        """Short calls are answered to a client that still reads; work continues in the daemon."""
        waited_s = 0.0
        while waited_s < LAST_CANCELS_S:
            with self._lock:
                calls = list(self._calls.values())
            is_answering = waited_s < LAST_CALLS_S and self._writer.is_read()
            if not any(is_answering or one.cancelled.is_set() for one in calls):
                return
            time.sleep(_POLL_S)
            waited_s += _POLL_S

    def _take(self, message: Request | Answer | Malformed) -> None:
        match message:
            case Malformed():
                self._refuse(message)
            case Answer():
                with self._lock:
                    asked = self._asked.get(_key(message.id))
                if asked is not None:
                    asked.result = message.result
                    asked.done.set()
            case Request(has_id=False):
                if message.method == "notifications/cancelled":
                    self._cancel(message.params.get("requestId"))
            case Request():
                try:
                    self._answer(message)
                except Malformed as malformed:
                    self._refuse(malformed)
                except Exception:
                    _tell_bug()
                    self._refuse(Malformed(INTERNAL_ERROR, "a bug in fallbackd", message.id))

    def _refuse(self, malformed: Malformed) -> None:
        self._writer.send(protocol.error(malformed))

    def _answer(self, request: Request) -> None:
        peer = request.peer(self._session)
        found: dict[str, Json]
        match request.method:
            case "initialize":
                info = request.params.get("clientInfo")
                name = info.get("name") if isinstance(info, dict) else ""
                self._session = Peer(str(name or ""), request.params.get("capabilities"))
                found = protocol.initialized(request.params)
            case "server/discover":
                found = protocol.discovered()
                peer = Peer(is_stateless=True)
            case "tools/list":
                found = protocol.listed(self._offer.listed(self._look), peer)
            case "tools/call":
                self._begin(request, peer)
                return
            case "ping" if not peer.is_stateless:
                found = {}
            case _:
                raise Malformed(NO_METHOD, f"there is no method {request.method[:80]}", request.id)
        self._writer.send(protocol.result(request.id, found, peer))

    def _begin(self, request: Request, peer: Peer) -> None:
        name = request.params.get("name")
        tool = self._offer.find(name)
        if tool is None:
            known = ", ".join(self._offer.names)
            shown = f"there is no tool {str(name)[:80]!r}; known are {known}"
            raise Malformed(INVALID_PARAMS, shown, request.id)
        call = Call(
            request, peer, connect=self._connect, send=self._writer.send, ask=self._ask_client
        )
        key = _key(request.id)
        with self._lock:
            if key in self._calls:
                message = f"the id {key[:80]} belongs to a call that has not ended"
                raise Malformed(INVALID_REQUEST, message, request.id)
            if len(self._calls) >= MAX_CALLS:
                message = f"{MAX_CALLS} calls are under way; wait for one of them"
                raise Malformed(protocol.TOO_MANY_CALLS, message, request.id)
            self._calls[key] = call
        thread = threading.Thread(target=self._run, args=(call, tool), daemon=True, name="call")
        thread.start()

    def _run(self, call: Call, tool: tools.Tool) -> None:
        try:
            answer = protocol.result(call.id, _outcome(call, tool), call.peer)
        except Abandoned:
            answer = None
        except Exception:  # a bug in one tool is an error of that call
            _tell_bug()
            answer = protocol.error(Malformed(INTERNAL_ERROR, "a bug in fallbackd", call.id))
        with self._lock:
            del self._calls[_key(call.id)]
            is_wanted = not call.cancelled.is_set()
        if is_wanted:
            self._writer.send(answer)

    def _cancel(self, request_id: Json) -> None:
        """One that is not known has been answered meanwhile."""
        with self._lock:
            call = self._calls.get(_key(request_id))
            if call is not None:
                call.cancelled.set()

    def _ask_client(
        self,
        call: Call,
        method: str,
        params: dict[str, Json],
        limit_s: float,
        is_wanted: Callable[[], bool],
    ) -> Json:
        with self._lock:
            self._last_asked += 1
            asked_id = f"{protocol.NAME}-{self._last_asked}"
            asked = self._asked[_key(asked_id)] = _Asked()
        self._writer.send({"jsonrpc": "2.0", "id": asked_id, "method": method, "params": params})
        give_up_s = call.elapsed_s + limit_s
        try:
            while not asked.done.wait(_POLL_S):
                call.require_wanted()
                if call.elapsed_s >= give_up_s or not is_wanted():
                    break
            return asked.result
        finally:
            with self._lock:
                del self._asked[_key(asked_id)]
            if not asked.done.is_set():
                reason = {"requestId": asked_id, "reason": "no longer needed"}
                self._writer.send(protocol.notification("notifications/cancelled", reason))

    def _look(self) -> Client:
        """Connect for the reading thread, which must not wait for a daemon to come."""
        return Client(self._path, timeout_s=_LOOK_S, connect_s=0, reconnect_s=0)

    def _connect(self, pause: Callable[[float], None] = time.sleep) -> Client:
        return Client(self._path, connect_s=_CONNECT_S, reconnect_s=_RECONNECT_S, sleep=pause)


class _Asked:
    """A request of ours to the client."""

    __slots__ = ("done", "result")

    def __init__(self) -> None:
        self.done = threading.Event()
        self.result: Json = None


def _key(message_id: Json) -> str:
    """1, "1" and true are different ids."""
    return json.dumps(message_id)


def _outcome(call: Call, tool: tools.Tool) -> dict[str, Json]:
    try:
        tools.check(tool, call.arguments)
        return tools.load(tool)(call)
    except ToolFailed as failed:
        return _failed(str(failed))
    except ClientError as error:
        return _failed(_sentence(error))
    except NeedsInput as needs:
        return {
            "resultType": "input_required",
            "inputRequests": needs.requests,
            "requestState": needs.state,
        }


def _tell_bug() -> None:
    import traceback  # slow to load, and not needed

    traceback.print_exc(file=sys.stderr)


def _failed(sentence: str) -> dict[str, Json]:
    return {"content": [{"type": "text", "text": sentence}], "isError": True}


def _sentence(error: ClientError) -> str:
    """Word an error, with what the model or its user can do about it."""
    if isinstance(error, NoDaemon):
        return f"{error}. `fallbackd-client doctor` finds what is wrong."
    return str(error)
