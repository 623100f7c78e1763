"""
The course of one prompt on a helper server: a session, the prompt, its events, its end.

```
 (lease) -> session -> post -> events ... idle -> last message -> tools gone -> ProcessExit 0 | 1
    |          |         |        |
    +----------+---------+--------+-- stop: abort, idle, tools gone ----------> NoAnswer, stopped
                                      | not proven
                                      +-- end the server, whose exit proves it
```
"""

import collections
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar, assert_never

import anyio
import msgspec

from fallbackd.core.exchange import (
    Chunk,
    Exit,
    HttpResponse,
    NoAnswer,
    NotStarted,
    ProcessExit,
    ServedPrompt,
)
from fallbackd.ports.clock import Clock
from fallbackd.ports.transport import Running
from fallbackd.transports.http import OutputLog
from fallbackd.transports.served_client import CallFailed
from fallbackd.transports.served_server import Server
from fallbackd.transports.served_tools import ToolWatch, end_tools, find_tools, watch_tools

T = TypeVar("T")

MIN_ABORT_S = 2.0
"""What an abort gets even where `stop` grants less: it takes 0.05 s (measured)."""
LOOK_S = 0.1
SESSION_LIMIT_S = 90.0
"""The first session of a directory waits for the user's plugins, which may be installed first."""

HANDED_ON = frozenset(
    {
        "session.status",
        "session.error",
        "session.idle",
        "session.created",
        "session.compacted",
        "message.updated",
        "message.removed",
        "message.part.updated",
        "message.part.delta",
        "permission.asked",
        "permission.replied",
        "question.asked",
    }
)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_FINAL_PARTS = frozenset({"text", "step-start", "step-finish"})


