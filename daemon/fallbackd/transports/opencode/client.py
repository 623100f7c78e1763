"""What goes over the wire to a helper server: single calls, and its stream of events."""

from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from fallbackd.transports.opencode.events import event_data

if TYPE_CHECKING:
    pass

USER = "opencode"
CALL_LIMIT_S = 15.0
EVENT_SILENCE_S = 35.0
"""Its heartbeat comes every 10 s (measured)."""


class CallFailed(Exception):
    """The server did not do what was asked. `status` 0: no answer at all."""

    def __init__(self, status: int, body: Any, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.body = body
        """Whatever JSON it answered (`{"name", "data"}` as a rule), or None."""


class ServerClient:
    def __init__(self, port: int, password: str) -> None:
        import httpx2

        # Never through a proxy: this is our own loopback.
        self._client = httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{port}",
            auth=httpx2.BasicAuth(USER, password),
            trust_env=False,
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
        cwd: str | None = None,
        limit_s: float = CALL_LIMIT_S,
    ) -> Any:
        """
        One call. The answer is its JSON (of any shape), None where it has none.

        Raises:
            CallFailed: A status that is no success, no answer within `limit_s`, no connection.
        """
        import httpx2

        try:
            with anyio.fail_after(limit_s):
                response = await self._client.request(
                    method,
                    path,
                    params={} if cwd is None else {"directory": cwd},
                    content=b"" if body is None else msgspec.json.encode(body),
                    headers={} if body is None else {"content-type": "application/json"},
                    timeout=limit_s,
                )
        except (httpx2.HTTPError, TimeoutError) as error:
            raise CallFailed(0, None, f"{method} {path}: {type(error).__name__}") from error
        try:
            answer = msgspec.json.decode(response.content) if response.content else None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            answer = None
        if not response.is_success:
            raise CallFailed(response.status_code, answer, f"{method} {path}: {response}")
        return answer

    async def events(self) -> AsyncGenerator[dict[str, Any], None]:
        """
        Events of all directories, without their wrapper.

        Ends when the stream does, for whatever reason: also when not even a heartbeat came.
        """
        import httpx2

        timeout = httpx2.Timeout(CALL_LIMIT_S, read=EVENT_SILENCE_S)
        try:
            async with self._client.stream("GET", "/global/event", timeout=timeout) as answer:
                async for data in event_data(answer):
                    event = _unwrap(data)
                    if event is not None:
                        yield event
        except httpx2.HTTPError:
            return


def _unwrap(data: bytes) -> dict[str, Any] | None:
    try:
        wrapped = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    event = wrapped.get("payload") if isinstance(wrapped, dict) else None
    if not isinstance(event, dict) or not isinstance(event.get("properties"), dict):
        return None
    return event
