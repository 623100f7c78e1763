"""
The blocking client: a socket and JSON, nothing else.

```python
with Client() as client:
    print(client.delegate("Explain this repository").text)
```

Connects when first used and again when the connection was lost. What changes nothing, what begins
work (it carries a `request_id`) and a `delegation.cancel` are repeated after a loss, for up to
`reconnect_s` and with growing pauses; everything else raises. So a caller that waits gets its
answer although the daemon was killed and came back. A call that is not answered in time closes the
connection: a request that the daemon has not taken by then begins nothing.
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
    request_id_of,
    with_request_id,
)
from fallbackd_client.connection import Connection
from fallbackd_client.errors import NoDaemon, ProtocolError, RpcError
from fallbackd_client.paths import find_socket
from fallbackd_client.patience import Patience, what_is_left
from fallbackd_client.subscription import Dropped, Subscription
from fallbackd_client.usual import UsualCalls

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


class Client(UsualCalls):
    """
    Safe to use from several threads; calls of one client go one after the other.

    Args:
        path: Of the socket; None: `paths.find_socket()` at each connect.
        timeout_s: Longest wait for an answer; calls that wait for work get that time on top.
        reconnect_s: How long a lost daemon may take to come back.
        connect_s: How long a first connection that is refused is tried again.
        on_loss: Called once for each loss with how many seconds the daemon is waited for.
    """

    def __init__(
        self,
        path: str | None = None,
        *,
        timeout_s: float | None = 30.0,
        reconnect_s: float = 10.0,
        connect_s: float = 1.0,
        on_loss: "Callable[[float], None]" = lambda _: None,
        sleep: "Callable[[float], None]" = time.sleep,
        monotonic: "Callable[[], float]" = time.monotonic,
    ) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self._reconnect_s = reconnect_s
        self._connect_s = connect_s
        self._on_loss = on_loss
        self._sleep = sleep
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._lost_at: float | None = None
        """When a daemon went that has not been there since."""
        self._last_id = 0

    @property
    def path(self) -> str:
        """The socket that would be connected to now."""
        return self._path or find_socket()

    @property
    def is_default(self) -> bool:
        """The socket is looked for where every client does."""
        return self._path is None

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
            NoDaemon: There is no daemon, or the answer did not come.
            RequestTooLarge: The params do not fit into one line.
        """
        own = with_request_id(method, params)
        with self._lock:
            return self._call(method, own, timeout_s)

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
        delegation: str | None = None,
        on_warning: "Callable[[str], None] | None" = None,
    ) -> "Generator[dict[str, Json], None, None]":
        """
        What happens, from now or from after `since`, without an end.

        On a connection of its own. After a loss it continues behind the last event that it has
        handed out; events without a `seq` of that moment are lost.

        Args:
            delegation: Only of this one; with the kind `attempt.text` its text comes from the
                beginning, and without a gap.
            on_warning: Gets what the daemon says about the subscription, such as that its journal
                began anew.

        Raises:
            RpcError: The subscription was not taken.
            NoDaemon: There is no daemon, or it did not come back within `reconnect_s`.
        """
        subscription = Subscription(since, kinds, session, delegation)
        patience = Patience(self._reconnect_s, self._monotonic)
        while True:
            with self._open(patience.give_up_at) as connection:
                try:
                    early, warning = self._subscribe(connection, subscription)
                    if warning and on_warning is not None:
                        on_warning(warning)
                    patience = Patience(self._reconnect_s, self._monotonic)
                    for message in _followed(early, connection):
                        event = subscription.take(message)
                        if event is not None:
                            yield event
                except Dropped:
                    patience.lost()
                except Lost as lost:
                    is_first = patience.give_up_at is None
                    if subscription.position is None or not patience.lost():
                        raise NoDaemon("closed", self.path) from lost
                    if is_first:
                        self._on_loss(self._reconnect_s)
            self._sleep(patience.pause_s())

    # --- one call --------------------------------------------------------------------------

    def _call(self, method: str, params: "Mapping[str, Json]", timeout_s: float | None) -> "Json":
        began_at = self._monotonic()
        patience = Patience(self._reconnect_s, self._monotonic)
        sent_id: str | None = None
        while True:
            self._last_id += 1
            line = encode_call(self._last_id, method, params)
            limit_s = timeout_s
            if timeout_s is not None and timeout_s < 0:
                limit_s = patience_s(method, params, self._timeout_s)
            try:
                connection = self._connected(patience.give_up_at)
                patience.connected()
                sent_id = request_id_of(method, params)
                return self._exchange(connection, self._last_id, line, limit_s)
            except Lost as lost:
                self._lose()
                was_lost_at = patience.give_up_at
                if not is_repeatable(method, params) or not patience.lost():
                    raise NoDaemon("closed", self.path, request_id=sent_id) from lost
                if patience.give_up_at != was_lost_at:
                    self._on_loss(self._reconnect_s)
                self._sleep(patience.pause_s())
                params = what_is_left(method, params, self._monotonic() - began_at)
                began_at = self._monotonic()
            except BaseException as error:
                # Half an exchange may be under way: its answer must not meet the next call.
                if not _is_clean(error):
                    self.close()
                if isinstance(error, NoDaemon):
                    error.request_id = sent_id
                raise

    def _lose(self) -> None:
        self.close()
        self._lost_at = self._monotonic()

    def _connected(self, give_up_at: float | None) -> Connection:
        """The standing connection, or a new one."""
        connection = self._connection
        if connection is not None:
            if not connection.is_stale():
                return connection
            self._lose()
        self._connection = self._open(give_up_at)
        return self._connection

    def _open(self, give_up_at: float | None) -> Connection:
        """
        Connect; a daemon that was there before has until `give_up_at` to come back, without it
        `reconnect_s` from its loss.

        A first connection waits only where it is refused: without a socket there was no daemon.
        """
        causes: tuple[str, ...] = _COMES_BACK
        if give_up_at is None and self._lost_at is not None:
            give_up_at = self._lost_at + self._reconnect_s
        if give_up_at is None or self._monotonic() >= give_up_at:
            give_up_at = self._monotonic() + self._connect_s
            causes = ("refused",)
        tries = 0
        while True:
            try:
                opened = Connection(self.path, timeout_s=self._timeout_s, monotonic=self._monotonic)
            except NoDaemon as error:
                if error.cause not in causes or self._monotonic() >= give_up_at:
                    raise
                tries += 1
                self._sleep(delay_s(tries))
            else:
                self._lost_at = None
                return opened

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

    def _subscribe(
        self, connection: Connection, subscription: Subscription
    ) -> "tuple[list[dict[str, Json]], str | None]":
        """Messages that came before the answer, and a warning."""
        connection.send(encode_call(1, "events.subscribe", subscription.params()))
        early: list[dict[str, Json]] = []
        while True:
            try:
                message = connection.receive(self._timeout_s)
            except TimeoutError as error:
                raise NoDaemon("timeout", self.path, timeout_s=self._timeout_s or 0) from error
            if is_answer_to(message, 1):
                return early, subscription.begin(read_answer(message))
            early.append(message)


def _followed(
    early: "list[dict[str, Json]]", connection: Connection
) -> "Generator[dict[str, Json], None, None]":
    yield from early
    while True:
        yield connection.receive(None)


def _is_clean(error: BaseException) -> bool:
    """The exchange was whole: an answer that is an error leaves the connection usable."""
    return isinstance(error, RpcError) and error.code not in (-32600, -32700)
