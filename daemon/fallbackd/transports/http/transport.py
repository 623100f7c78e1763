"""
Sends HTTP requests, one per attempt, over pools of connections that all attempts share.

The engine is the only retry loop, and a redirect is an answer. What is sent again here is only a
request that met a kept connection as the server closed it.

`direct` sends nearly all requests, over kept connections of our own; `clients` (a general library,
ten times the processor time) sends those that a proxy of the environment may carry, those to
unusual addresses, and those to a server on loopback whose owner has to be ours.
"""

import os
import re
from collections.abc import AsyncIterator, Mapping

import anyio
import msgspec
from msgspec import structs

from fallbackd.core.protocol import (
    CREDENTIAL,
    Call,
    Exit,
    HttpRequest,
    HttpResponse,
    NoAnswer,
    NotStarted,
)
from fallbackd.lib.secretvalues import SecretValues
from fallbackd.ports.transport import Clock, SecretProblem, Secrets, TakePiece
from fallbackd.transports.http import running as http_record
from fallbackd.transports.http.clients import CLOSE_LIMIT_S, Clients
from fallbackd.transports.http.direct import Broken, DirectAnswer
from fallbackd.transports.http.running import (
    FAREWELL_S,
    BodyLine,
    Carried,
    HttpRunning,
    ResponseRead,
)
from fallbackd.transports.secrets import SecretSources as RealSecrets
from fallbackd.transports.secrets import no_secret

# --- requests that are passed on -----------------------------------------------------------------
# Requests that are passed on for a caller: nothing of them is kept, on disk or in memory.
#
# They share the way out with the requests of attempts: pools, proxies, TLS settings, and secrets,
# which are hidden in an error that comes back: its reader says where an answer with status 200
# states one. An answer is the caller's own, to the byte: where the key of a local server is a plain
# word, the word may be meant.


class HttpPassing(HttpRunning):
    """See `ports.transport.PassedOn`."""

    def __init__(
        self, call: HttpRequest, *, carried: Carried, problem: NotStarted | None, line: BodyLine
    ) -> None:
        super().__init__(call, carried=carried, problem=problem, line=line, directory="")
        self._response: ResponseRead | None = None
        self._head = HttpResponse(status=0, gone=True)
        self._body: AsyncIterator[bytes] | None = None
        self._is_masked = True

    async def head(self) -> HttpResponse | None:
        if self._exit is not None:
            return None
        answer = await self._sent()  # its caller cancels it, nothing else stops it
        if isinstance(answer, NoAnswer):
            self._exit = answer
            return None
        self._response, self._body = answer, answer.aiter_bytes()
        self._head = self._responded(answer, is_broken=False)
        self._is_masked = self._head.status >= 300
        return self._head

    async def read(self) -> bytes | None:
        while self._exit is None:
            assert self._body is not None
            data, broken = await self._next(self._body)
            if data is None:
                self._exit = self._ended(is_broken=bool(broken))
                data = self._mask.end()
            elif self._is_masked:
                data = self._mask.feed(data)
            if data:
                return data
        return None

    async def flow(self, take: TakePiece) -> bool:
        direct = self._response
        if self._exit is None and isinstance(direct, DirectAnswer):
            return await self._flow(direct, take)
        while (data := await self.read()) is not None:
            if not take(data):
                return False
        return True

    async def _flow(self, response: DirectAnswer, take: TakePiece) -> bool:
        """Hand on without a task in between; the caller bounds the silence."""

        def masked(data: bytes) -> bool:
            data = self._mask.feed(data)
            return not data or take(data)

        is_broken = False
        try:
            if not await response.flow(masked if self._is_masked else take):
                return False
        except Broken:
            is_broken = True
        self._exit = self._ended(is_broken=is_broken)
        if rest := self._mask.end():
            take(rest)
        return True

    def masked(self, data: bytes) -> bytes:
        return self._carried.values.mask(data)

    def _ended(self, *, is_broken: bool) -> HttpResponse:
        return structs.replace(self._head, at=self._clock.now(), truncated=is_broken)

    @property
    def exit(self) -> Exit:
        if self._exit is None:
            self._exit = NoAnswer(
                exception="Cancelled", text="left before its end", at=self._clock.now(), gone=True
            )
        return self._exit

    @property
    def stated(self) -> None:
        return None

    async def aclose(self) -> None:
        response, self._response = self._response, None
        if isinstance(response, DirectAnswer):
            response.close()
        elif response is not None:
            with anyio.move_on_after(CLOSE_LIMIT_S, shield=True):
                await response.aclose()


# --- requests of attempts ------------------------------------------------------------------------

KNOWN = 16
"""Sets of secrets whose forms are kept."""

_VARIABLE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


