"""
A server of version 2 in the words of version 1: calls, answers and events, by the tables of
`wires`.

| version 1 | version 2 |
| --- | --- |
| a message names its model | the session has a model: it is changed before the message is sent |
| a revert is final with the next message | it is staged, and committed before the next message |
| messages that wait are messages | they are in an inbox: a revert takes them out with the rest |
| `session.status` | `session.execution.*`, `session.retry.scheduled`, and the list of active ones |
| messages name what they answer | they stand behind it |

A failed turn is idle twice in version 1, so it is here.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import anyio

from fallbackd.backends.opencode_server import first_error
from fallbackd.lib.foreign_json import fields as _table
from fallbackd.lib.foreign_json import text as _text
from fallbackd.ports.opencode import Called
from fallbackd.transports.opencode.wires import CALLS, EVENTS, ROUTES, SHAPES, TOOLS

Json = dict[str, Any]
Fields = Mapping[str, Any]
V = TypeVar("V")

UNKNOWN_CALL = Called(status=501, problem="opencode 2 has no such call")
MAX_KEPT = 2000
"""Sessions, messages and requests that are remembered from events."""
PAGE = 200
MAX_PAGES = 50
AGENTS_LIMIT_S = 5.0
"""Time for the agents of a directory to be loaded, which happens after the server listens."""
AGENTS_LOOK_S = 0.1
CONTINUE = "Continue with the next steps of the work above, if there are any."
"""Sent behind a compaction that the server had begun by itself, after which it would continue."""
NOT_ENDED = frozenset({"shutdown", "superseded"})
"""Reasons of an interruption behind which the same turn continues."""


class Asking(Protocol):
    """One call of version 2. Never raises for what the server does."""

    async def __call__(
        self, method: str, path: str, *, query: Mapping[str, str], body: Fields | None
    ) -> Called: ...


class _Kept(OrderedDict[str, V]):
    """Keeps what came last."""

    def __setitem__(self, key: str, value: V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        while len(self) > MAX_KEPT:
            self.popitem(last=False)


class SecondWire:
    """
    Args:
        is_early: It is of 2.0.0 to 2.0.3.
    """

    def __init__(self, ask: Asking, *, is_early: bool = False) -> None:
        self._ask = ask
        self._is_early = is_early
        self._questions: _Kept[str] = _Kept()
        """The user's message that is being answered, by session."""
        self._replies: _Kept[Json] = _Kept()
        """`info` of the messages that models write, by id."""
        self._retries: _Kept[Json] = _Kept()
        self._items: _Kept[str] = _Kept()
        """Type by id of what is in an inbox."""
        self._tools: _Kept[Json] = _Kept()
        self._askers: _Kept[str] = _Kept()
        """The session that asks, by request."""

    # --- calls ---------------------------------------------------------------------------------

    async def call(
        self, method: str, path: str, *, body: Fields | None = None, directory: str = ""
    ) -> Called:
        """One call of version 1."""
        name, given = _call_of(method, path)
        if not CALLS.get(name):
            return UNKNOWN_CALL
        match name.split(" ")[1].rpartition("/")[2]:
            case "health" | "config":
                return await self._health()
            case "providers":
                return await self._models(directory)
            case "status":
                return await self._statuses()
            case "session":
                return await self._create(body or {}, directory)
            case ":session" if method == "GET":
                return _read(await self.ask("session", given), _session)
            case ":session":
                return await self.ask("delete", given)
            case "message" | ":message":
                return await self._messages_of(given)
            case "children":
                return await self._children(given["session"])
            case "abort":
                called = await self.ask("interrupt", given, query={"resume": "false"})
                return _read(called, lambda found: found.get("interrupted") is not False)
            case "revert" | "unrevert":
                return await self._revert(name, given, body or {})
            case "prompt_async" | "summarize":
                return await self._send(name, given, body or {})
            case "permission" | "question" as kind:
                return await self._asked(kind, directory)
            case _:
                return await self._reply(given["request"], body or {}, directory)

    async def ask(
        self,
        route: str,
        given: Mapping[str, str] | None = None,
        *,
        query: Mapping[str, str] | None = None,
        body: Fields | None = None,
    ) -> Called:
        """One call of version 2, without its envelope."""
        row = ROUTES[route]
        early = row.early if self._is_early else {}
        path = early.get("path", row.path)
        for name, value in (given or {}).items():
            path = path.replace(f":{name}", value)
        query = {early.get(k, k): v for k, v in (query or {}).items() if k in row.query and v}
        if body is not None:
            body = {early.get(k, k): v for k, v in body.items() if k in row.sends and v is not None}
        called = await self._ask(early.get("method", row.method), path, query=query, body=body)
        return called if called.is_good else _refused(called)

    async def _health(self) -> Called:
        called = await self.ask("info")
        return _read(called, lambda found: {"healthy": True, **_shaped("info", found)})

    async def _models(self, directory: str) -> Called:
        called = await self.ask("models", query={"location[directory]": directory})
        providers: dict[str, Json] = {}
        for one in _rows(called.body):
            model = _shaped("model info", one)
            listed = providers.setdefault(_text(model.get("providerID")), {})
            listed[_text(model.get("id"))] = {"limit": _table(model.get("limit"))}
        found = [{"id": name, "models": models} for name, models in providers.items()]
        return _read(called, lambda _: {"providers": found})

    async def _create(self, body: Fields, directory: str) -> Called:
        with anyio.move_on_after(AGENTS_LIMIT_S):
            while True:
                agents = await self.ask("agents", query={"location[directory]": directory})
                if not agents.is_good or _rows(agents.body):
                    break
                await anyio.sleep(AGENTS_LOOK_S)
        place = {"directory": directory} if directory else None
        called = await self.ask("create", body={"title": body.get("title"), "location": place})
        return _read(called, _session)

    async def _statuses(self) -> Called:
        called = await self.ask("active")
        found: Json = {}
        for session in _table(_data(called.body)):
            found[session] = self._retries.get(session) or await self._status(session)
        return _read(called, lambda _: found)

    async def _status(self, session: str) -> Json:
        """Find out whether an active session sleeps before a retry that was not heard of."""
        if session in self._questions:
            return {"type": "busy"}  # since then every event of it was heard
        called = await self.ask(
            "messages", {"session": session}, query={"limit": "5", "order": "desc"}
        )
        for one in _rows(called.body):
            if one.get("type") == "assistant":
                reply = _shaped("assistant", one)
                waits = reply.get("retry") and not reply.get("finish")
                return _retry(_table(reply["retry"])) if waits else {"type": "busy"}
        return {"type": "busy"}

    async def _children(self, session: str) -> Called:
        found, called = await self._pages("sessions", {}, parentID=session, limit=str(PAGE))
        return _read(called, lambda _: [_session(one) for one in found])

    async def _pages(
        self, route: str, given: Mapping[str, str], **query: str
    ) -> tuple[list[Json], Called]:
        found: list[Json] = []
        called = UNKNOWN_CALL
        for _ in range(MAX_PAGES):
            called = await self.ask(route, given, query=query)
            rows = _rows(called.body)
            found += rows
            following = _table(_table(called.body).get("cursor")).get("next")
            if not called.is_good or len(rows) < PAGE or not isinstance(following, str):
                break
            query = {"cursor": following, "limit": str(PAGE)}
        return found, called

    async def _messages_of(self, given: Mapping[str, str]) -> Called:
        known = await self.ask("session", given)
        if not known.is_good:
            return known
        one = {"session": given["session"]}
        found, called = await self._pages("messages", one, limit=str(PAGE), order="asc")
        if not called.is_good:
            return called
        waiting = await self.ask("inbox", one)
        session = _shaped("session", _data(known.body))
        messages = _messages(found, _rows(waiting.body), session)
        if "message" not in given:
            return Called(status=200, body=messages)
        named = [each for each in messages if each["info"]["id"] == given["message"]]
        return Called(status=200, body=named[0]) if named else Called(status=404)

    async def _revert(self, name: str, given: Mapping[str, str], body: Fields) -> Called:
        if name.endswith("unrevert"):
            return await self.ask("clear", given)
        staged = {"messageID": body.get("messageID"), "files": False}
        return await self.ask("stage", given, body=staged)

    async def _send(self, name: str, given: Mapping[str, str], body: Fields) -> Called:
        """Set the model and the agent, commit what is reverted, then send."""
        known = await self.ask("session", given)
        if not known.is_good:
            return known
        session = _shaped("session", _data(known.body))
        steps: list[tuple[str, Mapping[str, str], Json | None]] = []
        is_prompt = name.endswith("prompt_async")
        asked = _table(body.get("model")) if is_prompt else body
        if wanted := _model_to_send(asked, _text(body.get("variant"))):
            now = _shaped("model", session.get("model"))
            if any(now.get(key) != wanted.get(key) for key in ("id", "providerID")) or (
                "variant" in wanted and now.get("variant") != wanted["variant"]
            ):
                steps.append(("model", given, {"model": wanted}))
        agent = _text(body.get("agent")) if is_prompt else ""
        if agent and agent != session.get("agent"):
            steps.append(("agent", given, {"agent": agent}))
        if session.get("revert"):
            steps += await self._settling(given)
        if is_prompt:
            steps.append(("prompt", given, _prompt(body)))
        else:
            steps.append(("compact", given, {}))
            if body.get("auto"):
                steps.append(("synthetic", given, {"text": CONTINUE, "delivery": "queue"}))
        called = UNKNOWN_CALL
        for route, names, sent in steps:
            called = await self.ask(route, names, body=sent)
            if not called.is_good and not (route == "cancel" and called.status == 422):
                return called
        return Called(status=204)

    async def _settling(
        self, given: Mapping[str, str]
    ) -> list[tuple[str, Mapping[str, str], Json | None]]:
        """
        Take what waits out of the inbox with what is reverted: it stands behind it. Last comes what
        cannot be undone, directly before the message.
        """
        waiting = _rows((await self.ask("inbox", given)).body)
        items = [_text(one.get("id")) for one in waiting]
        return [
            *(("cancel", {**given, "item": item}, None) for item in items),
            ("commit", given, None),
        ]

    async def _asked(self, kind: str, directory: str) -> Called:
        route = "permissions" if kind == "permission" else "forms"
        called = await self.ask(route, query={"location[directory]": directory})
        found = [self._request(kind, one) for one in _rows(called.body)]
        return _read(called, lambda _: found)

    def _request(self, kind: str, one: Fields) -> Json:
        shaped = _shaped("permission" if kind == "permission" else "form", one)
        request, session = _text(shaped.get("id")), _text(shaped.get("sessionID"))
        self._askers[request] = session
        found: Json = {"id": request, "sessionID": session}
        if kind == "permission":
            action = _text(shaped.get("action"))
            found |= {
                "permission": TOOLS.get(action, action),
                "patterns": shaped.get("resources") or [],
            }
        return found

    async def _reply(self, request: str, body: Fields, directory: str) -> Called:
        is_permission = "reply" in body
        if request not in self._askers:
            await self._asked("permission" if is_permission else "question", directory)
        given = {"session": self._askers.get(request, ""), "request": request}
        if not given["session"]:
            return Called(status=404, problem="the request is answered already")
        if is_permission:
            return await self.ask("permit", given, body={"decision": body["reply"]})
        return await self.ask("dismiss", given, query={"message": "no person is here to answer"})

    # --- events --------------------------------------------------------------------------------

    async def heard(self, event: Fields) -> list[Json]:
        """
        Events of version 1 that say the same; one of a kind that is not known says nothing.
        """
        kind = _text(event.get("type"))
        if kind not in EVENTS:
            return [{"type": kind, "properties": {}}]
        data = {k: v for k, v in _table(event.get("data")).items() if k in EVENTS[kind]}
        session = _text(data.get("sessionID"))
        area = kind.split(".")[1] if kind.startswith("session.") else kind
        match area:
            case "step" | "text" | "reasoning" | "tool":
                self._retries.pop(session, None)
                return await self._of_reply(area, kind.rpartition(".")[2], session, data, event)
            case "execution":
                self._retries.pop(session, None)
                return _of_execution(kind.rpartition(".")[2], session, data)
            case "retry":
                status = self._retries[session] = _retry(data)
                await self._question_of(session)
                return [_event("session.status", session, status=status)]
            case "inbox":
                return self._of_inbox(kind, session, data, event)
            case "created":
                place = _shaped("location", data.get("location"))
                info = {"id": session, **place, "title": data.get("title")}
                info |= {"parentID": data["parentID"]} if data.get("parentID") else {}
                return [_event("session.created", session, info=info)]
            case "deleted":
                return [_event(kind, session)]
            case "compaction":
                return [_event("session.compacted", session)]
            case "permission.asked":
                return [_event(kind, session, **self._request("permission", data))]
            case "permission.replied":
                return [_event(kind, session, requestID=data.get("requestID"))]
            case "form.created":
                asked = self._request("question", _table(data.get("form")))
                return [_event("question.asked", asked["sessionID"], id=asked["id"])]
            case "server.connected":
                self._questions.clear()  # what was heard before may not be all
                self._retries.clear()
                return [{"type": kind, "properties": {}}]
            case _:  # `session.idle` says again what the end of an execution has said
                return []

    def _of_inbox(self, kind: str, session: str, data: Fields, event: Fields) -> list[Json]:
        item = _text(data.get("inboxID"))
        if kind.endswith("enqueued"):
            self._items[item] = _text(_shaped("inbox item", data.get("item")).get("type"))
            return []
        if self._items.pop(item, "user") != "user":
            return []
        self._questions[session] = item
        info = {"id": item, "sessionID": session, "role": "user"}
        return [_event("message.updated", session, info={**info, "time": _time(event)})]

    async def _question_of(self, session: str) -> str:
        """The message that is being answered, asked for where it was not heard."""
        if session not in self._questions:
            query = {"limit": str(PAGE), "order": "desc"}
            called = await self.ask("messages", {"session": session}, query=query)
            asked = (one for one in _rows(called.body) if one.get("type") == "user")
            self._questions[session] = _text(next(asked, {}).get("id"))
        return self._questions[session]

    async def _of_reply(
        self, area: str, what: str, session: str, data: Fields, event: Fields
    ) -> list[Json]:
        reply = _text(data.get("assistantMessageID"))
        if area == "step":
            if what == "started":
                at = data.get("started") or event.get("created")
                self._replies[reply] = {
                    "id": reply,
                    "sessionID": session,
                    "role": "assistant",
                    "parentID": await self._question_of(session),
                    "agent": data.get("agent"),
                    **_model(data.get("model")),
                    "time": {"created": at},
                }
            else:
                info = self._replies.get(reply) or {"id": reply, "role": "assistant"}
                time = {**_table(info.get("time")), "completed": event.get("created") or 0}
                said = {key: data.get(key) for key in ("finish", "tokens", "cost")}
                self._replies[reply] = {**info, **said, "time": time}
            return [_event("message.updated", session, info=self._replies[reply])]
        if area == "tool":
            return self._of_tool(what, session, reply, data)
        part = {"id": f"{reply}/{area}/{data.get('ordinal')}", "messageID": reply}
        if what == "delta":
            said = {"messageID": reply, "partID": part["id"], "field": "text"}
            return [_event("message.part.delta", session, **said, delta=data.get("delta"))]
        whole = {**part, "sessionID": session, "type": area, "text": _text(data.get("text"))}
        return [_event("message.part.updated", session, part=whole)]

    def _of_tool(self, what: str, session: str, reply: str, data: Fields) -> list[Json]:
        key = f"{reply}/{_text(data.get('id'))}"
        known = self._tools.get(key, {})
        if what == "started":
            self._tools[key] = {"name": _text(data.get("name"))}
            return []
        status = {"called": "running", "success": "completed", "failed": "error"}[what]
        given = data.get("input", known.get("input"))
        name = _text(known.get("name"))
        self._tools[key] = {"name": name, "input": given}
        state = {"status": status, "input": given, "error": data.get("error")}
        tool = {"type": "tool", "id": _text(data.get("id")), "name": name}
        part = _tool({**tool, "state": {**state, "metadata": data.get("metadata")}}, reply)
        return [_event("message.part.updated", session, part={**part, "sessionID": session})]


