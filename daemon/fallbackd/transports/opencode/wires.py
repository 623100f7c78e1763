"""
Wires of opencode: the calls that the daemon makes, and what the second version has for each.

Everything above asks in the calls of version 1 and hears its events. A server of version 1 gets
them as they are; for one of version 2 `second` makes other calls of them, by these tables.
Nothing of version 2 is asked for or read that does not stand here.

| wire | versions | sign |
| --- | --- | --- |
| first | 1 | `GET /global/health` is JSON |
| early second | 2.0.0 to 2.0.3 | `GET /api/health` is JSON with a `version` |
| second | 2.0.4 and later | `GET /api/info` is JSON with a `version` |

A server of version 2 answers unknown paths with its web page and status 200; one of version 1 has
`/api/health` too, without a version.

Source: the documentation of opencode 2, and a typed contract generated from 2.1.2; unverified
against the program itself.
"""

from collections.abc import Mapping

from msgspec import Struct

CALLS: Mapping[str, tuple[str, ...]] = {
    "GET /global/health": ("info",),
    "GET /config": ("info",),
    "GET /config/providers": ("models",),
    "POST /session": ("agents", "create"),
    "GET /session/status": ("active", "messages"),
    "GET /session/:session": ("session",),
    "DELETE /session/:session": ("delete",),
    "GET /session/:session/message": ("session", "messages", "inbox"),
    "GET /session/:session/message/:message": ("session", "messages", "inbox"),
    "GET /session/:session/children": ("sessions",),
    "POST /session/:session/abort": ("interrupt",),
    "POST /session/:session/revert": ("stage",),
    "POST /session/:session/unrevert": ("clear",),
    "POST /session/:session/prompt_async": (
        *("session", "model", "agent", "inbox", "cancel", "commit", "prompt"),
    ),
    "POST /session/:session/summarize": (
        *("session", "model", "inbox", "cancel", "commit", "compact", "synthetic"),
    ),
    "GET /permission": ("permissions",),
    "GET /question": ("forms",),
    "POST /permission/:request/reply": ("permissions", "permit"),
    "POST /question/:request/reject": ("forms", "dismiss"),
    # What follows has no counterpart.
    "PATCH /session/:session/message/:message/part/:part": (),
    "POST /instance/dispose": (),
    "POST /tui/show-toast": (),
    "POST /log": (),
}
"""Routes by the call of version 1 that they stand for."""


class Route(Struct, frozen=True):
    """One route of version 2. Names behind a colon are put in; `early` names what 2.0.0 has."""

    method: str
    path: str
    query: tuple[str, ...] = ()
    sends: tuple[str, ...] = ()
    early: Mapping[str, str] = {}
    """Of 2.0.0 to 2.0.3: `method`, `path`, and fields by their later names."""


_SESSION = "/api/session/:session"
_PLACE = "location[directory]"

ROUTES: Mapping[str, Route] = {
    "info": Route("GET", "/api/info", early={"path": "/api/health"}),
    "events": Route("GET", "/api/event"),
    "agents": Route("GET", "/api/agent", (_PLACE,)),
    "models": Route("GET", "/api/model", (_PLACE,)),
    "create": Route("POST", "/api/session", sends=("title", "location")),
    "sessions": Route("GET", "/api/session", ("parentID", "limit", "cursor")),
    "active": Route("GET", "/api/session/active"),
    "session": Route("GET", _SESSION),
    "delete": Route("DELETE", _SESSION),
    "messages": Route("GET", f"{_SESSION}/message", ("limit", "order", "cursor")),
    "inbox": Route("GET", f"{_SESSION}/inbox"),
    "cancel": Route("DELETE", f"{_SESSION}/inbox/:item"),
    "interrupt": Route("POST", f"{_SESSION}/interrupt", ("resume",), early={"resume": "continue"}),
    "stage": Route("POST", f"{_SESSION}/revert/stage", sends=("messageID", "files")),
    "commit": Route("POST", f"{_SESSION}/revert/commit"),
    "clear": Route(
        "DELETE",
        f"{_SESSION}/revert",
        early={"method": "POST", "path": f"{_SESSION}/revert/clear"},
    ),
    "model": Route("POST", f"{_SESSION}/model", sends=("model",)),
    "agent": Route("POST", f"{_SESSION}/agent", sends=("agent",)),
    "prompt": Route(
        "POST", f"{_SESSION}/prompt", sends=("id", "text", "files", "agents", "resume")
    ),
    "compact": Route("POST", f"{_SESSION}/compact", sends=("id",)),
    "synthetic": Route("POST", f"{_SESSION}/synthetic", sends=("text", "delivery")),
    "permissions": Route("GET", "/api/permission/request", (_PLACE,)),
    "permit": Route(
        "POST",
        f"{_SESSION}/permission/:request/reply",
        sends=("decision",),
        early={"decision": "reply"},
    ),
    "forms": Route("GET", "/api/form", (_PLACE,)),
    "dismiss": Route("DELETE", f"{_SESSION}/form/:request", ("message",)),
}

