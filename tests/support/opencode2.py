"""
A double of version 2 of opencode: it answers and speaks in the shapes of 2.1.2, and has the state
of a double of version 1 behind it, so that one suite holds for both.

What it answers, says and is sent is compared with the contract (`CONTRACT`): a route, event or
field that is not there, and one that has to be there and is not, is an error of the test. Standard
library only: the double of a server's process uses it too.
"""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

Json = dict[str, Any]
First = Callable[[str, str, str, Any], Awaitable[tuple[int, Any]]]
"""One call of version 1: method, path, directory and body; status and answer."""

CONTRACT: Json = json.loads(
    (Path(__file__).parent.parent / "transports/data/opencode2_contract.json").read_text()
)
LATER, EARLY = "2.1.2", "2.0.2"
PAGE = "<!doctype html><title>OpenCode</title><div id=root></div>"
_TOOLS = {"bash": "shell", "task": "subagent"}
_SAID = {429: "provider.rate-limit", 401: "provider.auth", 500: "provider.internal"}


class Contract(AssertionError):
    """The code or the double does what the contract does not have."""


async def _nothing(_: str) -> None:
    pass


def checked(shape: str, value: Json) -> Json:
    _check(f"shape {shape}", CONTRACT["shapes"][shape], value)
    return value


def _check(what: str, named: Json, value: Json) -> None:
    missing = set(named["required"]) - set(value)
    unknown = set(value) - set(named["required"]) - set(named["optional"])
    if missing or unknown:
        raise Contract(f"{what}: {missing=} {unknown=}")


def event_of(kind: str, session: str, **data: Any) -> Json:
    if session:
        data = {"sessionID": session, **data}
    if kind not in CONTRACT["events"]:
        raise Contract(f"no such event: {kind}")
    _check(f"event {kind}", CONTRACT["events"][kind], data)
    return {"id": "evt_1", "created": 1000.0, "type": kind, "data": data}