def _of_execution(what: str, session: str, data: Fields) -> list[Json]:
    if what == "started":
        return [_event("session.status", session, status={"type": "busy"})]
    if what == "interrupted" and data.get("reason") in NOT_ENDED:
        return []
    ended = [_event("session.status", session, status={"type": "idle"})]
    if what == "failed":
        failed = _event("session.error", session, error=_error(data.get("error")))
        ended = [failed, *ended, *ended]
    return [*ended, _event("session.idle", session)]


def _call_of(method: str, path: str) -> tuple[str, dict[str, str]]:
    """The row of a call, and the ids in its path."""
    steps = path.strip("/").split("/")
    for name in CALLS:
        verb, _, row = name.partition(" ")
        wanted = row.strip("/").split("/")
        if verb == method and len(wanted) == len(steps):
            pairs = list(zip(wanted, steps, strict=True))
            if all(one == step or one.startswith(":") for one, step in pairs):
                return name, {one[1:]: step for one, step in pairs if one.startswith(":")}
    return f"{method} {path}", {}


def _event(kind: str, session: str, **properties: Any) -> Json:
    return {"type": kind, "properties": {"sessionID": session, **properties}}


def _shaped(name: str, value: object) -> Json:
    """The fields of a shape that are read."""
    return {key: one for key, one in _table(value).items() if key in SHAPES[name]}