class HttpTransport:
    """
    Args:
        environ: Where `secret_headers` find their variables, at the moment of sending.
        secrets: Where the credentials of requests are found; None: by `environ`.
        farewell_s: For what still comes when an answer is complete.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        environ: Mapping[str, str] = os.environ,
        secrets: Secrets | None = None,
        farewell_s: float = FAREWELL_S,
    ) -> None:
        self._environ = environ
        self._secrets = RealSecrets(environ=environ, now=clock.now) if secrets is None else secrets
        self._known: dict[tuple[str, ...], SecretValues] = {}
        """The last ones used, the oldest first."""
        self._line = BodyLine(clients=Clients(), clock=clock, farewell_s=farewell_s)

    async def open(
        self, call: Call, *, attempt: str, directory: str, env: dict[str, str]
    ) -> HttpRunning:
        """
        Prepare the request. It leaves with the first step of `chunks`.

        Raises:
            TypeError: `call` is no `HttpRequest`: the caller wired kinds and transports wrongly.
        """
        if not isinstance(call, HttpRequest):
            raise TypeError(f"attempt {attempt}: {type(call).__name__} is not an HTTP request")
        now = self._line.clock.now()
        problem: NotStarted | None = None
        carried = Carried()
        try:
            carried = await self._carried(call)
            begin = http_record.Begin(
                attempt=attempt, method=call.method, url=call.url.partition("?")[0], at=now
            )
            http_record.write_begin(directory, begin)
        except SecretProblem as error:
            problem = no_secret(error, at=now)
        except OSError as error:
            problem = NotStarted(
                error=http_record.name_of(error),
                text=f"{directory} cannot be written: {error.strerror or error}",
                path=directory,
                at=now,
                gone=True,
            )
        return HttpRunning(
            call, carried=carried, problem=problem, line=self._line, directory=directory
        )

    async def pass_on(self, request: HttpRequest) -> HttpPassing:
        """Prepare a request of which nothing is kept. It leaves with `head`."""
        problem: NotStarted | None = None
        try:
            carried = await self._carried(request)
        except SecretProblem as error:
            carried, problem = Carried(), no_secret(error, at=self._line.clock.now())
        return HttpPassing(request, carried=carried, problem=problem, line=self._line)

    async def attach(self, *, attempt: str, directory: str) -> http_record.RecordedRunning | None:
        """
        Find what an attempt of an earlier daemon has left. It is over: a request ends with its
        daemon.

        Returns:
            None: no request was begun there, and nothing but `open` begins one.
        """
        if not http_record.was_begun(directory):
            return None
        return http_record.RecordedRunning(directory, now=self._line.clock.now())

    async def detach(self) -> None:
        """Drop what is under way without a record of its end: a later daemon finds it lost."""
        self._line.is_detached = True
        await self.aclose()

    async def aclose(self) -> None:
        await self._line.direct.aclose()
        await self._line.clients.aclose()

    async def _carried(self, call: HttpRequest) -> Carried:
        """The request's secrets. One credential, read once, just before its use."""
        templates = {**call.secret_headers, **call.secret_fields}
        needs_credential = any(CREDENTIAL in text for text in templates.values())
        secret: str | None = None
        if needs_credential and call.credential is not None:
            secret = await self._secrets.read(call.credential)

        def filled(templates: Mapping[str, str]) -> dict[str, str]:
            own = {name: text for name, text in templates.items() if CREDENTIAL in text}
            others = {name: text for name, text in templates.items() if name not in own}
            found = resolve_secrets(others, self._environ)
            if secret is not None:
                found |= {name: text.replace(CREDENTIAL, secret) for name, text in own.items()}
            return found

        headers, fields = filled(call.secret_headers), filled(call.secret_fields)
        body = call.body
        if fields:
            body = msgspec.json.encode({**msgspec.json.decode(body), **fields})
        values = self._hiding((secret or "", *headers.values(), *fields.values()))
        return Carried(headers=headers, body=body, values=values)

    def _hiding(self, secrets: tuple[str, ...]) -> SecretValues:
        """Keep the forms of secrets: making them takes as long as the rest of a request."""
        found = self._known.pop(secrets, None)
        if found is None:
            found = SecretValues()
            for place, text in enumerate(secrets):
                found.learn(place, text)
        self._known[secrets] = found
        while len(self._known) > KNOWN:
            del self._known[next(iter(self._known))]
        return found


def resolve_secrets(templates: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """`{"Authorization": "Bearer {KEY}"}` with values; without those whose variable is unset."""
    resolved: dict[str, str] = {}
    for header, template in templates.items():
        names = _VARIABLE.findall(template)
        if all(environ.get(name, "").strip() for name in names):
            resolved[header] = _VARIABLE.sub(lambda m: environ[m.group(1)].strip(), template)
    return resolved
