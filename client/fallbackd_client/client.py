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

from __future__ import annotations

import errno
import socket
import threading
import time

from fallbackd_client.calls import (
    MAX_ANSWER_BYTES,
    Lost,
    Patience,
    delay_s,
    encode_call,
    for_library,
    in_directory,
    is_answer_to,
    is_repeatable,
    patience_s,
    read_answer,
    read_message,
    request_id_of,
    what_is_left,
    with_request_id,
)
from fallbackd_client.errors import NoDaemon, ProtocolError, RpcError
from fallbackd_client.paths import find_socket, reachable
from fallbackd_client.progress import LAST, PROGRESS
from fallbackd_client.wire.framing import LineSplitter, LineTooLong

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping
    from typing import TypeVar, Unpack

    from msgspec import Struct

    from fallbackd_client.arguments import (
        DelegateArguments,
        PrepareArguments,
        ReportArguments,
        ReportOutcome,
        ResolveArguments,
        StatusArguments,
    )
    from fallbackd_client.calls import Json
    from fallbackd_client.wire.envelope import Method
    from fallbackd_client.wire.methods.callers import PrepareResult, ReportResult, ResolveResult
    from fallbackd_client.wire.methods.daemon import StatusResult
    from fallbackd_client.wire.shapes import Delegation

    P = TypeVar("P", bound=Struct)
    R = TypeVar("R")


class Dropped(Exception):
    """The daemon has ended the subscription: its events were not read in time."""


class Subscription:
    """
    Args:
        since: Events after this `seq`; None: from the moment of the subscription.
        kinds: Which of them; None: all.
        session: Of this one alone; None: of all.
        delegation: Of this one alone, with its text from the beginning; None: of all.
    """

    def __init__(
        self,
        since: int | None,
        kinds: Iterable[str] | None,
        session: str | None,
        delegation: str | None = None,
    ) -> None:
        self.position = since
        """The `seq` of the last event that was handed out."""
        self._kinds = None if kinds is None else list(kinds)
        self._session = session
        self._delegation = delegation
        self._text_since: dict[str, Json] | None = None
        """Up to where its text was handed out."""

    def params(self) -> dict[str, Json]:
        """Return the params of the call that subscribes, for the first time or again."""
        wanted = {
            "since": self.position,
            "kinds": self._kinds,
            "session": self._session,
            "delegation": self._delegation,
            "text_since": self._text_since,
        }
        return {name: value for name, value in wanted.items() if value is not None}

    def begin(self, answer: Json) -> str | None:
        """
        Take the answer to that call. Returns a warning, such as that the journal was begun again.

        Raises:
            ProtocolError: It is no answer to it.
        """
        seq = answer.get("seq") if isinstance(answer, dict) else None
        if not isinstance(seq, int):
            raise ProtocolError("the answer to events.subscribe has no `seq`")
        # A lower one: the records were lost with the disk, and begin anew.
        self.position = seq if self.position is None else min(self.position, seq)
        warning: str | None = answer.get("warning")
        return warning

    def take(self, message: dict[str, Json]) -> dict[str, Json] | None:
        """
        The event to hand out; None: the message is none, or one that was handed out before.

        Raises:
            Dropped: No more events come on this connection.
        """
        event: Json = message.get("params")
        if message.get("method") != "event" or not isinstance(event, dict):
            return None
        if event.get("kind") == "subscription.dropped":
            raise Dropped
        seq = event.get("seq")
        if isinstance(seq, int):
            if self.position is not None and seq <= self.position:
                return None
            self.position = seq
        if event.get("kind") == "attempt.text" and self._delegation is not None:
            end = event["offset"] + len(event["text"])
            self._text_since = {"attempt": event["attempt"], "offset": end}
            if event.get("run"):
                self._text_since["run"] = event["run"]
        return event


_CHUNK_BYTES = 65536
_BACKLOG_PAUSE_S = 0.02


def why_not(error: OSError, path: str) -> NoDaemon:
    """The cause behind a connect that failed."""
    match error.errno:
        case errno.ENOENT | errno.ENOTDIR:
            return NoDaemon("missing", path)
        case errno.ECONNREFUSED:
            return NoDaemon("refused", path)
        case errno.EACCES | errno.EPERM:
            return NoDaemon("not_permitted", path)
        case errno.EAGAIN:
            return NoDaemon("busy", path)
        case errno.EPROTOTYPE | errno.ENOTSOCK:
            return NoDaemon("bad_reply", path, detail="it is not a stream socket")
        case _:
            return NoDaemon("unusable", path, detail=error.strerror or str(error))