def _data(body: object) -> object:
    table = _table(body)
    return table.get("data", table)


def _rows(body: object) -> list[Json]:
    data = _data(body)
    return [one for one in data if isinstance(one, dict)] if isinstance(data, list) else []


def _refused(called: Called) -> Called:
    """A refusal in the shape of version 1, where 404 says that a session is not there."""
    said = _table(called.body)
    name, words = _text(said.get("_tag")), _text(said.get("message"))
    status = called.status
    if status == 404 and name and name != "SessionNotFoundError":
        status = 422
    body = {"name": name or "UnknownError", "data": {"message": words} if words else {}}
    return Called(status=status, body=body, problem=called.problem or f"HTTP {status}")


def _read(called: Called, read: Callable[[Fields], object]) -> Called:
    if not called.is_good:
        return called
    return Called(status=called.status, body=read(_table(_data(called.body))))


def _time(event: Fields) -> Json:
    return {"created": event.get("created") or 0}


def _session(value: object) -> Json:
    found = _shaped("session", value)
    revert = _shaped("revert", found.pop("revert", None))
    place = _shaped("location", found.pop("location", None))
    return {**found, **place, **({"revert": revert} if revert else {})}


def _model(value: object) -> Json:
    model = _shaped("model", value)
    return {"providerID": model.get("providerID"), "modelID": model.get("id")}