EVENTS: Mapping[str, tuple[str, ...]] = {
    "server.connected": (),
    "session.created": ("sessionID", "parentID", "location", "title"),
    "session.deleted": ("sessionID",),
    "session.idle": ("sessionID",),
    "session.execution.started": ("sessionID",),
    "session.execution.succeeded": ("sessionID",),
    "session.execution.failed": ("sessionID", "error"),
    "session.execution.interrupted": ("sessionID", "reason"),
    "session.retry.scheduled": ("sessionID", "assistantMessageID", "attempt", "at", "error"),
    "session.inbox.enqueued": ("sessionID", "inboxID", "item"),
    "session.inbox.delivered": ("sessionID", "inboxID"),
    "session.step.started": ("sessionID", "assistantMessageID", "agent", "model", "started"),
    "session.step.ended": ("sessionID", "assistantMessageID", "finish", "tokens", "cost"),
    "session.text.started": ("sessionID", "assistantMessageID", "ordinal"),
    "session.text.delta": ("sessionID", "assistantMessageID", "ordinal", "delta"),
    "session.text.ended": ("sessionID", "assistantMessageID", "ordinal", "text"),
    "session.reasoning.started": ("sessionID", "assistantMessageID", "ordinal"),
    "session.reasoning.delta": ("sessionID", "assistantMessageID", "ordinal", "delta"),
    "session.reasoning.ended": ("sessionID", "assistantMessageID", "ordinal", "text"),
    "session.tool.input.started": ("sessionID", "assistantMessageID", "id", "name"),
    "session.tool.called": ("sessionID", "assistantMessageID", "id", "input"),
    "session.tool.success": ("sessionID", "assistantMessageID", "id", "metadata"),
    "session.tool.failed": ("sessionID", "assistantMessageID", "id", "error", "metadata"),
    "session.compaction.ended": ("sessionID",),
    "permission.asked": ("id", "sessionID", "action", "resources"),
    "permission.replied": ("sessionID", "requestID"),
    "form.created": ("form",),
}
"""Fields of `data` that are read, by the type of the event. Other events are signs of life."""

SHAPES: Mapping[str, tuple[str, ...]] = {
    "info": ("version",),
    "session": (
        *("id", "parentID", "title", "agent", "model", "outcome", "time", "revert", "location"),
    ),
    "location": ("directory",),
    "revert": ("messageID",),
    "model": ("id", "providerID", "variant"),
    "model info": ("id", "providerID", "limit"),
    "error": ("type", "message", "status", "response", "retryAfterMs"),
    "permission": ("id", "sessionID", "action", "resources"),
    "form": ("id", "sessionID"),
    "inbox item": ("id", "time", "type", "payload"),
    "inbox payload": ("text", "files", "agents"),
    "user": ("id", "type", "time", "text", "files", "agents"),
    "assistant": (
        *("id", "type", "time", "agent", "model", "content", "finish", "cost", "tokens"),
        *("error", "retry"),
    ),
    "retry": ("attempt", "at", "error"),
    "compaction": ("id", "type", "time", "status", "reason", "model", "error"),
    "idle": ("type", "outcome", "error"),
    "model-switched": ("type", "model", "previous"),
    "text": ("type", "text"),
    "reasoning": ("type", "text"),
    "tool": ("type", "id", "name", "state"),
    "tool state": ("status", "input", "error", "metadata"),
    "file": ("data", "mime", "source", "name"),
    "file source": ("type", "uri"),
    "attached agent": ("name",),
}
"""Fields that are read of what a server answers, and of what lies inside of an event."""

TOOLS = {"shell": "bash", "subagent": "task"}
"""Names that a tool has in version 1."""
