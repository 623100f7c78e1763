"""
The blocking client: a socket and JSON, nothing else.

```python
with Client() as client:
    answer = client.call("delegate", {"prompt": "…", "wait": "finished"})
```

Connects when first used and again when the connection was lost. What changes nothing, and a
`delegate` (which carries a `request_id`), is repeated after a loss; everything else raises.
"""

import threading
import time

from fallbackd_client.calls import (
    Lost,
    delay_s,
    encode_call,
    is_answer_to,
    is_repeatable,
    patience_s,
    read_answer,
    with_request_id,
)
from fallbackd_client.connection import Connection
from fallbackd_client.errors import NoDaemon, ProtocolError, RpcError
from fallbackd_client.paths import find_socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping
    from typing import TypeVar

    from msgspec import Struct

    from fallbackd_client.calls import Json
    from fallbackd_client.wire.envelope import Method

    P = TypeVar("P", bound=Struct)
    R = TypeVar("R")

_COMES_BACK = ("refused", "missing", "busy")
"""Causes that a daemon that is being restarted shows for a moment."""


class Client:
    """
    Safe to use from several threads; calls of one client go one after the other.

    Args:
        path: Of the socket; None: `paths.find_socket()` at each connect.
        timeout_s: Longest wait for an answer; calls that wait for work get that time on top.
        reconnect_s: How long a lost daemon may take to come back.
        connect_s: How long a first connection that is refused is tried again.
    """

    def __init__(
        self,
        path: str | None = None,
        *,
        timeout_s: float | None = 30.0,
        reconnect_s: float = 10.0,
        connect_s: float = 1.0,
        sleep: "Callable[[float], None]" = time.sleep,
        monotonic: "Callable[[], float]" = time.monotonic,
    ) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self._reconnect_s = reconnect_s
        self._connect_s = connect_s
        self._sleep = sleep
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._last_id = 0

    @property
    def path(self) -> str:
        """The socket that would be connected to now."""
        return self._path or find_socket()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(
        self,
        method: str,
        params: "Mapping[str, Json] | None" = None,
        *,
        timeout_s: float | None = -1.0,
    ) -> "Json":
        """
        Call any method with plain JSON.

        Args:
            timeout_s: Instead of the client's, for this call; None waits without an end.

        Raises:
            RpcError: The daemon said no.
            NoDaemon: Nobody there, or the answer did not come.
            RequestTooLarge: The params do not fit into one line.
        """
        own = with_request_id(method, params)
        if timeout_s is not None and timeout_s < 0:
            timeout_s = patience_s(method, own, self._timeout_s)
        with self._lock:
            self._last_id += 1
            call_id = self._last_id
            line = encode_call(call_id, method, own)
            return self._call(call_id, line, timeout_s, repeatable=is_repeatable(method, own))

    def request(self, method: "Method[P, R]", params: "P") -> "R":
        """
        The same, typed by the method.

        Raises:
            ProtocolError: The answer does not fit the type, besides the errors of `call`.
        """
        import msgspec  # only here: it takes longer to load than `status` takes to answer

        answer = self.call(method.name, msgspec.to_builtins(params))
        try:
            result: R = msgspec.convert(answer, method.result)
        except msgspec.ValidationError as error:
            raise ProtocolError(f"the answer to {method.name} does not fit: {error}") from error
        return result

    def events(
        self,
        *,
        since: int | None = None,
        kinds: "Iterable[str] | None" = None,
        session: str | None = None,
    ) -> "Generator[dict[str, Json], None, None]":
        """
        What happens, from now or from after `since`, without an end.

        On a connection of its own. After a loss it goes on behind the last event that it has
        handed out; events without a `seq` of that moment are lost.

        Raises:
            RpcError: The subscription was not taken.
            NoDaemon: Nobody there, or it did not come back within `reconnect_s`.
        """
        position = since
        wanted = None if kinds is None else list(kinds)
        give_up_at: float | None = None
        tries = 0
        while True:
            with self._open(give_up_at) as connection:
                try:
                    early, position = self._subscribe(connection, position, wanted, session)
                    give_up_at, tries = None, 0
                    while True:
                        message = early.pop(0) if early else connection.receive(None)
                        event = message.get("params")
                        if message.get("method") != "event" or not isinstance(event, dict):
                            continue
                        if event.get("kind") == "subscription.dropped":
                            break
                        seq = event.get("seq")
                        if isinstance(seq, int):
                            if seq <= position:
                                continue
                            position = seq
                        yield event
                except Lost as lost:
                    if position is None or self._is_over(give_up_at):
                        raise NoDaemon("closed", self.path) from lost
            if give_up_at is None:
                give_up_at = self._monotonic() + self._reconnect_s
            tries += 1
            self._sleep(delay_s(tries))

    # --- one call --------------------------------------------------------------------------

    def _call(
        self, call_id: int, line: bytes, timeout_s: float | None, *, repeatable: bool
    ) -> "Json":
        give_up_at: float | None = None
        tries = 0
        while True:
            try:
                connection = self._connected(give_up_at)
                return self._exchange(connection, call_id, line, timeout_s)
            except Lost as lost:
                self.close()
                if not repeatable:
                    raise NoDaemon("closed", self.path) from lost
                now = self._monotonic()
                if give_up_at is None:
                    give_up_at = now + self._reconnect_s
                if now >= give_up_at:
                    raise NoDaemon("closed", self.path) from lost
                tries += 1
                self._sleep(delay_s(tries))
            except BaseException as error:
                # Half an exchange may be under way: its answer must not meet the next call.
                if not _is_clean(error):
                    self.close()
                raise

    def _connected(self, give_up_at: float | None) -> Connection:
        """The standing connection, or a new one."""
        connection = self._connection
        if connection is not None:
            if not connection.is_stale():
                return connection
            self.close()
            give_up_at = self._monotonic() + self._reconnect_s
        self._connection = self._open(give_up_at)
        return self._connection

    def _open(self, give_up_at: float | None) -> Connection:
        """
        Connect; a daemon that was there before has until `give_up_at` to come back.

        A first connection waits only where it is refused: without a socket nobody was there.
        """
        causes: tuple[str, ...] = _COMES_BACK
        if give_up_at is None:
            give_up_at = self._monotonic() + self._connect_s
            causes = ("refused",)
        tries = 0
        while True:
            try:
                return Connection(self.path, timeout_s=self._timeout_s, monotonic=self._monotonic)
            except NoDaemon as error:
                if error.cause not in causes or self._monotonic() >= give_up_at:
                    raise
                tries += 1
                self._sleep(delay_s(tries))

    def _exchange(
        self, connection: Connection, call_id: int, line: bytes, timeout_s: float | None
    ) -> "Json":
        connection.send(line)
        give_up_at = None if timeout_s is None else self._monotonic() + timeout_s
        while True:
            left_s = None if give_up_at is None else max(0.0, give_up_at - self._monotonic())
            try:
                message = connection.receive(left_s)
            except TimeoutError as error:
                raise NoDaemon("timeout", self.path, timeout_s=timeout_s or 0.0) from error
            if is_answer_to(message, call_id):
                return read_answer(message)

    # --- events ----------------------------------------------------------------------------

    def _is_over(self, give_up_at: float | None) -> bool:
        return give_up_at is not None and self._monotonic() >= give_up_at

    def _subscribe(
        self,
        connection: Connection,
        since: int | None,
        kinds: list[str] | None,
        session: str | None,
    ) -> "tuple[list[dict[str, Json]], int]":
        """Events that came before the answer, and the `seq` behind which to go on."""
        wanted = {"since": since, "kinds": kinds, "session": session}
        params = {name: value for name, value in wanted.items() if value is not None}
        connection.send(encode_call(1, "events.subscribe", params))
        early: list[dict[str, Json]] = []
        while True:
            try:
                message = connection.receive(self._timeout_s)
            except TimeoutError as error:
                raise NoDaemon("timeout", self.path, timeout_s=self._timeout_s or 0) from error
            if is_answer_to(message, 1):
                answer = read_answer(message)
                seq = answer.get("seq") if isinstance(answer, dict) else None
                if not isinstance(seq, int):
                    raise ProtocolError("the answer to events.subscribe has no `seq`")
                return early, seq if since is None else since
            early.append(message)


def _is_clean(error: BaseException) -> bool:
    """The exchange was whole: an answer that is an error leaves the connection usable."""
    return isinstance(error, RpcError) and error.code not in (-32600, -32700)
