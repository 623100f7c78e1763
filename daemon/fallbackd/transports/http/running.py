"""
One HTTP request under way, its body handed on as it arrives.

No cancel scope is held while a chunk is in the hands of the caller: an async generator may be
left at any `yield`, and a scope must be left in the task that entered it.
"""

import errno
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import anyio
import anyio.to_thread
import msgspec
from msgspec import Struct, field

from fallbackd.core.protocol import (
    DAEMON_LOST,
    Chunk,
    Exit,
    HttpRequest,
    HttpResponse,
    NoAnswer,
    NotStarted,
)
from fallbackd.lib import privatefile
from fallbackd.lib.secretvalues import SecretValues
from fallbackd.ports.transport import Clock
from fallbackd.transports.http.clients import CLOSE_LIMIT_S, Clients, Route, TlsFiles
from fallbackd.transports.http.direct import CLOSED_BEFORE_S, Broken, DirectAnswer, DirectPool
from fallbackd.transports.http.loopback_owner import ForeignListener, require_own_peer
from fallbackd.transports.output_log import OutputLog
from fallbackd.transports.process.recording import read_chunks

# --- the record ----------------------------------------------------------------------------------
# What an HTTP attempt leaves behind for a daemon that comes after: nothing else outlives its own.
#
#     http.json     made before the request may leave: this attempt lives in the daemon alone
#     output.log    the body as it came
#     exit.json     there before the end is handed on: how it ended
#
# An attempt with an exit record is judged by it. One without was lost with the daemon, so what the
# provider did with it is unknown.

BEGIN_FILE = "http.json"
EXIT_FILE = "exit.json"
MAX_RECORD_BYTES = 16 * 1024 * 1024
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


class Begin(Struct, frozen=True, kw_only=True):
    attempt: str
    method: str
    url: str
    """Address without its query."""
    at: float


class ExitRecord(Struct, frozen=True, kw_only=True):
    exit: HttpResponse | NoAnswer | NotStarted
    log_bytes: int
    is_whole: bool = True
    """False: the disk did not take all of the body."""


def write_begin(directory: str, begin: Begin) -> None:
    """
    Raises:
        OSError: It cannot be written, so the request must not leave.
    """
    _write(f"{directory}/{BEGIN_FILE}", msgspec.json.encode(begin))


def write_exit(directory: str, record: ExitRecord) -> None:
    """
    A disk that takes no more makes the attempt lost, as half a record does.

    It outlives the daemon, as the log does with which it counts, and not the machine.
    """
    try:
        _write(f"{directory}/{EXIT_FILE}", msgspec.json.encode(record))
    except OSError:
        pass


def _write(path: str, data: bytes) -> None:
    handle = os.open(path, _CREATE, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(handle, view) :]
    finally:
        os.close(handle)


def lost(*, at: float) -> NoAnswer:
    return NoAnswer(
        exception=DAEMON_LOST,
        text="the daemon ended while the answer was on its way",
        at=at,
        gone=True,
    )


class RecordedRunning:
    """An attempt of an earlier daemon, which is over. See `ports.transport.Running`."""

    def __init__(self, directory: str, *, now: float) -> None:
        self._chunks = list(read_chunks(directory))
        self.recorded_bytes = sum(len(one.data) for one in self._chunks)
        self.log_bytes = 0
        self.exit: Exit = _exit_of(directory, self.recorded_bytes) or lost(at=now)

    @property
    def pid(self) -> int | None:
        return None

    def stop(self, *, grace_s: float) -> None:
        """Do nothing: it is over."""

    async def chunks(self) -> AsyncIterator[Chunk]:
        for chunk in self._chunks:
            self.log_bytes += len(chunk.data)
            yield chunk


def _exit_of(directory: str, log_bytes: int) -> Exit | None:
    try:
        path = Path(directory) / EXIT_FILE
        data = privatefile.read_file(path, max_bytes=MAX_RECORD_BYTES)
        record = msgspec.json.decode(data, type=ExitRecord)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return record.exit if record.is_whole and record.log_bytes == log_bytes else None


