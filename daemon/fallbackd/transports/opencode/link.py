"""
Calls to an opencode server and the stream of its events: to one that others run, and to the one
that this daemon keeps.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from fallbackd.lib import foreign_json
from fallbackd.lib.sse import EventReader
from fallbackd.ports.opencode import Called, Heard
from fallbackd_conversations.opencode_versions import unsupported

if TYPE_CHECKING:
    import httpx2

USER = "opencode"
NOT_SUPPORTED = 505
"""Status of HTTP for a version that is not supported."""
CALL_LIMIT_S = 15.0
SILENCE_S = 35.0
"""Its heartbeat comes every 10 s (measured)."""
MAX_PROBLEM_CHARS = 200
MAX_EVENT_BYTES = 32 * 1024 * 1024
"""A longer event is skipped: it holds the output of a tool, which nothing here needs whole."""
_STREAMS = ("/global/event", "/event")
"""The second is what servers have that do not know the first: events of one directory."""
HEALTH = "/global/health"
_NEWER = "/api/"
_NEWER_HEALTH = (f"{_NEWER}info", f"{_NEWER}health")
"""Of 2.0.4 and later, and of the versions before it."""


class CallFailed(Exception):
    """The server did not do what was asked. `status` 0: no answer at all."""

    def __init__(self, status: int, body: Any, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.body = body
        """Whatever JSON it answered (`{"name", "data"}` as a rule), or None."""


class OpencodeLink:
    is_inside = False
    pid: int | None = None

    def __init__(self, url: str, *, password: str | None) -> None:
        import httpx2

        self.url = url.rstrip("/")
        self._client = httpx2.AsyncClient(
            base_url=self.url,
            auth=None if password is None else httpx2.BasicAuth(USER, password),
            # Never through a proxy, and nowhere but to the server that was named.
            trust_env=False,
            follow_redirects=False,
            limits=httpx2.Limits(max_connections=None),
        )

    async def aclose(self) -> None:
        await self._client.aclose()

    async def call(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        directory: str = "",
        limit_s: float = CALL_LIMIT_S,
    ) -> Called:
        import httpx2

        try:
            with anyio.fail_after(limit_s):
                response = await self._client.request(
                    method,
                    path,
                    params={"directory": directory} if directory else {},
                    content=b"" if body is None else msgspec.json.encode(body),
                    headers={} if body is None else {"content-type": "application/json"},
                    timeout=limit_s,
                )
        except TimeoutError:
            return Called(status=0, problem=f"no answer within {limit_s:g} s")
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            return Called(status=0, problem=type(error).__name__)
        try:
            answer = foreign_json.decode(response.content) if response.content else None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            answer = None
            if response.is_success and _is_json(response):
                return Called(status=502, problem="an answer that cannot be read")
        if response.is_success and _is_page(response) and not path.startswith(_NEWER):
            return await self._not_understood(limit_s)
        if response.is_success:
            why = unsupported(_version(answer)) if path == HEALTH else ""
            status = NOT_SUPPORTED if why else response.status_code
            return Called(status=status, body=answer, problem=why, is_unsupported=bool(why))
        problem = f"HTTP {response.status_code}{_words(answer)}"
        return Called(status=response.status_code, body=answer, problem=problem)

    async def _not_understood(self, limit_s: float) -> Called:
        """It has answered with its web page, as version 2 does where it does not know a call."""
        for path in _NEWER_HEALTH:
            called = await self.call("GET", path, limit_s=limit_s)
            if called.is_good and (why := unsupported(_version(called.body))):
                return Called(
                    status=NOT_SUPPORTED, body=called.body, problem=why, is_unsupported=True
                )
        return Called(status=404, problem="a web page instead of an answer")

    async def events(self) -> AsyncGenerator[Heard, None]:
        import httpx2

        timeout = httpx2.Timeout(CALL_LIMIT_S, read=SILENCE_S)
        for path in _STREAMS:
            try:
                async with self._client.stream("GET", path, timeout=timeout) as answer:
                    if answer.status_code == 404 or _is_page(answer):
                        continue
                    if not answer.is_success:
                        return
                    async for data in _event_data(answer):
                        heard = _heard(data)
                        if heard is not None:
                            yield heard
            except httpx2.HTTPError:
                return
            return


async def _event_data(answer: "httpx2.Response") -> AsyncIterator[bytes]:
    """The data of each event; one that did not arrive as it was sent is skipped."""
    reader = EventReader(max_bytes=MAX_EVENT_BYTES)
    async for piece in answer.aiter_bytes():
        for event in reader.feed(piece):
            if event.data and not event.problem:
                yield event.data


def _is_json(response: "httpx2.Response") -> bool:
    return "json" in response.headers.get("content-type", "")


def _is_page(response: "httpx2.Response") -> bool:
    return "html" in response.headers.get("content-type", "")


def _version(answer: object) -> object:
    return answer.get("version") if isinstance(answer, dict) else None


def _words(answer: object) -> str:
    """What a refusal says, short."""
    if not isinstance(answer, dict):
        return ""
    data = answer.get("data")
    text = data.get("message") if isinstance(data, dict) else None
    text = text or answer.get("message") or answer.get("name")
    return f": {text[:MAX_PROBLEM_CHARS]}" if isinstance(text, str) and text else ""


def _heard(data: bytes) -> Heard | None:
    try:
        found = foreign_json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    payload = found.get("payload")
    event = payload if isinstance(payload, dict) else found
    directory = found.get("directory")
    if not isinstance(event.get("type"), str) or not isinstance(event.get("properties"), dict):
        return None
    return Heard(directory=directory if isinstance(directory, str) else "", event=event)