class SecondFace:
    """
    Args:
        first: Has the state.
        version: That it says it is of.
    """

    def __init__(self, first: First, *, version: str = LATER) -> None:
        self._first = first
        self.version = version
        self.is_early = version == EARLY
        self.models: dict[str, Json] = {}
        self.agents: dict[str, str] = {}
        self.places: dict[str, str] = {}
        self.last_model: Json = {"providerID": "test", "id": "default"}
        self.asked: list[str] = []
        """Each call that was answered: method and path."""
        self.before: Callable[[str], Awaitable[None]] = _nothing
        self.after: Callable[[str], Awaitable[None]] = _nothing
        """Called with each call of version 2, as `METHOD path`."""
        self.requests: dict[str, str] = {}
        self._busy: set[str] = set()
        self._failed: set[str] = set()
        self._stopped: set[str] = set()
        self._begun: dict[str, str] = {}
        self._ended: set[str] = set()
        self._texts: dict[str, tuple[str, int]] = {}
        self._tools: set[tuple[str, str]] = set()

    # --- calls ---------------------------------------------------------------------------------

    async def answer(
        self, method: str, path: str, query: dict[str, str], body: Any
    ) -> tuple[int, Any]:
        """Status and JSON; a text is a web page."""
        self.asked.append(f"{method} {path}")
        await self.before(f"{method} {path}")
        found = await self._answered(method, path, query, body)
        await self.after(f"{method} {path}")
        return found

    async def _answered(
        self, method: str, path: str, query: dict[str, str], body: Any
    ) -> tuple[int, Any]:
        health = "/api/health" if self.is_early else "/api/info"
        if path == health:
            status, _ = await self._first("GET", "/global/health", "", None)
            if status != 200:
                return status, None
            paths = {"tmp": "/tmp"}
            info = {"version": self.version, "pid": 1, "urls": [], "paths": paths}
            return 200, {"healthy": True, "version": self.version} if self.is_early else info
        if not path.startswith("/api/"):
            return (200, PAGE) if method == "GET" else (405, None)
        steps = path.strip("/").split("/")[1:]
        self._check_call(method, steps, query, body)
        status, found = await self._answer(method, steps, query, body or {})
        if 200 <= status < 300 and steps[-1] != "interrupt" and found is not None:
            return status, found if "data" in found else {"data": found}
        if status == 404 and not (isinstance(found, dict) and "_tag" in found):
            found = {"_tag": "SessionNotFoundError", "message": f"Session not found: {steps[1]}"}
        return status, found

    def _check_call(self, method: str, steps: list[str], query: Json, body: Any) -> None:
        if self.is_early:
            return  # the contract is that of a later version
        for route, has in CONTRACT["routes"].items():
            verb, _, row = route.partition(" ")
            wanted = row.strip("/").split("/")[1:]
            fits = verb == method and len(wanted) == len(steps)
            if not fits or not all(
                a == b or a.startswith(":") for a, b in zip(wanted, steps, strict=True)
            ):
                continue
            named = {one.partition("[")[0] for one in query}
            if named <= set(has["query"]) and set(body or {}) <= set(has["body"]):
                return
        raise Contract(f"no such call: {method} {steps} {query} {body}")

    async def _answer(
        self, method: str, steps: list[str], query: Json, body: Json
    ) -> tuple[int, Any]:
        place = query.get("location[directory]", "")
        match method, steps:
            case "GET", ["agent"]:
                return 200, [{"id": "build"}]
            case "GET", ["model"]:
                _, found = await self._first("GET", "/config/providers", place, None)
                rows = [
                    {"id": name, "providerID": one["id"], "limit": model.get("limit", {})}
                    for one in (found or {}).get("providers", ())
                    for name, model in one.get("models", {}).items()
                ]
                return 200, {"location": {"directory": place}, "data": rows}
            case "GET", ["permission" | "form" as kind, *_]:
                first = "/permission" if kind == "permission" else "/question"
                status, found = await self._first("GET", first, place, None)
                rows = [self._request(kind, one) for one in (found if status == 200 else [])]
                return 200, {"location": {"directory": place}, "data": rows}
            case "POST", ["session"]:
                place = body.get("location", {}).get("directory", "")
                status, made = await self._first("POST", "/session", place, body)
                if status != 200:
                    return status, _failure(made)
                self.places[made["id"]] = place
                return 200, self._session(made)
            case "GET", ["session"]:
                path = f"/session/{query['parentID']}/children"
                status, found = await self._first("GET", path, "", None)
                rows = found if status == 200 else []
                return status, {"data": [self._session(one) for one in rows], "cursor": {}}
            case "GET", ["session", "active"]:
                status, found = await self._first("GET", "/session/status", "", None)
                return status, {"data": {name: {"type": "running"} for name in found or ()}}
            case _, ["session", name, *rest]:
                return await self._of_session(method, name, rest, query, body)
        raise Contract(f"not answered: {method} {steps}")

    async def _of_session(
        self, method: str, name: str, rest: list[str], query: Json, body: Json
    ) -> tuple[int, Any]:
        place = self.places.get(name, "")
        status, found = await self._first("GET", f"/session/{name}", place, None)
        if status != 200:
            return status, None
        match method, rest:
            case "GET", []:
                return 200, self._session(found)
            case "DELETE", []:
                return await self._first("DELETE", f"/session/{name}", place, None)
            case "GET", ["message"]:
                status, found = await self._first("GET", f"/session/{name}/message", place, None)
                rows = self._messages(name, found) if status == 200 else None
                if rows is not None:
                    await self._note_retry(name, rows)
                if rows is not None and query.get("order") == "desc":
                    rows = rows[::-1]
                return status, rows if rows is None else {"data": rows, "cursor": {}}
            case "GET", ["inbox"]:
                _, found = await self._first("GET", f"/session/{name}/message", place, None)
                return 200, self._inbox(name, found or [])
            case "DELETE", ["inbox", item]:
                _, messages = await self._first("GET", f"/session/{name}/message", place, None)
                if item not in {one["id"] for one in self._inbox(name, messages or [])}:
                    return 404, {"_tag": "NotFound"}
                await self._first("DELETE", f"/session/{name}/message/{item}", place, None)
                return 204, None
            case "POST", ["model"]:
                self.models[name] = self.last_model = checked("model", body["model"])
                return 204, None
            case "POST", ["agent"]:
                self.agents[name] = body["agent"]
                return 204, None
            case "POST", ["interrupt"]:
                _, busy = await self._first("GET", "/session/status", place, None)
                is_busy = name in (busy or ())  # it changes with the abort
                self._stopped.add(name)
                _, told = await self._first("POST", f"/session/{name}/abort", place, None)
                return 200, {"interrupted": is_busy and told is not False}
            case _, ["revert", *what]:
                return await self._revert(method, name, place, what, body)
            case "POST", ["prompt"]:
                return await self._prompt(name, place, body)
            case "POST", ["compact"]:
                path = f"/session/{name}/summarize"
                model = self.models.get(name, self.last_model)
                asked = {"providerID": model["providerID"], "modelID": model["id"], "auto": False}
                status, _ = await self._first("POST", path, place, asked)
                return status, {}
            case "POST", ["synthetic"]:
                return 200, {"id": "msg_s"}
            case "POST", ["permission", request, "reply"]:
                reply = body["reply" if self.is_early else "decision"]
                path = f"/permission/{request}/reply"
                return await self._first("POST", path, place, {"reply": reply})
            case "DELETE", ["form", request]:
                return await self._first("POST", f"/question/{request}/reject", place, {})
        raise Contract(f"not answered: {method} {rest}")

    async def _revert(
        self, method: str, name: str, place: str, what: list[str], body: Json
    ) -> tuple[int, Any]:
        match method, what:
            case "POST", ["stage"]:
                status, told = await self._first("POST", f"/session/{name}/revert", place, body)
                return status, {"messageID": body["messageID"]} if status == 200 else _failure(told)
            case "POST", ["commit"]:
                await self._first("POST", f"/session/{name}/commit", place, None)
                return 204, None
            case _:
                status, _ = await self._first("POST", f"/session/{name}/unrevert", place, None)
                return (204 if status == 200 else status), None

    async def _note_retry(self, name: str, rows: list[Json]) -> None:
        """Put a retry that is waited for on the reply that it is about."""
        _, statuses = await self._first("GET", "/session/status", "", None)
        status = (statuses or {}).get(name, {})
        for row in rows[::-1]:
            if row["type"] == "assistant" and status.get("type") == "retry":
                error = {"type": "provider.rate-limit", "message": status["message"]}
                waits = {"attempt": status.get("attempt", 1), "at": int(status.get("next", 0))}
                row["retry"] = checked("retry", {**waits, "error": error})
                return

    @staticmethod
    def _inbox(name: str, found: list[Json]) -> list[Json]:
        """What was sent while a model writes, and requests to compact that were not begun."""
        last = max((n for n, one in enumerate(found) if one["info"]["role"] != "user"), default=-1)
        time = found[last]["info"].get("time", {}) if last >= 0 else {}
        is_writing = last >= 0 and "completed" not in time
        items = []
        for one in found[last + 1 :]:
            is_request = any(part.get("type") == "compaction" for part in one["parts"])
            if is_request or is_writing:
                item = {"id": one["info"]["id"], "sessionID": name, "time": {"created": 0}}
                kind = "compaction" if is_request else "user"
                payload = {} if is_request else {"text": _text_of(one["parts"])}
                items.append({**item, "type": kind, "payload": payload, "delivery": "queue"})
        return items

    async def _prompt(self, name: str, place: str, body: Json) -> tuple[int, Any]:
        parts: list[Json] = [{"type": "text", "text": body["text"]}]
        for one in body.get("files") or ():
            checked("file sent", one)
            parts.append({"type": "file", "url": one["uri"], "filename": one.get("name")})
        sent: Json = {"parts": parts}
        if "id" in body:
            sent["messageID"] = body["id"]
        if body.get("resume") is False:
            sent["noReply"] = True
        if name in self.models:
            model = self.models[name]
            sent["model"] = {"providerID": model["providerID"], "modelID": model["id"]}
            if "variant" in model:
                sent["variant"] = model["variant"]
        if name in self.agents:
            sent["agent"] = self.agents[name]
        status, found = await self._first("POST", f"/session/{name}/prompt_async", place, sent)
        if not 200 <= status < 300:
            return status, _failure(found)
        return 200, {"id": body.get("id", "msg_u"), "type": "user", "delivery": "steer"}

    # --- shapes --------------------------------------------------------------------------------

    def _session(self, info: Json) -> Json:
        place = self.places.get(info["id"]) or info.get("directory") or ""
        made: Json = {
            "id": info["id"],
            "projectID": "global",
            "cost": 0,
            "tokens": {"input": 0, "output": 0, "reasoning": 0, "cache": {"read": 0, "write": 0}},
            "time": {"created": 0, "updated": 0},
            "location": {"directory": place},
        }
        for key in ("parentID", "title"):
            if info.get(key):
                made[key] = info[key]
        if info.get("revert"):
            made["revert"] = checked("revert", info["revert"])
        if info["id"] in self.models:
            made["model"] = self.models[info["id"]]
        if info["id"] in self.agents:
            made["agent"] = self.agents[info["id"]]
        return checked("session", made)

    def _request(self, kind: str, one: Json) -> Json:
        session = one.get("sessionID") or self.requests.get(one["id"], "")
        shared = {"id": one["id"], "sessionID": session}
        if kind == "form":
            return checked("form", {**shared, "title": "?", "fields": []})
        action = one.get("permission", "")
        asked = {**shared, "action": _TOOLS.get(action, action), "resources": []}
        return checked("permission", asked)

    def _messages(self, session: str, found: list[Json]) -> list[Json]:
        rows: list[Json] = []
        waiting = {one["id"] for one in self._inbox(session, found)}
        model = None
        for one in found:
            info, parts = one["info"], one.get("parts", [])
            time = {key: info.get("time", {}).get(key, 0) for key in ("created",)}
            asked = None if info["id"] in waiting else _model(info)
            if asked is not None and asked != model:
                more = {"previous": model} if model else {}
                switched = {"id": f"{info['id']}-m", "type": "model-switched", "model": asked}
                rows.append(checked("model-switched", {**switched, **more, "time": time}))
                model = asked
            is_compaction = any(part.get("type") == "compaction" for part in parts)
            if is_compaction:
                continue  # told with its summary
            if info["role"] == "user":
                self.agents.setdefault(session, info.get("agent") or "build")
                if info["id"] in waiting:
                    continue
                text = _text_of(parts)
                user: Json = {"id": info["id"], "type": "user", "time": time, "text": text}
                files = [_file(p) for p in parts if p.get("type") == "file"]
                rows.append(checked("user", {**user, **({"files": files} if files else {})}))
                continue
            if info.get("summary"):
                rows.append(self._compaction(info, time, found))
                continue
            rows.append(self._reply(info, parts, model))
        if model is not None:
            self.models.setdefault(session, model)
        return rows

    def _compaction(self, info: Json, time: Json, found: list[Json]) -> Json:
        asked = next(one for one in found if one["info"]["id"] == info["parentID"])
        auto = any(part.get("auto") for part in asked["parts"])
        row: Json = {"id": info["parentID"], "type": "compaction", "time": time}
        row["reason"] = "auto" if auto else "manual"
        if info.get("error"):
            failed = {**row, "status": "failed", "error": error_of(info["error"])}
            return checked("compaction failed", failed)
        if not info.get("finish"):
            return {**row, "status": "running", "summary": ""}
        return checked("compaction", {**row, "status": "completed", "summary": "short"})

    def _reply(self, info: Json, parts: list[Json], model: Json | None) -> Json:
        row: Json = {
            "id": info["id"],
            "type": "assistant",
            "agent": info.get("agent") or "build",
            "model": model or self.last_model,
            "time": {"created": 0, **info.get("time", {})},
            "content": [one for one in map(_content, parts) if one is not None],
        }
        for key in ("finish", "cost", "tokens"):
            if info.get(key) is not None:
                row[key] = info[key]
        if info.get("error"):
            row["error"] = error_of(info["error"])
        return checked("assistant", row)

    # --- events --------------------------------------------------------------------------------

    def events(self, first: Json) -> list[Json]:
        """Events of version 2 for one of version 1."""
        kind, said = first["type"], first.get("properties", {})
        session = said.get("sessionID", "")
        match kind:
            case "session.status":
                return self._status(session, said["status"])
            case "session.idle":
                return [event_of(kind, session)]
            case "session.error":
                return self._error(session, said["error"])
            case "session.created":
                info = said["info"]
                more = {"parentID": info["parentID"]} if info.get("parentID") else {}
                place = {"directory": info.get("directory", "")}
                shared = {"projectID": "global", "location": place, "slug": "s", "version": "2"}
                return [event_of(kind, info["id"], **shared, **more)]
            case "session.deleted":
                return [event_of(kind, said.get("info", {}).get("id") or session)]
            case "session.compacted":
                ended = {"reason": "auto", "text": "", "recent": ""}
                named = CONTRACT["events"]["session.compaction.ended"]["required"]
                some = {key: ended.get(key, "") for key in named if key != "sessionID"}
                return [event_of("session.compaction.ended", session, **some)]
            case "message.updated":
                return self._updated(session, said["info"])
            case "message.part.updated":
                return self._part(session, said["part"])
            case "message.part.delta":
                area, ordinal = self._texts.get(said["partID"], ("text", 0))
                named = {"assistantMessageID": said["messageID"], "ordinal": ordinal}
                return [event_of(f"session.{area}.delta", session, **named, delta=said["delta"])]
            case "permission.asked" | "question.asked":
                self.requests[said["id"]] = session
                request = self._request("permission" if kind[0] == "p" else "form", said)
                if kind[0] == "p":
                    return [event_of(kind, "", **request)]
                return [event_of("form.created", "", form=request)]
            case "server.heartbeat" | "message.removed" | "session.updated":
                return []
            case _:
                return [{"id": "evt_1", "type": kind, "data": {}}]

    def _status(self, session: str, status: Json) -> list[Json]:
        if status["type"] == "busy":
            self._failed.discard(session)
            is_new = session not in self._busy
            self._busy.add(session)
            return [event_of("session.execution.started", session)] if is_new else []
        if status["type"] == "retry":
            error = {"type": "provider.rate-limit", "message": status.get("message", "")}
            named = {"assistantMessageID": self._begun.get(session, f"msg_{session}")}
            at, number = int(status.get("next", 0)), status.get("attempt", 1)
            self._busy.add(session)
            return [
                event_of(
                    "session.retry.scheduled",
                    session,
                    **named,
                    attempt=number,
                    at=at,
                    error=checked("error", error),
                )
            ]
        self._busy.discard(session)
        if session in self._failed:
            self._failed.discard(session)
            return []
        if session in self._stopped:
            self._stopped.discard(session)
            return [event_of("session.execution.interrupted", session, reason="user")]
        return [event_of("session.execution.succeeded", session)]

    def _error(self, session: str, error: Json) -> list[Json]:
        if error.get("name") == "MessageAbortedError":
            self._failed.add(session)
            self._busy.discard(session)
            return [event_of("session.execution.interrupted", session, reason="user")]
        is_news = session not in self._failed  # said twice by version 1
        self._failed.add(session)
        self._busy.discard(session)
        if not is_news:
            return []
        return [event_of("session.execution.failed", session, error=error_of(error))]

    def _updated(self, session: str, info: Json) -> list[Json]:
        name, model = info["id"], _model(info)
        if model is not None:
            self.models[session] = model
        if info["role"] == "user":
            self.agents.setdefault(session, info.get("agent") or "build")
            self._failed.discard(session)
            payload = {"text": ""}
            item = {"type": "user", "payload": payload, "delivery": "steer"}
            return [
                event_of("session.inbox.enqueued", session, inboxID=name, item=item),
                event_of("session.inbox.delivered", session, inboxID=name),
            ]
        if info.get("summary"):
            return []
        found = []
        if self._begun.get(session) != name:
            self._begun[session] = name
            begun = {"agent": info.get("agent") or "build", "model": model or self.last_model}
            if session not in self._busy:
                found += self._status(session, {"type": "busy"})
            found.append(
                event_of(
                    "session.step.started", session, assistantMessageID=name, started=1, **begun
                )
            )
        if info.get("finish") and name not in self._ended:
            self._ended.add(name)
            tokens = {"input": 0, "output": 0, **info.get("tokens", {})}
            ended = {"finish": info["finish"], "tokens": tokens, "cost": info.get("cost", 0)}
            found.append(event_of("session.step.ended", session, assistantMessageID=name, **ended))
        return found

    def _part(self, session: str, part: Json) -> list[Json]:
        named = {
            "assistantMessageID": part.get("messageID")
            or self._begun.get(session, f"msg_{session}")
        }
        kind = part.get("type")
        if kind in ("text", "reasoning"):
            if named["assistantMessageID"] not in self._begun.values():
                return []  # of the user
            is_new = part["id"] not in self._texts
            ordinal = sum(1 for one in self._texts.values() if one[0] == kind)
            kind, ordinal = self._texts.setdefault(part["id"], (kind, ordinal))
            found = [event_of(f"session.{kind}.started", session, **named, ordinal=ordinal)]
            said = {**named, "ordinal": ordinal, "text": part.get("text", "")}
            ended = [event_of(f"session.{kind}.ended", session, **said)] if said["text"] else []
            return [*(found if is_new else ()), *ended]
        if kind != "tool":
            return []
        call = part.get("callID") or part["id"]
        state, name = part["state"], part["tool"]
        named["id"] = call
        found = []
        if (session, call) not in self._tools:
            self._tools.add((session, call))
            begun = event_of(
                "session.tool.input.started", session, **named, name=_TOOLS.get(name, name)
            )
            given = {"input": state.get("input", {}), "executed": False}
            found = [begun, event_of("session.tool.called", session, **named, **given)]
        more = {"metadata": state["metadata"]} if state.get("metadata") else {}
        if state["status"] == "completed":
            done = {"content": [], "executed": False, **more}
            found.append(event_of("session.tool.success", session, **named, **done))
        elif state["status"] == "error":
            error = {"type": "tool.execution", "message": state.get("error", "")}
            done = {"error": error, "executed": False, **more}
            found.append(event_of("session.tool.failed", session, **named, **done))
        return found


