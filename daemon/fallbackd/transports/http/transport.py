"""
Sends HTTP requests, one per attempt, over pools of connections that all attempts share.

The engine is the only retry loop, and a redirect is an answer. What is sent again here is only a
request that met a kept connection as the server closed it.
"""

import os
import re
from collections.abc import Mapping

import msgspec

from fallbackd.core.protocol import CREDENTIAL, Call, HttpRequest, NotStarted
from fallbackd.lib.secretvalues import SecretValues
from fallbackd.ports.clock import Clock
from fallbackd.ports.secrets import SecretProblem, Secrets
from fallbackd.transports.http import record as http_record
from fallbackd.transports.http.clients import Clients
from fallbackd.transports.http.passing import HttpPassing
from fallbackd.transports.http.running import FAREWELL_S, BodyLine, Carried, HttpRunning
from fallbackd.transports.secrets import SecretSources as RealSecrets
from fallbackd.transports.secrets import no_secret

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
        What an attempt of an earlier daemon has left. It is over: a request ends with its daemon.

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
        """To write a secret in all its forms takes as long as the rest of a request."""
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
