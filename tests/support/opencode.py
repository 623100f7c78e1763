"""
An opencode server as its recorded answers show it, for tests of what watches it.

    server = OpencodeDouble()
    server.begins("ses_1", "m1", "openai/gpt", agent="coder")   # the user asks, a model is asked
    server.retries("ses_1", "Too many requests")                # its provider fails
    server.calls                                                # what was asked of the server

It is a `Link`: calls are answered at once, and events go to whoever was given as `hear`.
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from typing import Any

import anyio

from fallbackd.ports.opencode import Called, Heard, Owner, Written

Json = dict[str, Any]

URL = "http://127.0.0.1:4096"
DIRECTORY = "/work"


UNLISTED = Called(status=400, problem="HTTP 400: Expected OutputFormatJsonSchema")
"""As it answers where a message has a `format`."""


class WhoseDouble:
    """
    What the kernel and opencode's log would say.

    Attributes:
        listeners: The process at an address.
        owners: Whose a process is; the others are persons'.
        awaits: A program waits for the answer to each message; None: that cannot be seen.
        stopped: How often a session was asked to stop; None: no log.
    """

    def __init__(self) -> None:
        self.listeners: dict[str, int] = {}
        self.owners: dict[int, Owner] = {}
        self.awaits: bool | None = False
        self.stopped: int | None = None

    def owner(self, pid: int | None) -> Owner:
        return "person" if pid is None else self.owners.get(pid, "person")

    def server_at(self, url: str) -> int | None:
        return self.listeners.get(url)

    def is_awaited(self, url: str, written: Sequence[Written], *, certainly: bool) -> bool | None:
        return self.awaits and bool(written)

    def stops(self, pid: int | None, session: str, *, since_at: float) -> int | None:
        return self.stopped


class OpencodeDouble:
    """
    Attributes:
        answers: Instead of what it would answer, by the end of the path: a status, or `Called`.
        calls: (method, path, body) of calls that change something.
        toasts: Texts that were shown.
        unknown: Models that it does not have.
        only_in: The directory whose status names its sessions; None: every one.
        passwords: With which it was opened, one for each time.
    """

    def __init__(self, url: str = URL, *, now: Callable[[], float] = lambda: 0.0) -> None:
        self._url = url
        self._now = now
        self.answers: dict[str, int | Called] = {}
        self.calls: list[tuple[str, str, Json]] = []
        self.toasts: list[str] = []
        self.only_in: str | None = None
        self.passwords: list[str | None] = []
        self.sessions: dict[str, Json] = {}
        self.messages: dict[str, list[Json]] = {}
        self.statuses: dict[str, Json] = {}
        self.hear: Callable[[Json], None] = lambda _: None
        self.is_down = False
        self.is_inside = False
        self.pid: int | None = None
        self.unknown: set[str] = set()
        self.on_call: Callable[[str], None] = lambda _: None
        self._count = 0

    @property
    def url(self) -> str:
        return self._url

    async def aclose(self) -> None:
        pass

    async def events(self) -> AsyncGenerator[Heard, None]:
        send, receive = anyio.create_memory_object_stream[Heard](1000)
        self.hear = lambda event: send.send_nowait(Heard(directory=DIRECTORY, event=event))
        yield Heard(directory="", event={"type": "server.connected", "properties": {}})
        with send, receive:
            async for heard in receive:
                yield heard

    # --- what happens there --------------------------------------------------------------------

    def event(self, kind: str, **properties: Any) -> None:
        self.hear({"id": "evt_1", "type": kind, "properties": properties})

    def open(self, session: str, *, parent: str | None = None) -> None:
        info: Json = {"id": session, "directory": DIRECTORY}
        self.sessions.setdefault(session, info if parent is None else {**info, "parentID": parent})
        self.messages.setdefault(session, [])

    def begins(
        self,
        session: str,
        message: str,
        model: str,
        *,
        agent: str | None = "build",
        parts: Iterable[Json] = ({"type": "text", "text": "do it"},),
        is_asked: bool = True,
        format: Json | None = None,
        variant: str = "",
    ) -> str:
        """The user sends a message; returns the id of the message that the model writes."""
        self.open(session)
        provider, _, name = model.partition("/")
        info: Json = {
            "id": message,
            "sessionID": session,
            "role": "user",
            "model": {"providerID": provider, "modelID": name},
            "time": {"created": self._now() * 1000},
        }
        if agent is not None:
            info["agent"] = agent
        if format is not None:
            info["format"] = format
        if variant:
            info["model"]["variant"] = variant
        named = {"messageID": message, "sessionID": session}
        shown = [{"id": f"prt_{n}", **named, **part} for n, part in enumerate(parts)]
        self.messages[session].append({"info": info, "parts": shown})
        self.event("message.updated", sessionID=session, info=info)
        for part in shown:
            self.event("message.part.updated", sessionID=session, part=part)
        return self.asks(session, message, model, agent=agent) if is_asked else ""

    def asks(
        self,
        session: str,
        message: str,
        model: str,
        *,
        agent: str | None = "build",
        summary: bool = False,
    ) -> str:
        self._count += 1
        reply = f"{message}-reply-{self._count}"
        provider, _, name = model.partition("/")
        info: Json = {
            "id": reply,
            "sessionID": session,
            "role": "assistant",
            "parentID": message,
            "providerID": provider,
            "modelID": name,
            "time": {"created": self._now() * 1000},
        }
        if agent is not None:
            info["agent"] = agent
        if summary:
            info |= {"summary": True, "mode": "compaction"}
        self.messages[session].append({"info": info, "parts": []})
        self.statuses[session] = {"type": "busy"}
        self.event("message.updated", sessionID=session, info=info)
        return reply

    def begins_compaction(
        self, session: str, message: str, model: str, *, auto: bool = False
    ) -> str:
        """The session is to be made shorter: a request in the user's name, and a summary."""
        part = {"type": "compaction", "auto": auto}
        self.begins(session, message, model, parts=(part,), is_asked=False)
        return self.asks(session, message, model, agent="compaction", summary=True)

    def retries(self, session: str, text: str, *, attempt: int = 1, **more: Any) -> None:
        self.statuses[session] = {"type": "retry", "attempt": attempt, "message": text, **more}
        self.event("session.status", sessionID=session, status=self.statuses[session])

    def says_retry(self, session: str, text: str, *, attempt: int = 1) -> None:
        """An event that comes late: it is not so any more."""
        status = {"type": "retry", "attempt": attempt, "message": text}
        self.event("session.status", sessionID=session, status=status)

    def fails(self, session: str, status: int | None, text: str, **data: Any) -> None:
        error = {
            "name": "APIError",
            "data": {"message": text, "statusCode": status, "isRetryable": False, **data},
        }
        self.statuses.pop(session, None)
        for last in self.messages[session][-1:]:
            if last["info"]["role"] == "assistant" and not last["info"].get("finish"):
                last["info"]["error"] = error
                last["info"]["time"]["completed"] = self._now() * 1000
        self.event("session.error", sessionID=session, error=error)

    def answers_with(
        self,
        session: str,
        text: str = "done",
        *,
        input_tokens: int = 0,
        output_tokens: int = 0,
        cost: float = 0.0,
        at: float | None = None,
    ) -> None:
        """The model that is asked now answers, and the turn is over."""
        last = self.messages[session][-1]
        info = last["info"]
        created = self._now() if at is None else at
        info["time"] = {"created": created * 1000, "completed": (created + 1) * 1000}
        info["finish"] = "stop"
        info["tokens"] = {"input": input_tokens, "output": output_tokens}
        info["cost"] = cost
        last["parts"].append({"type": "text", "text": text})
        self.event("message.updated", sessionID=session, info=info)
        self.idle(session)

    def uses_tool(self, session: str, tool: str) -> None:
        last = self.messages[session][-1]
        part = {
            "id": "prt_1",
            "messageID": last["info"]["id"],
            "sessionID": session,
            "type": "tool",
            "tool": tool,
            "state": {"status": "completed", "input": {}},
        }
        last["parts"].append(part)
        self.event("message.part.updated", sessionID=session, part=part)

    def idle(self, session: str) -> None:
        self.statuses.pop(session, None)
        self.event("session.status", sessionID=session, status={"type": "idle"})
        self.event("session.idle", sessionID=session)

    def is_stopped(self, session: str) -> None:
        """The user presses Esc."""
        for last in (one["info"] for one in self.messages[session][-1:]):
            if last["role"] == "assistant" and "completed" not in last["time"]:
                last["time"]["completed"] = self._now() * 1000
        self.idle(session)

    # --- what is asked of it -------------------------------------------------------------------

    def count(self, ending: str) -> int:
        return sum(1 for _, path, _ in self.calls if path.endswith(ending))

    @property
    def prompts(self) -> list[Json]:
        return [body for _, path, body in self.calls if path.endswith("/prompt_async")]

    async def call(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        directory: str = "",
        limit_s: float = 15.0,
    ) -> Called:
        await anyio.lowlevel.checkpoint()
        if self.is_down:
            return Called(status=0, problem="ConnectError")
        if path == "/tui/show-toast":
            self.toasts.append(str((body or {})["message"]))
            return Called(status=200, body=True)
        if path == "/log":
            return Called(status=200, body=True)
        if path.endswith("/commit"):  # these two are of version 2 alone
            self._take_back(path.split("/")[2])
            return Called(status=204)
        if method == "DELETE" and "/message/" in path:
            _, _, session, _, name = path.split("/")
            kept = [one for one in self.messages[session] if one["info"]["id"] != name]
            self.messages[session] = kept
            return Called(status=204)
        self.on_call(path)
        if self.is_down:
            return Called(status=0, problem="ReadError")
        if method != "GET":
            self.calls.append((method, path, dict(body or {})))
        if path == "/session/status" and self.only_in not in (None, directory):
            return Called(status=200, body={})
        told = next((one for end, one in self.answers.items() if path.endswith(end)), None)
        if told is not None:
            return told if isinstance(told, Called) else Called(status=told, problem=f"HTTP {told}")
        return self._answer(path, body or {})

    def _answer(self, path: str, body: Mapping[str, Any]) -> Called:
        match path.strip("/").split("/"):
            case ["global", "health"]:
                return Called(status=200, body={"healthy": True, "version": "1.18.33"})
            case ["config", "providers"]:
                return Called(status=200, body={"providers": []})
            case ["session", "status"]:
                return Called(status=200, body=self.statuses)
            case ["session", name, *_] if name not in self.sessions:
                return Called(status=404, problem="HTTP 404")
            case ["session", name]:
                return Called(status=200, body=self.sessions[name])
            case ["session", name, "message", *_] if any(
                "format" in one["info"] for one in self.messages[name]
            ):
                return UNLISTED
            case ["session", name, "message"]:
                return Called(status=200, body=self.messages[name])
            case ["fallbackd", "child"]:
                return Called(status=200 if self.is_inside else 404, body=True)
            case ["session", name, "message", message, "part", part]:
                for one in self.messages[name]:
                    if one["info"]["id"] == message:
                        one["parts"] = [
                            dict(body) if each["id"] == part else each for each in one["parts"]
                        ]
                return Called(status=200, body=body)
            case ["session", name, "message", message]:
                named = [one for one in self.messages[name] if one["info"]["id"] == message]
                return Called(status=200, body=named[0]) if named else Called(status=404)
            case ["session", name, "abort"]:
                self.is_stopped(name)
                return Called(status=200, body=True)
            case ["session", name, "unrevert"]:
                self.sessions[name].pop("revert", None)
                return Called(status=200, body=self.sessions[name])
            case ["session", name, "summarize"]:
                self._take_back(name)
                model = f"{body['providerID']}/{body['modelID']}"
                self._count += 1
                number = f"msg_5f9b9605{self._count:04d}summarize"
                self.begins_compaction(name, number, model, auto=body["auto"])
                return Called(status=200, body=True)
            case ["session", name, "revert"]:
                if name in self.statuses:
                    return Called(status=409, problem="HTTP 409")
                self.sessions[name]["revert"] = {"messageID": body["messageID"]}
                return Called(status=200, body=self.sessions[name])
            case ["session", name, "prompt_async"]:
                self._prompt(name, body)
                return Called(status=204)
            case _:
                return Called(status=404, problem="HTTP 404")

    def _take_back(self, session: str) -> None:
        """With the next message, what was reverted is gone."""
        reverted = self.sessions[session].pop("revert", None)
        if reverted is not None:
            ids = [one["info"]["id"] for one in self.messages[session]]
            first = ids.index(reverted["messageID"])
            del self.messages[session][first:]
            for one in ids[first:]:
                self.event("message.removed", sessionID=session, messageID=one)

    def _prompt(self, session: str, body: Mapping[str, Any]) -> None:
        self._take_back(session)
        model = f"{body['model']['providerID']}/{body['model']['modelID']}"
        if model in self.unknown:
            self.begins(session, body["messageID"], model, parts=body["parts"], is_asked=False)
            error = {"name": "UnknownError", "data": {"message": f"Model not found: {model}."}}
            self.event("session.error", sessionID=session, error=error)
            self.idle(session)
            return
        self.begins(
            session,
            body["messageID"],
            model,
            agent=body.get("agent"),
            parts=body["parts"],
            is_asked=not body.get("noReply"),
            format=body.get("format"),
        )