def _model_to_send(asked: Fields, variant: str) -> Json | None:
    provider, name = asked.get("providerID"), asked.get("modelID")
    if not provider or not name:
        return None
    more = {"variant": variant} if variant and variant != "default" else {}
    return {"providerID": provider, "id": name, **more}


def _prompt(body: Fields) -> Json:
    parts = [_table(one) for one in body.get("parts") or ()]
    texts = [_text(one.get("text")) for one in parts if one.get("type") == "text"]
    files = [
        {"uri": one.get("url"), **({"name": one["filename"]} if one.get("filename") else {})}
        for one in parts
        if one.get("type") == "file"
    ]
    agents = [{"name": one.get("name")} for one in parts if one.get("type") == "agent"]
    return {
        "id": body.get("messageID"),
        "text": "\n\n".join(texts),
        "files": files or None,
        "agents": agents or None,
        "resume": False if body.get("noReply") else None,
    }


def _error(value: object) -> Json:
    return first_error(_shaped("error", value))


def _retry(value: Fields) -> Json:
    retry = {key: one for key, one in value.items() if key in SHAPES["retry"]}
    error = _error(retry.get("error"))
    status = {"type": "retry", "attempt": retry.get("attempt"), "next": retry.get("at")}
    return {**status, "message": error["data"]["message"], "error": error}