def _failure(told: Any) -> Json:
    name = told.get("name", "UnknownError") if isinstance(told, dict) else "UnknownError"
    data = told.get("data", {}) if isinstance(told, dict) else {}
    return {"_tag": name, "message": data.get("message", "")}


def error_of(error: Json) -> Json:
    data = error.get("data", {})
    status = data.get("statusCode")
    kind = _SAID.get(status, "provider.unknown")
    if error.get("name") == "MessageAbortedError":
        kind = "aborted"
    found: Json = {"type": kind, "message": data.get("message", "")}
    if status is not None:
        found["status"] = status
    if data.get("responseBody"):
        found["response"] = {"body": data["responseBody"]}
    if wait := data.get("responseHeaders", {}).get("retry-after"):
        found["retryAfterMs"] = int(float(wait) * 1000)
    return checked("error", found)


def _model(info: Json) -> Json | None:
    given = info.get("model") or info
    if not given.get("providerID") or not given.get("modelID"):
        return None
    more = {"variant": given["variant"]} if given.get("variant") else {}
    return checked("model", {"providerID": given["providerID"], "id": given["modelID"], **more})


def _text_of(parts: list[Json]) -> str:
    return "".join(part.get("text", "") for part in parts if part.get("type") == "text")


def _file(part: Json) -> Json:
    source = {"type": "uri", "uri": part.get("url", "")}
    file: Json = {"data": "", "mime": part.get("mime", ""), "source": source}
    if part.get("filename"):
        file["name"] = part["filename"]
    return checked("file", file)


def _content(part: Json) -> Json | None:
    match part.get("type"):
        case "text" | "reasoning" as kind:
            return checked(kind, {"type": kind, "text": part.get("text", "")})
        case "tool":
            state = part["state"]
            given = {"status": state["status"], "input": state.get("input", {})}
            more = {"metadata": state["metadata"]} if state.get("metadata") else {}
            match state["status"]:
                case "completed":
                    said = checked("tool completed", {**given, **more, "content": []})
                case "error":
                    error = {"type": "tool.execution", "message": state.get("error", "")}
                    said = checked("tool error", {**given, **more, "error": error})
                case _:
                    said = {**given, "metadata": {}}
            name = _TOOLS.get(part["tool"], part["tool"])
            call = part.get("callID") or part["id"]
            tool = {"type": "tool", "id": call, "name": name, "state": said}
            return checked("tool", {**tool, "time": {"created": 0}})
        case _:
            return None
