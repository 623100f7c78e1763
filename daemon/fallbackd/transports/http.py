"""
One HTTP request, its body handed on as it arrives.

The engine is the only retry loop, so nothing here tries again, and a redirect is an answer.
Proxies and CA files come from the environment (`HTTPS_PROXY`, `NO_PROXY`, `SSL_CERT_FILE`).

No cancel scope is held while a chunk is in the hands of the caller: an async generator may be
left at any `yield`, and a scope must be left in the task that entered it.
"""

import os
import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import anyio

from fallbackd.core.exchange import (
    Call,
    Chunk,
    Exit,
    HttpRequest,
    HttpResponse,
    NoAnswer,
    StreamName,
)
from fallbackd.ports.clock import Clock

if TYPE_CHECKING:
    import httpx2

CLOSE_LIMIT_S = 5.0
"""For the farewell of a connection (TLS close); it is dropped after that."""

WRITE_LIMIT_S = 60.0

MAX_LOG_BYTES = 64 * 1024 * 1024
STREAM_LETTERS: dict[StreamName, str] = {"stdout": "o", "stderr": "e", "http": "h", "event": "v"}
LOG_CUT_MARKER = b"\n[fallbackd: the rest was not kept]\n"

_VARIABLE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


class OutputLog:
    """
    `output.log` and `output.idx` of one attempt, private to the user.

    The log has the bytes as they came; the index one line per chunk: `time stream length end`,
    the stream by its letter. A disk that takes no more ends the log and nothing else.

    Args:
        directory: Exists. The files are made with the first chunk.
        max_bytes: What is kept; a marker says that more came.
    """

    def __init__(self, directory: str, *, max_bytes: int = MAX_LOG_BYTES) -> None:
        self._directory = Path(directory)
        self._max_bytes = max_bytes
        self._files: tuple[BinaryIO, BinaryIO] | None = None
        self._full = False
        self.size_bytes = 0

    def write(self, chunk: Chunk) -> None:
        if self._full:
            return
        data = chunk.data
        if self.size_bytes + len(data) > self._max_bytes:
            self._full = True
            data = data[: self._max_bytes - self.size_bytes] + LOG_CUT_MARKER
        end = self.size_bytes + len(data)
        try:
            if self._files is None:
                self._files = self._create("output.log"), self._create("output.idx")
            log, index = self._files
            log.write(data)
            letter = STREAM_LETTERS[chunk.stream]
            index.write(f"{chunk.at:.6f} {letter} {len(data)} {end}\n".encode())
        except OSError:
            self._full = True
            return
        self.size_bytes = end

    def close(self) -> None:
        if self._files is not None:
            for file in self._files:
                file.close()

    def _create(self, name: str) -> BinaryIO:
        descriptor = os.open(
            self._directory / name,
            os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC,
            0o600,
        )
        return os.fdopen(descriptor, "wb", buffering=0)


class HttpTransport:
    """
    Sends `HttpRequest`s. Connections are pooled over all attempts.

    Args:
        environ: Where `secret_headers` find their variables, at the moment of sending.
    """

    def __init__(self, *, clock: Clock, environ: Mapping[str, str] = os.environ) -> None:
        self._clock = clock
        self._environ = environ
        self._client: httpx2.AsyncClient | None = None

    async def open(
        self, call: Call, *, attempt: str, directory: str, env: dict[str, str]
    ) -> "HttpRunning":
        """
        Prepare the request. It leaves with the first step of `chunks`.

        Raises:
            TypeError: `call` is no `HttpRequest`: the caller wired kinds and transports wrongly.
        """
        if not isinstance(call, HttpRequest):
            raise TypeError(f"attempt {attempt}: {type(call).__name__} is not an HTTP request")
        secrets = resolve_secrets(call.secret_headers, self._environ)
        return HttpRunning(
            call, secrets=secrets, transport=self, directory=directory, clock=self._clock
        )

    async def attach(self, *, attempt: str, directory: str) -> "HttpRunning | None":
        return None

    async def detach(self) -> None:
        await self.aclose()

    def client(self) -> "httpx2.AsyncClient":
        """
        The one client, made with the first request (its import takes 60 ms).

        Raises:
            ImportError, ValueError: A proxy in the environment that cannot be used.
        """
        if self._client is None:
            import httpx2

            # No bound on connections: the engine bounds attempts, and a bound here would make
            # one attempt wait for another's slow stream.
            limits = httpx2.Limits(max_connections=None, max_keepalive_connections=8)
            self._client = httpx2.AsyncClient(limits=limits, follow_redirects=False)
        return self._client

    async def aclose(self) -> None:
        if self._client is not None:
            with anyio.move_on_after(CLOSE_LIMIT_S, shield=True):
                await self._client.aclose()
            self._client = None