# --- messages ------------------------------------------------------------------------------------


def _messages(found: Sequence[Fields], waiting: Sequence[Fields], session: Fields) -> list[Json]:
    """Messages of version 1, in their order. What waits in the inbox stands behind the others."""
    switches = [_shaped("model-switched", o) for o in found if o.get("type") == "model-switched"]
    first = next((one["previous"] for one in switches if one.get("previous")), None)
    model = first or session.get("model")
    name = _text(session.get("id"))
    messages: list[Json] = []
    question = ""
    for one in found:
        shape = _text(one.get("type"))
        match shape:
            case "user":
                question = _text(one.get("id"))
                messages.append(_user(_shaped(shape, one), name, model, session.get("agent")))
            case "assistant":
                reply = _shaped(shape, one)
                model = reply.get("model") or model
                messages.append(_assistant(reply, name, question))
            case "compaction":
                messages += _compaction(_shaped(shape, one), name, model)
            case "model-switched":
                model = _shaped(shape, one).get("model") or model
            case "idle":
                _end(messages, _shaped(shape, one))
            case _:
                pass
    for one in waiting:
        item = _shaped("inbox item", one)
        payload = _shaped("inbox payload", item.get("payload"))
        if item.get("type") == "user":
            messages.append(_user({**item, **payload}, name, model, session.get("agent")))
        elif item.get("type") == "compaction":
            messages += _compaction({**item, "status": "waiting"}, name, model)
    return messages


