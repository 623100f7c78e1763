"""
The async client, on anyio: many calls at once on one connection.

```python
async with AsyncClient() as client:
    print((await client.delegate("Explain this repository")).text)
```

The same rules as the blocking client: repeated after a loss is only what is safe.
"""

import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, TypeVar

import anyio
import anyio.abc
import msgspec
from msgspec import Struct

from fallbackd_client.aio_link import Link, Waiter
from fallbackd_client.aio_usual import AsyncUsualCalls
from fallbackd_client.calls import (
    Lost,
    delay_s,
    encode_call,
    is_repeatable,
    patience_s,
    read_answer,
    request_id_of,
    with_request_id,
)
from fallbackd_client.connection import why_not
from fallbackd_client.errors import NoDaemon, ProtocolError
from fallbackd_client.paths import find_socket
from fallbackd_client.patience import Patience, what_is_left
from fallbackd_client.subscription import Dropped, Subscription
from fallbackd_client.wire.envelope import Method

P = TypeVar("P", bound=Struct)
R = TypeVar("R")
Json = Any  # the raw call hands JSON through as it is

_COMES_BACK = ("refused", "missing", "busy")


class AsyncClient(AsyncUsualCalls):
    """
    Use as a context manager: answers are read by a task of its own.

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
    ) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self._reconnect_s = reconnect_s
        self._connect_s = connect_s
        self._link: Link | None = None
        self._lost_at: float | None = None
        """When a daemon went that has not been there since."""
        self._connecting = anyio.Lock()
        self._readers: anyio.abc.TaskGroup | None = None
        self._last_id = 0

    @property
    def path(self) -> str:
        """The socket that would be connected to now."""
        return self._path or find_socket()

    async def __aenter__(self) -> "AsyncClient":
        self._readers = anyio.create_task_group()
        await self._readers.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        readers, self._readers = self._readers, None
        if readers is None:
            return None
        readers.cancel_scope.cancel()
        try:
            return await readers.__aexit__(kind, error, traceback)
        except BaseExceptionGroup as group:
            if error is not None and group.exceptions == (error,):
                return False  # it leaves as it was raised: callers name it in `except`
            raise

    async def call(
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
        own: Mapping[str, Json] = with_request_id(method, params)
        began_at = time.monotonic()
        patience = Patience(self._reconnect_s, time.monotonic)
        sent_id: str | None = None
        while True:
            self._last_id += 1
            call_id = self._last_id
            line = encode_call(call_id, method, own)
            limit_s = timeout_s
            if timeout_s is not None and timeout_s < 0:
                limit_s = patience_s(method, own, self._timeout_s)
            try:
                link = await self._linked(patience.give_up_at)
                patience.connected()
                sent_id = request_id_of(method, own)
                return await self._exchange(link, call_id, line, limit_s)
            except Lost as lost:
                if not is_repeatable(method, own) or not patience.lost():
                    raise NoDaemon("closed", self.path, request_id=sent_id) from lost
            except NoDaemon as error:
                error.request_id = sent_id
                if error.cause == "timeout" and sent_id is not None:
                    # Where it was not taken yet, it must not be: its caller may ask anew. The
                    # other calls of this link are repeated on the next one.
                    await link.close()
                raise
            await anyio.sleep(patience.pause_s())
            own = what_is_left(method, own, time.monotonic() - began_at)
            began_at = time.monotonic()

    async def request(self, method: Method[P, R], params: P) -> R:
        """
        The same, typed by the method.

        Raises:
            ProtocolError: The answer does not fit the type, besides the errors of `call`.
        """
        answer = await self.call(method.name, msgspec.to_builtins(params))
        try:
            result: R = msgspec.convert(answer, method.result)
        except msgspec.ValidationError as error:
            raise ProtocolError(f"the answer to {method.name} does not fit: {error}") from error
        return result

    async def events(
        self,
        *,
        since: int | None = None,
        kinds: Iterable[str] | None = None,
        session: str | None = None,
        delegation: str | None = None,
        on_warning: Callable[[str], None] | None = None,
    ) -> AsyncGenerator[dict[str, Json], None]:
        """
        What happens, from now or from after `since`, without an end.

        On a connection of its own. After a loss it continues behind the last event that it has
        handed out; events without a `seq` of that moment are lost. Close the iterator
        (`contextlib.aclosing`) where the loop is left early.

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
        patience = Patience(self._reconnect_s, time.monotonic)
        while True:
            link = await self._open(patience.give_up_at)
            try:
                messages, warning = await self._subscribe(link, subscription)
                if warning and on_warning is not None:
                    on_warning(warning)
                patience = Patience(self._reconnect_s, time.monotonic)
                while True:
                    for message in messages:
                        event = subscription.take(message)
                        if event is not None:
                            yield event
                    messages = await link.receive()
            except Dropped:
                patience.lost()
            except Lost as lost:
                if subscription.position is None or not patience.lost():
                    raise NoDaemon("closed", self.path) from lost
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.aclose_forcefully(link.stream)
            await anyio.sleep(patience.pause_s())

    async def _subscribe(
        self, link: Link, subscription: Subscription
    ) -> tuple[list[dict[str, Json]], str | None]:
        """Notifications that came with the answer, and a warning."""
        early: list[dict[str, Json]] = []
        try:
            with anyio.fail_after(self._timeout_s):
                await link.send(encode_call(1, "events.subscribe", subscription.params()))
                while True:
                    messages = await link.receive()
                    early += [one for one in messages if "method" in one]
                    answers = [one for one in messages if "method" not in one]
                    if answers:
                        return early, subscription.begin(read_answer(answers[0]))
        except TimeoutError as error:
            raise NoDaemon("timeout", link.path, timeout_s=self._timeout_s or 0.0) from error

    async def _exchange(
        self, link: Link, call_id: int, line: bytes, timeout_s: float | None
    ) -> Json:
        waiter = Waiter()
        link.waiters[call_id] = waiter
        try:
            with anyio.fail_after(timeout_s):
                await link.send(line)
                await waiter.done.wait()
        except TimeoutError as error:
            raise NoDaemon("timeout", link.path, timeout_s=timeout_s or 0.0) from error
        finally:
            del link.waiters[call_id]
        if waiter.message is not None:
            return read_answer(waiter.message)
        raise waiter.failure or Lost()

    async def _linked(self, give_up_at: float | None) -> Link:
        """The standing link, or a new one."""
        if self._readers is None:
            raise RuntimeError("use the client inside `async with AsyncClient() as client:`")
        async with self._connecting:
            link = self._link
            if link is not None:
                if link.failure is None:
                    return link
                self._link = None
                self._lost_at = time.monotonic()
            self._link = link = await self._open(give_up_at)
            self._readers.start_soon(link.read)
            return link

    async def _open(self, give_up_at: float | None) -> Link:
        """
        Connect; a daemon that was there before has until `give_up_at` to come back, without it
        `reconnect_s` from its loss.
        """
        causes: tuple[str, ...] = _COMES_BACK
        if give_up_at is None and self._lost_at is not None:
            give_up_at = self._lost_at + self._reconnect_s
        if give_up_at is None or time.monotonic() >= give_up_at:
            give_up_at = time.monotonic() + self._connect_s
            causes = ("refused",)
        tries = 0
        while True:
            path = self.path
            try:
                with anyio.fail_after(self._timeout_s):
                    link = Link(path, await anyio.connect_unix(path))
                self._lost_at = None
                return link
            except TimeoutError as error:
                raise NoDaemon("busy", path) from error
            except OSError as error:
                failure = why_not(error, path)
                if failure.cause not in causes or time.monotonic() >= give_up_at:
                    raise failure from error
            tries += 1
            await anyio.sleep(delay_s(tries))