def name_of(error: OSError) -> str:
    """Its symbolic name: ENOSPC, EROFS, …"""
    return errno.errorcode.get(error.errno or 0, "EIO")


def was_begun(directory: str) -> bool:
    return privatefile.exists(Path(directory) / BEGIN_FILE)


# --- the request ---------------------------------------------------------------------------------

WRITE_LIMIT_S = 60.0
FAREWELL_S = 2.0
"""Servers end a stream within a packet of its last event; some never do."""

_SECRET_ANSWERS = frozenset({"set-cookie", "set-cookie2", "authentication-info"})
"""Headers of a response that are no evidence and may be a login."""


_UNPACKED = frozenset({"gzip", "deflate", "identity"})
"""Codings that the general client names still when it has undone them, one or several."""


class Carried(Struct, frozen=True, kw_only=True):
    """Parts of a request that leave with it and must never be seen."""

    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    values: SecretValues = field(default_factory=SecretValues)
    """The secrets in it, which a provider may echo in any form."""

    def __repr__(self) -> str:
        return f"Carried({self.values!r})"


class ResponseRead(Protocol):
    """The answer to a request, its head read."""

    @property
    def status_code(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    def aiter_bytes(self) -> AsyncIterator[bytes]: ...

    async def aclose(self) -> None: ...


class BodyLine:
    """State that all requests share."""

    def __init__(self, *, clients: Clients, clock: Clock, farewell_s: float) -> None:
        self.clients = clients
        self.direct = DirectPool()
        self.clock = clock
        self.farewell_s = farewell_s
        self.is_detached = False


class HttpRunning:
    """
    See `ports.transport.Running`.

    Args:
        problem: Why it cannot be sent at all.
    """

    def __init__(
        self,
        call: HttpRequest,
        *,
        carried: Carried,
        problem: NotStarted | None,
        line: BodyLine,
        directory: str,
    ) -> None:
        self._call = call
        self._carried = carried
        self._line = line
        self._clock = line.clock
        self._directory = directory
        self._log = OutputLog(directory)
        self._ends = _Ends(call.ends_with)
        self._mask = Mask(carried.values)
        self._scope: anyio.CancelScope | None = None
        self._stopped = False
        self._exit: Exit | None = problem

    def __repr__(self) -> str:
        return f"HttpRunning({self._call!r})"

    @property
    def pid(self) -> int | None:
        return None

    @property
    def exit(self) -> Exit:
        if self._exit is None:
            raise RuntimeError(f"{self!r} has not ended: exhaust its chunks first")
        return self._exit

    @property
    def log_bytes(self) -> int:
        return self._log.size_bytes

    @property
    def recorded_bytes(self) -> int:
        return 0

    def stop(self, *, grace_s: float) -> None:
        """Drop the connection. There is no polite way, so `grace_s` is not used."""
        self._stopped = True
        if self._scope is not None:
            self._scope.cancel()

    async def chunks(self) -> AsyncIterator[Chunk]:
        """See `ports.transport.Running`. Leaving early drops the connection too."""
        if self._exit is not None:
            return  # it could not be sent
        response: ResponseRead | None = None
        end: HttpResponse | NoAnswer | None = None
        try:
            answer = await self._send()
            if isinstance(answer, NoAnswer):
                end = answer
            else:
                response = answer
                body = response.aiter_bytes()
                size, broken, ended = 0, "", False
                while not ended and not broken:
                    data, broken = await self._next(body)
                    ended = data is None
                    room = self._call.max_bytes - size
                    if data is not None and len(data) > room:
                        data, broken = data[:room], "BodyTooLong"
                    size += len(data or b"")
                    data = self._mask.end() if data is None else self._mask.feed(data)
                    if data:
                        chunk = Chunk("http", data, self._clock.now())
                        self._log.write(chunk)
                        until = anyio.current_time() + self._line.farewell_s
                        self._ends.see(data, until=until)
                        yield chunk
                end = self._responded(response, is_broken=bool(broken))
        finally:
            self._log.close()
            if response is not None:
                with anyio.move_on_after(CLOSE_LIMIT_S, shield=True):
                    await response.aclose()
            self._end(end)

    def _end(self, end: HttpResponse | NoAnswer | None) -> None:
        """Record how it ended before it is acted on."""
        if self._line.is_detached:
            self._exit = lost(at=self._clock.now())
        elif end is None:
            self._exit = NoAnswer(
                exception="Cancelled", text="left before its end", at=self._clock.now(), gone=True
            )
        else:
            record = ExitRecord(
                exit=end, log_bytes=self._log.size_bytes, is_whole=not self._log.is_cut
            )
            write_exit(self._directory, record)
            self._exit = end

    def _responded(self, response: ResponseRead, *, is_broken: bool) -> HttpResponse:
        is_direct = isinstance(response, DirectAnswer)
        return HttpResponse(
            status=response.status_code,
            headers={
                name.lower(): self._carried.values.conceal(value)
                for name, value in response.headers.items()
                if name.lower() not in _SECRET_ANSWERS
                and (is_direct or not _is_undone(name, value))
            },
            at=self._clock.now(),
            stopped=self._stopped,
            truncated=is_broken,
            gone=True,
        )

    async def _send(self) -> ResponseRead | NoAnswer:
        with anyio.CancelScope() as self._scope:
            if self._stopped:
                self._scope.cancel()
            return await self._sent()
        return NoAnswer(
            exception="Cancelled", text="stopped", at=self._clock.now(), stopped=True, gone=True
        )

    async def _sent(self) -> ResponseRead | NoAnswer:
        answer = None
        is_direct = self._line.direct.takes(self._call)
        send = self._send_straight if is_direct else self._send_over
        # Whose a listener is, is seen when a connection is made; and of a kept connection that ends
        # it cannot be known whether the server has read the request.
        if not (self._call.own_listener or self._call.once):
            answer = await send(keeps_connections=True)
        if answer is None:
            # Other kept connections may be closing too: this one is new for certain.
            answer = await send(keeps_connections=False)
        assert answer is not None
        return answer

    async def _send_straight(self, *, keeps_connections: bool) -> ResponseRead | NoAnswer | None:
        """Send as `_send_over` does, where no proxy stands between."""
        call = self._call
        try:
            return await self._line.direct.send(
                call,
                {**call.headers, **self._carried.headers},
                self._carried.body,
                is_fresh=not keeps_connections,
            )
        except Broken as error:
            if keeps_connections and error.is_unanswered:
                return None
            name, text = error.name, self._carried.values.conceal(error.text)
        except TlsFiles as error:
            name, text = type(error).__name__, self._told(error)
        return NoAnswer(
            exception=name, text=text, at=self._clock.now(), stopped=self._stopped, gone=True
        )

    async def _send_over(self, *, keeps_connections: bool) -> ResponseRead | NoAnswer | None:
        """The head of the answer; None: the server had closed the kept connection that it met."""
        import httpx2

        call, route = self._call, Route()

        async def hear(step: str, info: dict[str, Any]) -> None:
            await route.hear(step, info)
            if call.own_listener:
                await _look_at_peer(step, info)

        sent_at = anyio.current_time()
        request: httpx2.Request | None = None
        try:
            client = self._line.clients.find(
                call.url, call.tls, keeps_connections=keeps_connections
            )
            request = client.build_request(
                call.method,
                call.url,
                headers={**call.headers, **self._carried.headers},
                content=self._carried.body,
                timeout=httpx2.Timeout(
                    connect=call.connect_timeout_s,
                    read=call.read_timeout_s,
                    write=WRITE_LIMIT_S,
                    pool=call.connect_timeout_s,
                ),
                extensions={"trace": hear},
            )
            return await client.send(request, stream=True)
        # ValueError: header values that are no ASCII, proxies that are no URL or cannot be used.
        except (
            httpx2.HTTPError,
            httpx2.InvalidURL,
            ValueError,
            TlsFiles,
            ForeignListener,
        ) as error:
            is_early = anyio.current_time() - sent_at < CLOSED_BEFORE_S
            if keeps_connections and route.is_reused and is_early and _is_closed(error):
                return None
            proxy = None if request is None else route.proxy_problem(error, request)
            name, text = proxy or (type(error).__name__, self._told(error))
            return NoAnswer(
                exception=name, text=text, at=self._clock.now(), stopped=self._stopped, gone=True
            )

    async def _next(self, body: AsyncIterator[bytes]) -> tuple[bytes | None, str]:
        """The next piece, or None at the end; and the name of what broke the body off, if so."""
        silent_at = anyio.current_time() + self._call.read_timeout_s
        with anyio.CancelScope(deadline=min(self._ends.deadline, silent_at)) as self._scope:
            if self._stopped:
                self._scope.cancel()
            try:
                return await anext(body), ""
            except StopAsyncIteration:
                return None, ""
            except Broken as error:
                return None, "" if self._ends.is_seen else error.name
            except Exception as error:
                if not _is_broken(error):
                    raise
                return None, "" if self._ends.is_seen else type(error).__name__
        if self._stopped:
            return None, "Cancelled"
        # Where the answer is complete, the server has held the line for long enough.
        return None, "" if self._ends.is_seen else "ReadTimeout"

    def _told(self, error: Exception) -> str:
        """Return the words of the library, without what must not be said."""
        if isinstance(error, UnicodeError) or type(error).__name__ == "LocalProtocolError":
            # Quotes the header that it refuses, which may be the key.
            return "the request could not be written: a header has characters that HTTP forbids"
        text = str(error) or str(error.__cause__ or "")
        return self._carried.values.conceal(text)


class Mask:
    """Hides the secrets of the request in what is answered, wherever pieces of the body break."""

    def __init__(self, values: SecretValues) -> None:
        self._values = values
        self._held = b""
        """Bytes that may be the beginning of a secret."""

    def feed(self, data: bytes) -> bytes:
        data = self._values.mask(self._held + data)
        begun = self._values.begun_at_end(data)
        self._held = data[len(data) - begun :]
        return data[: len(data) - begun]

    def end(self) -> bytes:
        held, self._held = self._held, b""
        return held


def _is_undone(name: str, value: str) -> bool:
    codings = {one.strip().lower() for one in value.split(",")}
    return name.lower() == "content-encoding" and codings <= _UNPACKED


def _is_broken(error: Exception) -> bool:
    """Return whether the general client says that a body cannot be finished."""
    import httpx2

    return isinstance(error, httpx2.HTTPError | httpx2.StreamError)


def _is_closed(error: Exception) -> bool:
    """Return whether a connection ended before the first byte of an answer."""
    import httpx2

    if isinstance(error, httpx2.RemoteProtocolError):
        return "without sending a response" in str(error)
    return isinstance(error, httpx2.ReadError | httpx2.WriteError)


async def _look_at_peer(step: str, info: Mapping[str, Any]) -> None:
    """Called by the HTTP library at each step. Raises before anything is sent."""
    if step != "connection.connect_tcp.complete":
        return
    stream = info["return_value"]
    try:
        await anyio.to_thread.run_sync(require_own_peer, stream.get_extra_info("socket"))
    except BaseException:
        with anyio.CancelScope(shield=True):
            await stream.aclose()
        raise


class _Ends:
    """Looks for the marks of a complete answer, wherever pieces of the body break."""

    def __init__(self, marks: tuple[bytes, ...]) -> None:
        self._marks = marks
        self._keep = max((len(mark) for mark in marks), default=1) - 1
        self._tail = b"\n"
        self.deadline = float("inf")

    @property
    def is_seen(self) -> bool:
        return self.deadline != float("inf")

    def see(self, data: bytes, *, until: float) -> None:
        """`until`: how long to wait if a mark is in it, on the clock of the event loop."""
        if self.is_seen or not self._marks:
            return
        window = self._tail + data
        if any(mark in window for mark in self._marks):
            self.deadline = until
        self._tail = window[-self._keep :] if self._keep else b""