def _end(messages: Sequence[Json], idle: Fields) -> None:
    """Note on the last reply how its turn has ended."""
    if not messages or messages[-1]["info"]["role"] != "assistant":
        return
    info = messages[-1]["info"]
    if idle.get("outcome") == "interrupted":
        info.setdefault("error", {"name": "MessageAbortedError", "data": {}})
    elif idle.get("outcome") == "failed" and idle.get("error"):
        info.setdefault("error", _error(idle["error"]))


def _user(one: Fields, session: str, model: object, agent: object) -> Json:
    name = _text(one.get("id"))
    info: Json = {"id": name, "sessionID": session, "role": "user", "time": one.get("time")}
    info["model"] = _model(model)
    if variant := _shaped("model", model).get("variant"):
        info["model"]["variant"] = variant
    if agent:
        info["agent"] = agent
    parts: list[Json] = [{"type": "text", "text": _text(one.get("text"))}]
    for each in one.get("files") or ():
        file = _shaped("file", each)
        uri = _text(_shaped("file source", file.get("source")).get("uri"))
        url = uri or f"data:{file.get('mime')};base64,{_text(file.get('data'))}"
        parts.append(
            {"type": "file", "mime": file.get("mime"), "url": url, "filename": file.get("name")}
        )
    agents = one.get("agents") or ()
    parts += [{"type": "agent", **_shaped("attached agent", each)} for each in agents]
    named = {"messageID": name, "sessionID": session}
    return {"info": info, "parts": [{"id": f"{name}/{n}", **named, **p} for n, p in _n(parts)]}


def _assistant(one: Fields, session: str, question: str) -> Json:
    name = _text(one.get("id"))
    info: Json = {
        "id": name,
        "sessionID": session,
        "role": "assistant",
        "parentID": question,
        **_model(one.get("model")),
        **{key: one[key] for key in ("agent", "time", "finish", "cost", "tokens") if key in one},
    }
    if one.get("error"):
        info["error"] = _error(one["error"])
    parts: list[Json] = []
    ordinals = {"text": 0, "reasoning": 0}
    for each in one.get("content") or ():
        match kind := _text(_table(each).get("type")):
            case "text" | "reasoning":
                said = _text(_shaped(kind, each).get("text"))
                part = {"type": kind, "id": f"{name}/{kind}/{ordinals[kind]}", "text": said}
                parts.append({**part, "messageID": name, "sessionID": session})
                ordinals[kind] += 1
            case "tool":
                parts.append({**_tool(_shaped(kind, each), name), "sessionID": session})
            case _:
                pass
    return {"info": info, "parts": parts}


def _tool(tool: Fields, reply: str) -> Json:
    state = _shaped("tool state", tool.get("state"))
    if state.get("status") == "streaming":
        state = {"status": "pending"}
    error = _shaped("error", state.pop("error", None))
    if error:
        state["error"] = _text(error.get("message"))
    call, name = _text(tool.get("id")), _text(tool.get("name"))
    named = {"id": f"{reply}/{call}", "messageID": reply, "callID": call}
    return {"type": "tool", **named, "tool": TOOLS.get(name, name), "state": state}


def _compaction(one: Fields, session: str, model: object) -> list[Json]:
    """The request in the user's name, and the summary that answers it."""
    name, status = _text(one.get("id")), one.get("status")
    shared: Json = {"sessionID": session, "time": one.get("time")}
    part = {"type": "compaction", "auto": one.get("reason") == "auto"}
    asked = {**shared, "id": name, "role": "user", "model": _model(model)}
    request = {"info": asked, "parts": [{"id": f"{name}/0", "messageID": name, **part}]}
    if status == "waiting":
        return [request]
    info = {**shared, "id": f"{name}-summary", "role": "assistant", "parentID": name}
    info |= {"summary": True, "mode": "compaction", **_model(one.get("model") or model)}
    if status == "completed":
        info |= {"finish": "stop", "time": {**_table(one.get("time")), "completed": 0}}
    elif status == "failed":
        info["error"] = _error(one.get("error"))
    return [request, {"info": info, "parts": []}]


def _n(parts: Sequence[Json]) -> list[tuple[int, Json]]:
    return list(enumerate(parts))
