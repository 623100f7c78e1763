"""
Calls to an opencode server and the stream of its events: to one that others run, and to the one
that this daemon keeps.

An opencode without a port is called through its plugin: `PluginLink` is a `Link` like
`OpencodeLink`, and everything above it is the same. The daemon uses an address only where the
process that announces it listens there.
"""

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
from msgspec import Struct

from fallbackd.lib import foreign_json
from fallbackd.lib.sse import EventReader
from fallbackd.ports.opencode import Called, Heard
from fallbackd.transports.opencode.second import SecondWire
from fallbackd.transports.opencode.wires import ROUTES
from fallbackd_conversations.opencode_versions import unsupported

if TYPE_CHECKING:
    import httpx2


USER = "opencode"
NOT_SUPPORTED = 505
"""Status of HTTP for a version that is not supported."""
NOT_AN_ANSWER = 415
"""Status for a web page in place of an answer, which says that nothing was done."""
CALL_LIMIT_S = 15.0
SILENCE_S = 35.0
"""Its heartbeat comes every 10 s (measured)."""
MAX_PROBLEM_CHARS = 200
MAX_EVENT_BYTES = 32 * 1024 * 1024
"""A longer event is skipped: it holds the output of a tool, which nothing here needs whole."""
_STREAMS = ("/global/event", "/event")
"""The second is what servers have that do not know the first: events of one directory."""
HEALTH = "/global/health"
_REFUSED = 405
"""Status of version 2 for what is not a `GET` and not known."""


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
        self._second: SecondWire | None = None
        """How it is asked; None: in the calls of version 1."""
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
        try:
            with anyio.fail_after(limit_s):
                return await self._call(method, path, body=body, directory=directory)
        except TimeoutError:
            return Called(status=0, problem=f"no answer within {limit_s:g} s")

    async def _call(
        self, method: str, path: str, *, body: Mapping[str, Any] | None, directory: str
    ) -> Called:
        if self._second is not None:
            called = await self._second.call(method, path, body=body, directory=directory)
            if path != HEALTH or called.is_good:
                return called
            self._second = None  # another version may listen there now
        query = {"directory": directory} if directory else {}
        called = await self._ask(method, path, query=query, body=body)
        if called.is_good or (called.status not in (_REFUSED, NOT_AN_ANSWER)):
            return called
        # Nothing was done: it does not know the call.
        return await self._ask_again(called, method, path, body=body, directory=directory)

    async def _ask_again(
        self,
        called: Called,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None,
        directory: str,
    ) -> Called:
        """Ask in the calls of the version that has answered with its web page."""
        for is_early in (False, True):
            second = SecondWire(self._ask, is_early=is_early)
            found = await second.call("GET", HEALTH)
            version = _version(found.body)
            if not found.is_good or version is None:
                continue
            if why := unsupported(version):
                return Called(
                    status=NOT_SUPPORTED, body=found.body, problem=why, is_unsupported=True
                )
            self._second = second
            return await second.call(method, path, body=body, directory=directory)
        return Called(status=404, problem=called.problem)

    async def _ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str],
        body: Mapping[str, Any] | None,
    ) -> Called:
        """One call in the words of its version."""
        import httpx2

        try:
            response = await self._client.request(
                method,
                path,
                params=dict(query),
                content=b"" if body is None else msgspec.json.encode(body),
                headers={} if body is None else {"content-type": "application/json"},
                timeout=None,
            )
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            return Called(status=0, problem=type(error).__name__)
        if response.is_success and _is_page(response):
            return Called(status=NOT_AN_ANSWER, problem="a web page instead of an answer")
        return _called(response, path)

    async def events(self) -> AsyncGenerator[Heard, None]:
        import httpx2

        timeout = httpx2.Timeout(CALL_LIMIT_S, read=SILENCE_S)
        second = self._second
        paths = _STREAMS if second is None else (ROUTES["events"].path,)
        for path in paths:
            try:
                async with self._client.stream(
                    "GET", path, timeout=timeout, headers={"accept": "text/event-stream"}
                ) as answer:
                    if answer.status_code == 404 or _is_page(answer):
                        continue
                    if not answer.is_success:
                        return
                    async for data in _event_data(answer):
                        if second is None:
                            if (heard := _heard(data)) is not None:
                                yield heard
                            continue
                        for one in await _translated(second, data):
                            yield one
            except httpx2.HTTPError:
                return
            return


