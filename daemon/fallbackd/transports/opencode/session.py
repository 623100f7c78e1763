"""One session on a helper server: calls about it, tools of its prompt, and their end."""

import os
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any, assert_never

import anyio
import msgspec
from msgspec import Struct

from fallbackd.core.protocol import (
    WRONG_VERSION,
    Exit,
    HttpResponse,
    NoAnswer,
    NotStarted,
    ProcessExit,
)
from fallbackd.transports.opencode.link import CallFailed, ToldEvent, ToldSnapshot
from fallbackd.transports.opencode.server import OpencodeServer
from fallbackd.transports.process.orphans import end_all
from fallbackd.transports.process.runner import tree

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
    """Continue a session for one more prompt in it. Raises `CallFailed`."""
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
        """Return whether it tells of what the session held before."""
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
        """Look for it in the list of sessions that are at work. True where it cannot be had."""
        try:
            return ToldSnapshot(
                main=self.name, children=(), statuses=await self._statuses(), messages={}
            ).is_busy
        except CallFailed:
            return True

    async def abort(self) -> bool:
        """Abort, and wait until it is idle. False: unknown. Bounded by the caller."""
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
        """Delete it: no prompt can reach it any more, not even a late one."""
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
        """Read the rows of a list; none where this version of the server does not have it."""
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


# --- tools of a prompt ---------------------------------------------------------------------------
# Which processes below a helper server are the tools of one prompt, and their end.
#
# A tool runs in a session of its own; language and tool servers stay in the session of the helper
# server. What the prompt may have started is what was not there when it began. Of that, its own is
# what works inside its directory, everything below such a process, and, where it had the server to
# itself, every new session, wherever it works.
#
# The runner above the server is a sub-reaper, so what loses its parent stays below the runner.

TERM_S = 1.0
"""Time for tools to end by themselves, after the server has dropped them."""
KILL_S = 5.0
_LOOK_S = 0.02


class ToolWatch(Struct, frozen=True, kw_only=True):
    """The processes that ran below the server when a prompt began."""

    server_pid: int
    cwd: str
    before: frozenset[tuple[int, int]]


def watch_tools(server_pid: int, cwd: str) -> ToolWatch:
    before = frozenset((each.pid, each.start) for each in _below(server_pid))
    return ToolWatch(server_pid=server_pid, cwd=cwd, before=before)


def find_tools(
    watch: ToolWatch, *, is_alone: bool, all_sessions: bool = False
) -> list[tree.Process]:
    """
    The prompt's own processes that live.

    Args:
        is_alone: No other prompt has used the server since this one began.
        all_sessions: With those in the server's own session (language servers and the like).
    """
    server = tree.process(watch.server_pid)
    fresh = [
        each for each in _below(watch.server_pid) if (each.pid, each.start) not in watch.before
    ]
    elsewhere = [each for each in fresh if server is None or each.session != server.session]
    if not all_sessions:
        fresh = elsewhere
    own = {each.pid for each in fresh if _works_in(each, watch.cwd)}
    if is_alone and server is not None:
        own |= {each.pid for each in elsewhere}
    own |= {each.pid for each in tree.descendants(own, fresh)}
    return [each for each in fresh if each.pid in own]


async def end_tools(watch: ToolWatch, *, is_alone: bool, all_sessions: bool = False) -> bool:
    """
    TERM, then KILL, until two looks in a row find none.

    Returns:
        Whether they are gone.
    """

    def tools() -> list[tree.Process]:
        return find_tools(watch, is_alone=is_alone, all_sessions=all_sessions)

    return await end_all(tools, 2, grace_s=TERM_S, bound_s=KILL_S) == []


def _below(server_pid: int) -> list[tree.Process]:
    processes = tree.processes()
    roots = {server_pid}
    server = next((each for each in processes if each.pid == server_pid), None)
    # Never the daemon itself or init: they have children that are none of ours.
    if server is not None and server.parent not in (0, 1, os.getpid()):
        roots.add(server.parent)
    below = tree.descendants(roots, processes)
    return [each for each in below if each.pid not in roots and not each.is_dead]


def _works_in(process: tree.Process, cwd: str) -> bool:
    try:
        at = os.readlink(f"/proc/{process.pid}/cwd")
    except FileNotFoundError:
        return False  # it has just ended
    except OSError:
        return True  # not ours to look at, so not ours to clear either
    return at == cwd or at.startswith(cwd.rstrip("/") + "/")


# --- endings -------------------------------------------------------------------------------------
# How a prompt ends whose server did not do its part.

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def without_server(server: OpencodeServer, *, was_posted: bool, at: float) -> Exit:
    """The server did not start, or ended under the prompt."""
    exit, gone = server.exit, server.is_gone
    tail = _COLOURS.sub("", server.tail.decode(errors="replace")).strip()
    if server.unsupported:
        return NotStarted(error=WRONG_VERSION, text=server.unsupported, at=at, gone=gone)
    if server.stop_reason:
        # We ended it: for this prompt it is as if the other side had hung up.
        exception = "RemoteProtocolError" if was_posted else "ConnectTimeout"
        text = f"the helper server was ended: {server.stop_reason}\n{tail}".strip()
        return NoAnswer(exception=exception, text=text, at=at, gone=gone)
    match exit:
        case ProcessExit(code=0) | None:
            text = f"the helper server ended by itself\n{tail}".strip()
            return NoAnswer(exception="RemoteProtocolError", text=text, at=at, gone=gone)
        case ProcessExit():
            note = f"the helper server ended by itself\n{tail}".strip()
            return msgspec.structs.replace(exit, note=note, at=at)
        case NotStarted() | NoAnswer() | HttpResponse():
            return exit
        case _:
            assert_never(exit)


def error_of(error: CallFailed) -> dict[str, Any]:
    """Make an error in the shape of `session.error`, which the answer mostly has."""
    answer = error.body if isinstance(error.body, dict) else {}
    data = answer.get("data")
    data = data if isinstance(data, dict) else {}
    name = answer.get("name")
    return {
        "name": name if isinstance(name, str) else "UnknownError",
        "data": {"message": str(error), **data, "statusCode": error.status},
    }