class Connection:
    """
    A connected socket.

    Args:
        path: Of the socket.
        timeout_s: Bounds connecting and each sending.
        monotonic: Clock for deadlines.

    Raises:
        NoDaemon: There is no daemon.
    """

    def __init__(
        self,
        path: str,
        *,
        timeout_s: float | None = 30.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self._timeout_s = timeout_s
        self._monotonic = monotonic
        self._splitter = LineSplitter(MAX_ANSWER_BYTES)
        self._lines: list[bytes] = []
        self._socket = self._connect()

    def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        give_up_at = self._monotonic() + (self._timeout_s or 0.0)
        try:
            while True:
                try:
                    connection.settimeout(self._timeout_s)
                    with reachable(self.path) as address:
                        connection.connect(address)
                except BlockingIOError as error:  # the backlog is full: Unix sockets do not wait
                    if self._monotonic() >= give_up_at:
                        raise why_not(error, self.path) from error
                    time.sleep(_BACKLOG_PAUSE_S)
                except TimeoutError as error:
                    raise NoDaemon("busy", self.path) from error
                except OSError as error:
                    raise why_not(error, self.path) from error
                else:
                    return connection
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def is_stale(self) -> bool:
        """The other side has closed while we were not looking."""
        try:
            self._socket.settimeout(0)
            return self._socket.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def send(self, line: bytes) -> None:
        """
        Raises:
            Lost: The other side is gone.
            NoDaemon: It did not take the line in time.
        """
        try:
            self._socket.settimeout(self._timeout_s)
            self._socket.sendall(line)
        except TimeoutError as error:
            raise NoDaemon("timeout", self.path, timeout_s=self._timeout_s or 0.0) from error
        except (BrokenPipeError, ConnectionError):
            # What it said before it closed (a line beyond the limit, too many connections) may
            # still be there to read; without it, reading says that the connection is over.
            return
        except OSError as error:
            raise Lost from error

    def receive(self, timeout_s: float | None) -> dict[str, Json]:
        """
        The next message.

        Args:
            timeout_s: None waits without an end.

        Raises:
            TimeoutError: Nothing whole came in time. What came of it is kept.
            Lost: The connection ended.
            NoDaemon: With cause bad_reply: no JSON-RPC.
            ProtocolError: A line beyond `MAX_ANSWER_BYTES`.
        """
        give_up_at = None if timeout_s is None else self._monotonic() + timeout_s
        while not self._lines:
            left_s = None if give_up_at is None else give_up_at - self._monotonic()
            if left_s is not None and left_s <= 0:
                raise TimeoutError
            try:
                self._socket.settimeout(left_s)
                data = self._socket.recv(_CHUNK_BYTES)
            except TimeoutError:
                raise
            except OSError as error:
                raise Lost from error
            if not data:
                raise Lost
            try:
                self._lines = self._splitter.feed(data)
            except LineTooLong as error:
                raise ProtocolError(f"the daemon's answer is too large: {error}") from error
        return read_message(self._lines.pop(0), self.path)


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
        on_loss: Called once for each loss with how many seconds the daemon is waited for.
    """

    def __init__(
        self,
        path: str | None = None,
        *,
        timeout_s: float | None = 30.0,
        reconnect_s: float = 10.0,
        connect_s: float = 1.0,
        on_loss: Callable[[float], None] = lambda _: None,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
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

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(
        self,
        method: str,
        params: Mapping[str, Json] | None = None,
        *,
        timeout_s: float | None = -1.0,
    ) -> Json:
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

    def request(self, method: Method[P, R], params: P) -> R:
        """
        Call a method with params and result of its types.

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
        kinds: Iterable[str] | None = None,
        session: str | None = None,
        delegation: str | None = None,
        on_warning: Callable[[str], None] | None = None,
    ) -> Generator[dict[str, Json], None, None]:
        """
        Yield events, from now or from after `since`, without an end.

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

    def delegate(self, prompt: str, **arguments: Unpack[DelegateArguments]) -> Delegation:
        """
        Run a prompt on the best available backend; by default until it has ended.

        ```python
        with Client() as client:
            work = client.delegate("Explain this repository", cwd="/home/me/project")
            print(work.text if work.state == "succeeded" else work.message)
        ```

        With `wait_s` it returns after that time at the latest: `wait_over` is then true, and
        `wait` continues to wait. `timeout_s` stops the work. `cwd` may be relative to the current
        directory; without it the agent works in a directory of its own.

        Raises:
            TypeError: An argument of another name.
        """
        from fallbackd_client.wire.methods.delegations import DELEGATE, DelegateParams

        given = for_library(arguments)
        return self.request(DELEGATE, DelegateParams(prompt=prompt, **given))

    def wait(self, delegation: str, *, timeout_s: float | None = None) -> Delegation:
        """
        Wait for the end of a delegation, or until it asks a question.

        ```python
        work = client.wait(work.delegation, timeout_s=30)
        if work.wait_over:
            print("still", work.state)
        ```
        """
        from fallbackd_client.wire.methods.delegations import (
            DELEGATION_WAIT,
            DelegationWaitParams,
        )

        params = DelegationWaitParams(delegation=delegation, timeout_s=timeout_s)
        return self.request(DELEGATION_WAIT, params)

    def cancel(
        self,
        delegation: str | None = None,
        *,
        request_id: str | None = None,
        session: str | None = None,
    ) -> Delegation:
        """
        Stop a delegation, named by its id, the `request_id` that began it or its session. Returns
        when its processes have exited. A request that is still to come begins nothing.

        ```python
        print(client.cancel(work.delegation).state)
        ```
        """
        from fallbackd_client.wire.methods.delegations import (
            DELEGATION_CANCEL,
            DelegationCancelParams,
        )

        params = DelegationCancelParams(
            delegation=delegation, request_id=request_id, session=session
        )
        return self.request(DELEGATION_CANCEL, params)

    def status(self, **arguments: Unpack[StatusArguments]) -> StatusResult:
        """
        Return the daemon, the health of its backends, and its work.

        ```python
        for name, health in (client.status()).health.items():
            print(name, health.state, health.reason or "")
        ```
        """
        from fallbackd_client.wire.methods.daemon import STATUS, StatusParams

        return self.request(STATUS, StatusParams(**arguments))

    def resolve(self, **arguments: Unpack[ResolveArguments]) -> ResolveResult:
        """
        Return the backend that would be used now, for a call that the caller makes itself.

        ```python
        choice = client.resolve(backend="claude-api", lease=True)
        ```

        Raises:
            RpcError: With kind `refused`: no candidate is available.
        """
        from fallbackd_client.wire.methods.callers import RESOLVE, ResolveParams

        given: dict[str, Json] = {**arguments}
        return self.request(RESOLVE, ResolveParams(**given))

    def prepare(self, **arguments: Unpack[PrepareArguments]) -> PrepareResult:
        """
        Start the program for a prompt that comes soon, so that the prompt needs no start.

        ```python
        client.prepare(role="voice", cwd=".")
        ```

        Raises:
            RpcError: With kind `refused`: no candidate is available.
        """
        from fallbackd_client.wire.methods.callers import PREPARE, PrepareParams

        given = in_directory({**arguments})
        return self.request(PREPARE, PrepareParams(**given))

    def report(
        self, backend: str, outcome: ReportOutcome, **arguments: Unpack[ReportArguments]
    ) -> ReportResult:
        """
        Report the outcome of such a call. After a failure `next` is the candidate to try.

        ```python
        found = client.report("claude-api", "failure", evidence=Evidence(http_status=529))
        ```
        """
        from fallbackd_client.wire.methods.callers import REPORT, ReportParams

        given: dict[str, Json] = {**arguments}
        return self.request(REPORT, ReportParams(backend=backend, outcome=outcome, **given))

    def follow(
        self, delegation: str, *, kinds: Iterable[str] = PROGRESS
    ) -> Generator[dict[str, Json], None, None]:
        """
        The events of one delegation, until it ends or asks a question.

        ```python
        work = client.delegate("…", wait="accepted")
        for event in client.follow(work.delegation):
            print(event["kind"], event.get("backend", ""))
        work = client.wait(work.delegation)
        ```

        Events begin now; with the kind `attempt.text` its text begins at its first word, and
        continues without a gap after a lost connection or a restart. The last event is
        `delegation.ended` or `question.opened`, also where that lies in the past.
        """
        self.call("delegation.get", {"delegation": delegation})  # refuses an unknown one
        events = self.events(kinds=sorted({*kinds, *LAST}), delegation=delegation)
        try:
            for event in events:
                yield event
                if event["kind"] in LAST:
                    return
        finally:
            events.close()

    def _call(self, method: str, params: Mapping[str, Json], timeout_s: float | None) -> Json:
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
    ) -> Json:
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
    ) -> tuple[list[dict[str, Json]], str | None]:
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
    early: list[dict[str, Json]], connection: Connection
) -> Generator[dict[str, Json], None, None]:
    yield from early
    while True:
        yield connection.receive(None)


def _is_clean(error: BaseException) -> bool:
    """The exchange was whole: an answer that is an error leaves the connection usable."""
    return isinstance(error, RpcError) and error.code not in (-32600, -32700)
