"""
The async client, on anyio: many calls at once on one connection.

```python
async with AsyncClient() as client:
    print((await client.delegate("Explain this repository")).text)
```

The same rules as the blocking client: repeated after a loss is only what is safe.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import TypeVar

try:
    import anyio
    import anyio.abc
except ModuleNotFoundError as error:
    why = "AsyncClient needs anyio; install it with: pip install 'fallbackd-client[aio]'"
    raise ImportError(why) from error
import msgspec
from msgspec import Struct

from fallbackd_client.calls import (
    MAX_ANSWER_BYTES,
    Lost,
    Patience,
    delay_s,
    encode_call,
    for_library,
    in_directory,
    is_repeatable,
    patience_s,
    read_answer,
    read_message,
    request_id_of,
    what_is_left,
    with_request_id,
)
from fallbackd_client.client import Dropped, Subscription, why_not
from fallbackd_client.errors import ClientError, NoDaemon, ProtocolError
from fallbackd_client.paths import find_socket, reachable
from fallbackd_client.progress import LAST, PROGRESS
from fallbackd_client.wire.envelope import Method
from fallbackd_client.wire.framing import LineSplitter, LineTooLong

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Mapping
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


class Waiter:
    """One call under way: an event, then a message or the reason why none will come."""

    def __init__(self) -> None:
        self.done = anyio.Event()
        self.message: dict[str, Json] | None = None
        self.failure: Exception | None = None


class Link:
    """One connection and the calls that wait on it."""

    def __init__(self, path: str, stream: anyio.abc.SocketStream) -> None:
        self.path = path
        self.stream = stream
        self.failure: Exception | None = None
        self.waiters: dict[int, Waiter] = {}
        self._sending = anyio.Lock()
        self._splitter = LineSplitter(MAX_ANSWER_BYTES)

    async def send(self, line: bytes) -> None:
        """
        Raises:
            Lost: The other side is gone.
        """
        async with self._sending:
            try:
                await self.stream.send(line)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as error:
                raise Lost from error
            except BaseException:  # cancelled amid a line: what follows would be read as its end
                self.fail(Lost())
                raise

    async def receive(self) -> list[dict[str, Json]]:
        """
        The next whole messages.

        Raises:
            Lost: The connection ended.
            NoDaemon: With cause bad_reply.
            ProtocolError: A line beyond the limit.
        """
        try:
            lines = self._splitter.feed(await self.stream.receive())
        except LineTooLong as error:
            raise ProtocolError(f"the daemon's answer is too large: {error}") from error
        except (
            anyio.EndOfStream,
            anyio.BrokenResourceError,
            anyio.ClosedResourceError,
            OSError,
        ) as error:
            raise Lost from error
        return [read_message(line, self.path) for line in lines]

    async def read(self) -> None:
        """Hand answers to those who wait, until the connection ends."""
        try:
            while True:
                for message in await self.receive():
                    self._answered(message)
        except (Lost, ClientError) as error:
            self.fail(error)
        finally:
            await self.close()

    async def close(self) -> None:
        """Hang up: the daemon begins nothing that it has not taken yet."""
        self.fail(Lost())
        with anyio.CancelScope(shield=True):
            await anyio.aclose_forcefully(self.stream)

    def _answered(self, message: dict[str, Json]) -> None:
        if "method" in message:
            return
        call_id = message.get("id")
        if call_id is None:  # it could not read what we sent: every call of this link is in doubt
            for waiter in self.waiters.values():
                waiter.message = message
                waiter.done.set()
            return
        waiter_of_id = self.waiters.get(call_id) if isinstance(call_id, int) else None
        if waiter_of_id is not None:
            waiter_of_id.message = message
            waiter_of_id.done.set()

    def fail(self, error: Exception) -> None:
        """No answer will come any more. The first reason stays."""
        if self.failure is None:
            self.failure = error
        for waiter in self.waiters.values():
            if not waiter.done.is_set():
                waiter.failure = self.failure
                waiter.done.set()


WITHDRAW_S = 1.0
"""Seconds that a cancelled `delegate` waits to hear that its work is withdrawn."""


P = TypeVar("P", bound=Struct)
R = TypeVar("R")

_COMES_BACK = ("refused", "missing", "busy")


class AsyncClient:
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

    async def __aenter__(self) -> AsyncClient:
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
        Call a method with params and result of its types.

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
        Yield events, from now or from after `since`, without an end.

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

    async def delegate(self, prompt: str, **arguments: Unpack[DelegateArguments]) -> Delegation:
        """
        Run a prompt on the best available backend; by default until it has ended.

        ```python
        async with AsyncClient() as client:
            work = await client.delegate("Explain this repository", cwd="/home/me/project")
            print(work.text if work.state == "succeeded" else work.message)
        ```

        With `wait_s` it returns after that time at the latest: `wait_over` is then true, and
        `wait` continues to wait. `timeout_s` stops the work. `cwd` may be relative to the current
        directory; without it the agent works in a directory of its own.

        Where its task is cancelled before it returns, the work is withdrawn: nothing else knows its
        name. With a `request_id` of the caller's it continues, and `cancel(request_id=…)` stops it.

        Raises:
            TypeError: An argument of another name.
        """
        import anyio

        from fallbackd_client.wire.methods.delegations import DELEGATE, DelegateParams

        given = for_library(arguments)
        name = given["request_id"] = given.get("request_id") or os.urandom(16).hex()
        try:
            return await self.request(DELEGATE, DelegateParams(prompt=prompt, **given))
        except anyio.get_cancelled_exc_class():
            if arguments.get("request_id") is None:
                with anyio.move_on_after(WITHDRAW_S, shield=True), suppress(ClientError):
                    await self.cancel(request_id=name)
            raise

    async def wait(self, delegation: str, *, timeout_s: float | None = None) -> Delegation:
        """
        Wait for the end of a delegation, or until it asks a question.

        ```python
        work = await client.wait(work.delegation, timeout_s=30)
        if work.wait_over:
            print("still", work.state)
        ```
        """
        from fallbackd_client.wire.methods.delegations import (
            DELEGATION_WAIT,
            DelegationWaitParams,
        )

        params = DelegationWaitParams(delegation=delegation, timeout_s=timeout_s)
        return await self.request(DELEGATION_WAIT, params)

    async def cancel(
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
        print((await client.cancel(work.delegation)).state)
        ```
        """
        from fallbackd_client.wire.methods.delegations import (
            DELEGATION_CANCEL,
            DelegationCancelParams,
        )

        params = DelegationCancelParams(
            delegation=delegation, request_id=request_id, session=session
        )
        return await self.request(DELEGATION_CANCEL, params)

    async def status(self, **arguments: Unpack[StatusArguments]) -> StatusResult:
        """
        Return the daemon, the health of its backends, and its work.

        ```python
        for name, health in (await client.status()).health.items():
            print(name, health.state, health.reason or "")
        ```
        """
        from fallbackd_client.wire.methods.daemon import STATUS, StatusParams

        return await self.request(STATUS, StatusParams(**arguments))

    async def resolve(self, **arguments: Unpack[ResolveArguments]) -> ResolveResult:
        """
        Return the backend that would be used now, for a call that the caller makes itself.

        ```python
        choice = await client.resolve(backend="claude-api", lease=True)
        ```

        Raises:
            RpcError: With kind `refused`: no candidate is available.
        """
        from fallbackd_client.wire.methods.callers import RESOLVE, ResolveParams

        given: dict[str, Json] = {**arguments}
        return await self.request(RESOLVE, ResolveParams(**given))

    async def prepare(self, **arguments: Unpack[PrepareArguments]) -> PrepareResult:
        """
        Start the program for a prompt that comes soon, so that the prompt needs no start.

        ```python
        await client.prepare(role="voice", cwd=".")
        ```

        Raises:
            RpcError: With kind `refused`: no candidate is available.
        """
        from fallbackd_client.wire.methods.callers import PREPARE, PrepareParams

        given = in_directory({**arguments})
        return await self.request(PREPARE, PrepareParams(**given))

    async def report(
        self, backend: str, outcome: ReportOutcome, **arguments: Unpack[ReportArguments]
    ) -> ReportResult:
        """
        Report the outcome of such a call. After a failure `next` is the candidate to try.

        ```python
        found = await client.report("claude-api", "failure", evidence=Evidence(http_status=529))
        ```
        """
        from fallbackd_client.wire.methods.callers import REPORT, ReportParams

        given: dict[str, Json] = {**arguments}
        return await self.request(REPORT, ReportParams(backend=backend, outcome=outcome, **given))

    async def follow(
        self, delegation: str, *, kinds: Iterable[str] = PROGRESS
    ) -> AsyncGenerator[dict[str, Json], None]:
        """
        The events of one delegation, until it ends or asks a question.

        ```python
        work = await client.delegate("…", wait="accepted")
        async for event in client.follow(work.delegation):
            print(event["kind"], event.get("backend", ""))
        work = await client.wait(work.delegation)
        ```

        Events begin now; with the kind `attempt.text` its text begins at its first word, and
        continues without a gap after a lost connection or a restart. The last event is
        `delegation.ended` or `question.opened`, also where that lies in the past.
        """
        await self.call("delegation.get", {"delegation": delegation})  # refuses an unknown one
        events = self.events(kinds=sorted({*kinds, *LAST}), delegation=delegation)
        try:
            async for event in events:
                yield event
                if event["kind"] in LAST:
                    return
        finally:
            await events.aclose()

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
                with anyio.fail_after(self._timeout_s), reachable(path) as address:
                    link = Link(path, await anyio.connect_unix(address))
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