class RunningPrompt:
    """One prompt under way. See `ports.transport.Running`."""

    def __init__(
        self,
        call: ServedPrompt,
        *,
        lease: Callable[[], Server | None],
        otherwise: Callable[[], Awaitable[Running | None]],
        attempt: str,
        directory: str,
        clock: Clock,
    ) -> None:
        """
        Args:
            lease: Gives the server, with a lease on it; None when no more prompts are taken.
            otherwise: Starts what does the same without a server; None where nothing does.
        """
        self._call = call
        self._lease = lease
        self._otherwise = otherwise
        self._instead: Running | None = None
        self._clock = clock
        self._log = OutputLog(directory)
        self.cwd = call.cwd
        self.attempt = attempt
        self._server: Server | None = None
        self._session = ""
        self._posted = False
        self._tools: ToolWatch | None = None
        self._heard: collections.deque[dict[str, Any]] = collections.deque()
        self._news = anyio.Event()
        self._had_gap = False
        self._is_idle = False
        self._failed = False
        self._is_alone = True
        self._scope: anyio.CancelScope | None = None
        self._stop_grace_s: float | None = None
        self._exit: Exit | None = None

    def __repr__(self) -> str:
        return f"RunningPrompt({self._call!r})"

    @property
    def pid(self) -> int | None:
        """None: the server's process is not this attempt's to end."""
        return None if self._instead is None else self._instead.pid

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
        return self._log.size_bytes if self._instead is None else self._instead.log_bytes

    def stop(self, *, grace_s: float) -> None:
        if self._stop_grace_s is None:
            self._stop_grace_s = grace_s
        if self._instead is not None:
            self._instead.stop(grace_s=grace_s)
        if self._scope is not None:
            self._scope.cancel()

    # --- what the server tells ------------------------------------------------------------------

    def hear(self, event: dict[str, Any]) -> None:
        kind = event.get("type")
        properties = event["properties"]
        if properties.get("sessionID") == self._session:
            status = properties.get("status")
            if kind == "session.idle" or (
                kind == "session.status"
                and isinstance(status, dict)
                and status.get("type") == "idle"
            ):
                self._is_idle = True
            elif kind == "session.status":
                self._is_idle = False
            elif kind == "session.error":
                self._failed = True
            elif kind == "session.compacted":
                self._failed = False
        if kind in HANDED_ON:
            self._heard.append(event)
        self._news.set()

    def reconnected(self) -> None:
        self._had_gap = True
        self._news.set()

    def server_over(self) -> None:
        self._news.set()

    def has_started(self, pid: int) -> bool:
        if self._tools is None:
            return False
        return any(each.pid == pid for each in find_tools(self._tools, is_alone=self._is_alone))

    def joined(self) -> None:
        """Another prompt uses the server too from now on."""
        self._is_alone = False

    # --- its course -----------------------------------------------------------------------------

    async def chunks(self) -> AsyncIterator[Chunk]:
        """See `ports.transport.Running`. Leaving early aborts the prompt and waits for that."""
        try:
            async for chunk in self._course():
                if self._instead is None:  # a process of its own is recorded by its runner
                    self._log.write(chunk)
                yield chunk
        finally:
            self._log.close()
            if self._exit is None and self._instead is None:
                with anyio.CancelScope(shield=True):  # every wait in there is bounded
                    self._exit = await self._stopped()
            if self._server is not None:
                self._server.leave(self)
                self._server.release()

    async def _course(self) -> AsyncIterator[Chunk]:
        server = self._lease()
        if server is None:
            self._exit = NoAnswer(
                exception="Cancelled", text="the daemon is stopping", at=self._clock.now()
            )
            return
        self._server = server
        if not await self._unless_stopped(server.settled):
            if self._stop_grace_s is None:
                if not isinstance(server.exit, NotStarted):
                    self._instead = await self._otherwise()
                if self._instead is not None:
                    async for chunk in self._instead.chunks():
                        yield chunk
                    self._exit = self._instead.exit
                    return
                if server.tail:
                    yield Chunk("stderr", server.tail, self._clock.now())
                self._exit = self._without_server(server)
            else:
                self._exit = await self._stopped()
            return
        try:
            # A session that is made for a prompt that was stopped meanwhile stays empty.
            if (begun := await self._unless_stopped(lambda: self._begin(server))) is not None:
                yield begun
            if self._stop_grace_s is None:
                await self._post(server)
        except CallFailed as error:
            self._failed = self._is_idle = True
            if error.status:
                yield self._line("session.error", error=_error_of(error))
            elif not server.is_over:
                # Whether it has taken the prompt nobody knows.
                self._exit = await self._stopped()
                self._exit = NoAnswer(
                    exception="ReadTimeout",
                    text=str(error),
                    at=self._clock.now(),
                    gone=self._exit.gone,
                )
                return
        while self._stop_grace_s is None and not server.is_over:
            while self._heard:
                event = self._heard.popleft()
                yield self._chunk(event)
                async for answer in self._answer(server, event):
                    yield answer
            if self._is_idle:
                break
            await self._unless_stopped(lambda: self._more(server))
        if server.is_over:
            self._exit = self._without_server(server)
        elif self._stop_grace_s is not None:
            self._exit = await self._stopped()
        else:
            if (final := await self._final(server)) is not None:
                yield final
            gone = await self._end_tools(server)
            self._exit = ProcessExit(
                code=1 if self._failed else 0,
                at=self._clock.now(),
                gone=gone,
                stopped=self._stop_grace_s is not None,
            )

    async def _begin(self, server: Server) -> Chunk:
        """Create the session. No tool can run before this, so what runs now is not ours."""
        assert server.pid is not None
        self._tools = watch_tools(server.pid, self._call.cwd)
        made = await server.call(
            "POST",
            "/session",
            body={"title": self._call.title},
            cwd=self._call.cwd,
            limit_s=SESSION_LIMIT_S,
        )
        self._session = str(made.get("id", "")) if isinstance(made, dict) else ""
        if not self._session:
            raise CallFailed(502, None, "the server made a session without an id")
        for other in server.others_than(self):
            self._is_alone = False
            if isinstance(other, RunningPrompt):
                other.joined()
        server.listen(self._session, self)
        return self._line("fallbackd.session")

    async def _post(self, server: Server) -> None:
        call = self._call
        body: dict[str, Any] = {"parts": [{"type": "text", "text": call.prompt}]}
        if call.model is not None:
            provider, _, model = call.model.partition("/")
            body["model"] = {"providerID": provider, "modelID": model}
        if call.agent is not None:
            body["agent"] = call.agent
        self._posted = True
        # Not given up when stopped: a prompt that arrives after its abort would run.
        await server.call("POST", f"/session/{self._session}/prompt_async", body=body, cwd=call.cwd)

    async def _more(self, server: Server) -> None:
        await self._news.wait()
        self._news = anyio.Event()
        if self._had_gap:
            self._had_gap = False
            self._is_idle = self._is_idle or not await self._is_busy(server)

    async def _answer(self, server: Server, event: dict[str, Any]) -> AsyncIterator[Chunk]:
        """Nobody is there to be asked, and what waits for an answer waits for ever."""
        asked = event["properties"]
        match event.get("type"):
            case "permission.asked":
                reply = "once" if self._call.permissions == "full" else "reject"
                path, body = f"/permission/{asked.get('id')}/reply", {"reply": reply}
                permission = asked.get("permission")
            case "question.asked":
                reply = "reject"
                path, body = f"/question/{asked.get('id')}/reject", {}
                permission = "question"
            case _:
                return
        try:
            await server.call("POST", path, body=body, cwd=self._call.cwd)
        except CallFailed:
            pass  # answered already, or the server is ending: its events tell
        if reply == "reject":
            yield self._line("fallbackd.permission", permission=permission)

    async def _final(self, server: Server) -> Chunk | None:
        try:
            messages = await server.call(
                "GET", f"/session/{self._session}/message", cwd=self._call.cwd
            )
        except CallFailed:
            return None  # the events have the text too
        for message in reversed(messages if isinstance(messages, list) else []):
            info = message.get("info", {})
            if info.get("role") == "assistant" and info.get("summary") is not True:
                parts = [p for p in message.get("parts", []) if p.get("type") in _FINAL_PARTS]
                return self._line("fallbackd.final", message={"info": info, "parts": parts})
        return None

    # --- its end --------------------------------------------------------------------------------

    async def _stopped(self) -> Exit:
        """Abort what runs, and prove that it is gone. Every wait in here is bounded."""
        server = self._server
        gone = True
        if server is not None and self._session and not server.is_over:
            grace_s = max(MIN_ABORT_S, self._stop_grace_s or 0.0)
            with anyio.move_on_after(grace_s):
                still = await self._abort(server)
                gone = still and await self._end_tools(server, all_sessions=True)
                # A turn that began behind the abort would show now.
                gone = gone and not await self._is_busy(server)
                grace_s = 0.0
            if grace_s or not gone:
                server.stop("a prompt on it could not be proven stopped")
                await server.ended()
        if server is not None and server.is_over and server.exit is not None:
            gone = server.exit.gone
        return NoAnswer(
            exception="Cancelled", text="stopped", at=self._clock.now(), gone=gone, stopped=True
        )

    async def _abort(self, server: Server) -> bool:
        while not server.is_over:
            try:
                await server.call("POST", f"/session/{self._session}/abort", cwd=self._call.cwd)
            except CallFailed:
                return server.is_over
            if not await self._is_busy(server):
                return True
            await anyio.sleep(LOOK_S)
        return True

    async def _is_busy(self, server: Server) -> bool:
        """By the list of sessions that are at work; idle ones are not on it."""
        try:
            at_work = await server.call("GET", "/session/status", cwd=self._call.cwd)
        except CallFailed:
            return True
        status = at_work.get(self._session) if isinstance(at_work, dict) else None
        return isinstance(status, dict) and status.get("type") != "idle"

    async def _end_tools(self, server: Server, *, all_sessions: bool = False) -> bool:
        if self._tools is None or server.is_over:
            return server.exit is None or server.exit.gone
        return await end_tools(self._tools, is_alone=self._is_alone, all_sessions=all_sessions)

    def _without_server(self, server: Server) -> Exit:
        """How a prompt ends whose server did not start, or ended under it."""
        exit, at = server.exit, self._clock.now()
        tail = _COLOURS.sub("", server.tail.decode(errors="replace")).strip()
        gone = exit is None or exit.gone
        if server.stop_reason:
            # We ended it: for this prompt it is as if the other side had hung up.
            exception = "RemoteProtocolError" if self._posted else "ConnectTimeout"
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

    # --- small parts ----------------------------------------------------------------------------

    async def _unless_stopped(self, step: Callable[[], Awaitable[T]]) -> T | None:
        """What `step` returns, or None when a stop came first. No scope outlives a `yield`."""
        with anyio.CancelScope() as self._scope:
            if self._stop_grace_s is not None:
                self._scope.cancel()
            return await step()
        return None

    def _chunk(self, event: dict[str, Any]) -> Chunk:
        return Chunk("event", msgspec.json.encode(event) + b"\n", self._clock.now())

    def _line(self, kind: str, **properties: Any) -> Chunk:
        """A line of our own between those of the server."""
        return self._chunk({"type": kind, "properties": {"sessionID": self._session, **properties}})


def _error_of(error: CallFailed) -> dict[str, Any]:
    """In the shape of `session.error`, from an answer that has that shape as a rule."""
    answer = error.body if isinstance(error.body, dict) else {}
    data = answer.get("data")
    data = data if isinstance(data, dict) else {}
    name = answer.get("name")
    return {
        "name": name if isinstance(name, str) else "UnknownError",
        "data": {"message": str(error), **data, "statusCode": error.status},
    }