def resolve_secrets(templates: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """`{"Authorization": "Bearer {KEY}"}` with values; without those whose variable is unset."""
    resolved: dict[str, str] = {}
    for header, template in templates.items():
        names = _VARIABLE.findall(template)
        if all(environ.get(name, "").strip() for name in names):
            resolved[header] = _VARIABLE.sub(lambda m: environ[m.group(1)].strip(), template)
    return resolved


class HttpRunning:
    """One request under way. See `ports.transport.Running`."""

    def __init__(
        self,
        call: HttpRequest,
        *,
        secrets: dict[str, str],
        transport: HttpTransport,
        directory: str,
        clock: Clock,
    ) -> None:
        self._call = call
        self._secrets = secrets
        self._transport = transport
        self._clock = clock
        self._recording = OutputLog(directory)
        self._scope: anyio.CancelScope | None = None
        self._stopped = False
        self._exit: Exit | None = None

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
    def recorded_bytes(self) -> int:
        return 0

    @property
    def log_bytes(self) -> int:
        return self._recording.size_bytes

    def stop(self, *, grace_s: float) -> None:
        """Drop the connection. There is no polite way, so `grace_s` is not used."""
        self._stopped = True
        if self._scope is not None:
            self._scope.cancel()

    async def chunks(self) -> AsyncIterator[Chunk]:
        """See `ports.transport.Running`. Leaving early drops the connection too."""
        response: httpx2.Response | None = None
        try:
            answer = await self._send()
            if isinstance(answer, NoAnswer):
                self._exit = answer
                return
            response = answer
            body = response.aiter_bytes()
            size, broken, ended = 0, "", False
            while not ended and not broken:
                data, broken = await self._next(body)
                ended = data is None
                if data is None:
                    continue
                room = self._call.max_bytes - size
                if len(data) > room:
                    data, broken = data[:room], "BodyTooLong"
                size += len(data)
                if data:
                    chunk = Chunk("http", data, self._clock.now())
                    self._recording.write(chunk)
                    yield chunk
            self._exit = HttpResponse(
                status=response.status_code,
                headers={name.lower(): value for name, value in response.headers.items()},
                at=self._clock.now(),
                stopped=self._stopped,
                truncated=bool(broken),
            )
        finally:
            self._recording.close()
            if response is not None:
                with anyio.move_on_after(CLOSE_LIMIT_S, shield=True):
                    await response.aclose()
            if self._exit is None:
                self._exit = NoAnswer(
                    exception="Cancelled", text="left before its end", at=self._clock.now()
                )

    async def _send(self) -> "httpx2.Response | NoAnswer":
        import httpx2

        call = self._call
        failed: Exception | None = None
        with anyio.CancelScope() as self._scope:
            if self._stopped:
                self._scope.cancel()
            try:
                client = self._transport.client()
                request = client.build_request(
                    call.method,
                    call.url,
                    headers={**call.headers, **self._secrets},
                    content=call.body,
                    timeout=httpx2.Timeout(
                        connect=call.connect_timeout_s,
                        read=call.read_timeout_s,
                        write=WRITE_LIMIT_S,
                        pool=call.connect_timeout_s,
                    ),
                )
                return await client.send(request, stream=True)
            # ValueError: header values that are no ASCII, proxies that are no URL.
            # ImportError: a SOCKS proxy without the package for it.
            except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, ImportError) as error:
                failed = error
        if failed is None:
            return NoAnswer(
                exception="Cancelled", text="stopped", at=self._clock.now(), stopped=True
            )
        return NoAnswer(
            exception=type(failed).__name__,
            text=self._told(failed),
            at=self._clock.now(),
            stopped=self._stopped,
        )

    async def _next(self, body: AsyncIterator[bytes]) -> tuple[bytes | None, str]:
        """The next piece, or None at the end; and the name of what broke the body off, if so."""
        import httpx2

        with anyio.CancelScope() as self._scope:
            if self._stopped:
                self._scope.cancel()
            try:
                return await anext(body), ""
            except StopAsyncIteration:
                return None, ""
            except (httpx2.HTTPError, httpx2.StreamError) as error:
                return None, type(error).__name__
        return None, "Cancelled"

    def _told(self, error: Exception) -> str:
        """What the library says, without what must not be said."""
        import httpx2

        if isinstance(error, httpx2.LocalProtocolError | UnicodeError):
            # Quotes the header that it refuses, which may be the key.
            return "the request could not be written: a header has characters that HTTP forbids"
        text = str(error) or str(error.__cause__ or "")
        for secret in self._secrets.values():
            text = text.replace(secret, "[redacted]")
        return text