async def _translated(second: SecondWire, data: bytes) -> list[Heard]:
    found = _event_in(data)
    if found is None or not isinstance(found.get("type"), str):
        return []
    place = found.get("location")
    directory = place.get("directory") if isinstance(place, dict) else None
    return [
        Heard(directory=directory if isinstance(directory, str) else "", event=one)
        for one in await second.heard(found)
    ]


def _called(response: "httpx2.Response", path: str) -> Called:
    try:
        answer = foreign_json.decode(response.content) if response.content else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        answer = None
        if response.is_success and _is_json(response):
            return Called(status=502, problem="an answer that cannot be read")
    if response.is_success:
        why = unsupported(_version(answer)) if path == HEALTH else ""
        status = NOT_SUPPORTED if why else response.status_code
        return Called(status=status, body=answer, problem=why, is_unsupported=bool(why))
    problem = f"HTTP {response.status_code}{_words(answer)}"
    return Called(status=response.status_code, body=answer, problem=problem)


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
    """Return what a refusal says, short."""
    if not isinstance(answer, dict):
        return ""
    data = answer.get("data")
    text = data.get("message") if isinstance(data, dict) else None
    text = text or answer.get("message") or answer.get("name")
    return f": {text[:MAX_PROBLEM_CHARS]}" if isinstance(text, str) and text else ""


def _event_in(data: bytes) -> dict[str, Any] | None:
    try:
        found = foreign_json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _heard(data: bytes) -> Heard | None:
    found = _event_in(data)
    if found is None:
        return None
    payload = found.get("payload")
    event = payload if isinstance(payload, dict) else found
    directory = found.get("directory")
    if not isinstance(event.get("type"), str) or not isinstance(event.get("properties"), dict):
        return None
    return Heard(directory=directory if isinstance(directory, str) else "", event=event)


# --- events of one prompt ------------------------------------------------------------------------
# What has been handed on of one prompt's events, and what of a server's state is news to that.
#
# A server repeats no event. Who has not listened for a while asks it for its state and gets from
# `Told.missed` what must have happened, as events of the same shape. Text that is still being
# written is not part of that state: it comes whole when it is complete.

ToldEvent = dict[str, Any]


class ToldSnapshot(Struct, frozen=True, kw_only=True):
    """The state of a prompt's session, and of those of its subagents."""

    main: str
    children: tuple[Mapping[str, Any], ...]
    """Sessions, parents first."""
    statuses: Mapping[str, Any]
    """Statuses of those at work. Asked for before the messages: what is idle has said all."""
    messages: Mapping[str, list[Any]]
    """`[{"info", "parts"}]` by session."""
    asked: tuple[ToldEvent, ...] = ()
    """`permission.asked` and `question.asked` that wait for an answer."""

    @property
    def is_busy(self) -> bool:
        status = self.statuses.get(self.main)
        return isinstance(status, dict) and status.get("type") != "idle"

    @property
    def last_answer(self) -> Mapping[str, Any] | None:
        """`info` of the last message of the assistant that is no summary."""
        return next(
            (info for info in reversed(self._answers()) if info.get("summary") is not True), None
        )

    @property
    def is_settled(self) -> bool:
        """Idle, and the end of its last turn is written down."""
        last = self._answers()[-1:]
        return not self.is_busy and bool(last) and (_is_complete(last[0]) or "error" in last[0])

    def _answers(self) -> list[Mapping[str, Any]]:
        infos = (_fields(each).get("info") for each in self.messages.get(self.main, ()))
        return [each for each in infos if isinstance(each, dict) and each.get("role") != "user"]


