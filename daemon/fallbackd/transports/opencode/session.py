"""The calls about one session on a helper server. Nothing is remembered here."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

import anyio

from fallbackd.transports.opencode.link import CallFailed
from fallbackd.transports.opencode.server import OpencodeServer
from fallbackd.transports.opencode.told import ToldEvent, ToldSnapshot

CREATE_LIMIT_S = 90.0
"""The first session of a directory waits for the user's plugins, which may be installed first."""
LOOK_S = 0.1
NOT_FOUND = 404
_MAX_CHILDREN = 200


async def create_session(server: OpencodeServer, *, title: str, cwd: str) -> "ServedSession":
    """Raises `CallFailed`."""
    made = await server.call(
        "POST", "/session", body={"title": title}, cwd=cwd, limit_s=CREATE_LIMIT_S
    )
    name = str(made.get("id", "")) if isinstance(made, dict) else ""
    if not name:
        raise CallFailed(502, None, "the server made a session without an id")
    return ServedSession(server, name, cwd=cwd)


async def continue_session(server: OpencodeServer, name: str, *, cwd: str) -> "ServedSession":
    """For one more prompt in it. Raises `CallFailed`."""
    whole = ServedSession(server, name, cwd=cwd)
    earlier = [str(_id_of(each)) for each in await whole.messages()]
    earlier += [str(each["id"]) for each in await whole.children()]
    return ServedSession(server, name, cwd=cwd, earlier=tuple(earlier))


class ServedSession:
    """
    A session as far as one prompt goes: what it held before is passed over.

    All methods raise `CallFailed`, but for those that say otherwise.
    """

    def __init__(
        self, server: OpencodeServer, name: str, *, cwd: str, earlier: tuple[str, ...] = ()
    ) -> None:
        """
        Args:
            earlier: Ids of messages, and of subagents' sessions.
        """
        self.server = server
        self.name = name
        self.earlier = earlier
        self._cwd = cwd
        self._earlier = frozenset(earlier)

    def is_earlier(self, event: ToldEvent) -> bool:
        """Whether it tells of what the session held before."""
        properties = event["properties"]
        named = [properties.get("sessionID"), properties.get("messageID")]
        for kind, field in (("info", "id"), ("part", "messageID")):
            one = properties.get(kind)
            named.append(one.get(field) if isinstance(one, dict) else None)
        return any(isinstance(one, str) and one in self._earlier for one in named)

    async def post(self, prompt: str, *, model: str | None, agent: str | None) -> None:
        body: dict[str, Any] = {"parts": [{"type": "text", "text": prompt}]}
        if model is not None:
            provider, _, name = model.partition("/")
            body["model"] = {"providerID": provider, "modelID": name}
        if agent is not None:
            body["agent"] = agent
        await self._call("POST", f"/session/{self.name}/prompt_async", body=body)

    async def messages(self, session: str = "") -> list[Any]:
        found = await self._call("GET", f"/session/{session or self.name}/message")
        rows = found if isinstance(found, list) else []
        return [each for each in rows if _id_of(each) not in self._earlier]

    async def is_busy(self) -> bool:
        """By the list of sessions that are at work. True where it cannot be had."""
        try:
            return ToldSnapshot(
                main=self.name, children=(), statuses=await self._statuses(), messages={}
            ).is_busy
        except CallFailed:
            return True

    async def abort(self) -> bool:
        """Until it is idle. False: unknown. Bounded by the caller."""
        while not self.server.is_over:
            try:
                await self._call("POST", f"/session/{self.name}/abort")
            except CallFailed:
                return self.server.is_over
            if not await self.is_busy():
                return True
            await anyio.sleep(LOOK_S)
        return True

    async def delete(self) -> None:
        """After this no prompt can reach it, also none that was sent before and is late."""
        await self._call("DELETE", f"/session/{self.name}")

    async def look(self) -> ToldSnapshot:
        statuses = await self._statuses()
        children = await self.children()
        names = [self.name, *(str(each["id"]) for each in children)]
        return ToldSnapshot(
            main=self.name,
            children=tuple(children),
            statuses=statuses,
            messages={name: await self.messages(name) for name in names},
            asked=tuple([each async for each in self._asked(set(names))]),
        )

    async def children(self) -> list[Mapping[str, Any]]:
        """Sessions of its subagents at any depth, parents first."""
        children: list[Mapping[str, Any]] = []
        parents = [self.name]
        while parents and len(children) < _MAX_CHILDREN:
            found = await self._rows(f"/session/{parents.pop(0)}/children")
            below = [each for each in found if each.get("id") and each["id"] not in self._earlier]
            children += below
            parents += [str(each["id"]) for each in below]
        return children

    async def answer(self, event: ToldEvent, *, allow: bool) -> bool:
        """
        Answer what a tool asks. Does not raise.

        Returns:
            Whether the answer was no.
        """
        asked = event["properties"]
        body: dict[str, Any] = {}
        if event.get("type") == "permission.asked":
            path = f"/permission/{asked.get('id')}/reply"
            body = {"reply": "once" if allow else "reject"}
        else:
            allow = False  # no person is there to answer
            path = f"/question/{asked.get('id')}/reject"
        try:
            await self._call("POST", path, body=body)
        except CallFailed:
            pass  # answered already, or the server is ending: its events tell
        return not allow

    async def _statuses(self) -> Mapping[str, Any]:
        found = await self._call("GET", "/session/status")
        return found if isinstance(found, dict) else {}

    async def _asked(self, sessions: set[str]) -> AsyncIterator[ToldEvent]:
        for word in ("permission", "question"):
            for each in await self._rows(f"/{word}"):
                if each.get("sessionID") in sessions:
                    yield {"type": f"{word}.asked", "properties": dict(each)}

    async def _rows(self, path: str) -> list[Mapping[str, Any]]:
        """Of a list; none where this version of the server does not have it."""
        try:
            found = await self._call("GET", path)
        except CallFailed as error:
            if error.status != NOT_FOUND:
                raise
            return []
        return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []

    async def _call(self, method: str, path: str, *, body: Mapping[str, Any] | None = None) -> Any:
        return await self.server.call(method, path, body=body, cwd=self._cwd)


def _id_of(message: object) -> str | None:
    info = message.get("info") if isinstance(message, dict) else None
    return info.get("id") if isinstance(info, dict) else None
