"""One call of a tool: its arguments, its client, and what it says while it runs."""

from __future__ import annotations

import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from fallbackd_client.calls import Json
    from fallbackd_client.client import Client
    from fallbackd_client.mcp.protocol import Peer, Request

PROGRESS_EVERY_S = 8.0
"""Clients end a call after a silence; the shortest of them allow 60 s, people less."""


class ToolFailed(Exception):
    """The tool could not do it. The sentence is for the model that has called it."""


class Abandoned(Exception):
    """The client has cancelled the call: it gets no answer."""


class NeedsInput(Exception):
    """
    The call is to be made again with the client's answers.

    Args:
        requests: By name, what the client is to ask its user.
        state: Comes back with the answers.
    """

    def __init__(self, requests: dict[str, Json], state: str) -> None:
        super().__init__("the client has to ask its user")
        self.requests = requests
        self.state = state


class Call:
    """
    Args:
        connect: A client of the daemon, given how it is to pause between its tries.
        send: To the MCP client.
        ask: A request to the MCP client and its answer; None where it gave none. Sessions only.
    """

    def __init__(
        self,
        request: Request,
        peer: Peer,
        *,
        connect: Callable[[Callable[[float], None]], Client],
        send: Callable[[Json], None],
        ask: Callable[[Call, str, dict[str, Json], float, Callable[[], bool]], Json],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.id = request.id
        self.name = str(request.params.get("name"))
        given = request.params.get("arguments")
        self.arguments: dict[str, Json] = given if isinstance(given, dict) else {}
        self.meta = request.meta
        self.params = request.params
        self.peer = peer
        self._connect = connect
        self.cancelled = threading.Event()
        self._is_withdrawn = False
        self._send = send
        self._ask = ask
        self._monotonic = monotonic
        self._began_at = monotonic()
        self._said_at = self._began_at
        self._said = ""
        self._progress = 0.0

    @property
    def elapsed_s(self) -> float:
        return self._monotonic() - self._began_at

    def connect(self) -> Client:
        """Connect for this call alone: calls do not wait for each other."""
        return self._connect(self._pause)

    def require_wanted(self) -> None:
        """
        Raises:
            Abandoned: The client does not wait for the answer any more.
        """
        if self.cancelled.is_set():
            raise Abandoned

    def withdraw(self) -> None:
        """Wait for the daemon from now on, although the call was cancelled."""
        self._is_withdrawn = True

    def _pause(self, pause_s: float) -> None:
        if self._is_withdrawn:
            time.sleep(pause_s)
            return
        self.require_wanted()
        self.progress("the daemon is being restarted")
        self.cancelled.wait(pause_s)
        self.require_wanted()

    def progress(self, message: str) -> None:
        """Say what happens: at once where it has changed, else often enough to be seen alive."""
        token = self.meta.get("progressToken")
        if not isinstance(token, str | int) or isinstance(token, bool) or self.cancelled.is_set():
            return
        now = self._monotonic()
        if message == self._said and now - self._said_at < PROGRESS_EVERY_S:
            return
        self._said, self._said_at = message, now
        self._progress = max(round(now - self._began_at, 2), self._progress + 0.01)
        params = {"progressToken": token, "progress": self._progress}
        shown = f"{message}, {now - self._began_at:.0f} s"
        self._send(
            {
                "jsonrpc": "2.0",
                "method": "notifications/progress",
                "params": {**params, "message": shown},
            }
        )

    def ask(
        self,
        method: str,
        params: dict[str, Json],
        limit_s: float,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> Json:
        """
        Ask the client; None where it does not answer in time or refuses.

        Args:
            is_wanted: Called often; the request is withdrawn when it says no.

        Raises:
            Abandoned: The client has cancelled the call.
        """
        return self._ask(self, method, params, limit_s, is_wanted)