class Told:
    """Takes every event that is handed on, the recorded ones first."""

    def __init__(self) -> None:
        self._seen: dict[str, bytes] = {}
        self._whole: set[str] = set()
        self._asked: set[str] = set()
        self.has_session = False
        self.children: dict[str, str] = {}
        """Parent by child session."""

    def take(self, event: Mapping[str, Any]) -> None:
        properties = _fields(event.get("properties"))
        key = _key(event)
        if key:
            self._seen[key] = _digest(event)
        match event.get("type"):
            case "fallbackd.session":
                self.has_session = True
            case "session.created":
                info = _fields(properties.get("info"))
                if info.get("parentID"):
                    self.children[str(info.get("id"))] = str(info["parentID"])
            case "permission.asked" | "question.asked":
                self._asked.add(str(properties.get("id")))
            case "message.part.updated":
                part = _fields(properties.get("part"))
                if part.get("text"):
                    self._whole.add(str(part.get("id")))
                else:
                    self._whole.discard(str(part.get("id")))

    def has(self, event: Mapping[str, Any]) -> bool:
        """Return whether it says nothing new: the same state, or a piece of a whole text."""
        if event.get("type") == "message.part.delta":
            return str(_fields(event.get("properties")).get("partID")) in self._whole
        if event.get("type") in ("permission.asked", "question.asked"):
            return str(_fields(event.get("properties")).get("id")) in self._asked
        key = _key(event)
        return bool(key) and self._seen.get(key) == _digest(event)

    def missed(self, now: ToldSnapshot) -> Iterator[ToldEvent]:
        """Yield what has happened since the last event that was taken, and take it."""
        for each in self._missed(now):
            if not self.has(each):
                self.take(each)
                yield each

    def _missed(self, now: ToldSnapshot) -> Iterator[ToldEvent]:
        for child in now.children:
            yield _event("session.created", str(child.get("id")), info=child)
        for session, messages in now.messages.items():
            for message in messages:
                yield from self._message(session, _fields(message), is_main=session == now.main)
        for session in (now.main, *(str(each.get("id")) for each in now.children)):
            if isinstance(status := now.statuses.get(session), dict):
                yield _event("session.status", session, status=status)
        yield from now.asked

    def _message(
        self, session: str, message: Mapping[str, Any], *, is_main: bool
    ) -> Iterator[ToldEvent]:
        info = _fields(message.get("info"))
        updated = _event("message.updated", session, info=info)
        is_news = not self.has(updated)
        yield updated  # first: its parts are read by its role
        parts = message.get("parts")
        for part in parts if isinstance(parts, list) else []:
            yield _event("message.part.updated", session, part=_fields(part))
        if is_main and is_news and info.get("summary") is True and _is_complete(info):
            yield _event("session.compacted", session)


def _is_complete(info: Mapping[str, Any]) -> bool:
    return bool(info.get("finish")) or "completed" in _fields(info.get("time"))


def _event(kind: str, session: str, **properties: Any) -> ToldEvent:
    return {"type": kind, "properties": {"sessionID": session, **properties}}


def _key(event: Mapping[str, Any]) -> str:
    """Name what an event says the state of; empty: it is something that happens, each time anew."""
    properties = _fields(event.get("properties"))
    kind = str(event.get("type"))
    match kind:
        case "message.updated":
            return f"message/{_fields(properties.get('info')).get('id')}"
        case "message.part.updated":
            return f"part/{_fields(properties.get('part')).get('id')}"
        case "session.status":
            return f"status/{properties.get('sessionID')}"
        case "session.created":
            return f"session/{_fields(properties.get('info')).get('id')}"
        case "fallbackd.final":
            return kind
        case _:
            return ""


def _digest(event: Mapping[str, Any]) -> bytes:
    """Hash what it says, not when or which event said it."""
    properties = _fields(event.get("properties"))
    match event.get("type"):
        case "session.created":
            return b"made"  # its totals change all the time
        case "message.part.updated":
            said: object = properties.get("part")
        case "message.updated":
            said = properties.get("info")
        case _:
            said = properties
    encoded = msgspec.json.encode(said, order="sorted")
    return hashlib.blake2b(encoded, digest_size=16).digest()


def _fields(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
