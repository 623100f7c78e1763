"""Tools that look: what is available, what suits a task, why something went as it did."""

from __future__ import annotations

from fallbackd_client.cli.commands.decide import health_view, suggest_view
from fallbackd_client.cli.commands.explain import short_view
from fallbackd_client.cli.commands.status import status_view
from fallbackd_client.cli.output import Style, clean
from fallbackd_client.mcp import delegating
from fallbackd_client.mcp.delegating import worded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.calls import Json
    from fallbackd_client.mcp.call import Call

MAX_EXPLAIN_CHARS = 8_000
_PLAIN = Style(enabled=False)
_HEALTH_FIELDS = ("state", "reason", "detail", "until_at", "unproven")


def status(call: Call) -> dict[str, Json]:
    with call.connect() as client:
        found = clean(client.call("status"))
    counts = found.get("delegations") or {}
    shown = {
        "backends": _short(found.get("health") or {}),
        "running": [
            {name: one[name] for name in ("delegation", "state", "active") if one.get(name)}
            for one in counts.get("active") or []
        ],
        "questions": len(found.get("questions") or []),
        "state": (found.get("daemon") or {}).get("state"),
    }
    return worded(status_view(found, _PLAIN), shown)


def health(call: Call) -> dict[str, Json]:
    action, target = call.arguments.get("action", "list"), call.arguments.get("target")
    params: dict[str, Json] = {"action": action}
    if target:
        params["target"] = target
        if action == "list":
            params["action"] = "get"
    with call.connect() as client:
        found = clean(client.call("health", params))
    shown = {**found, "health": _short(found.get("health") or {})}
    return worded(health_view(found, _PLAIN), shown)


def suggest(call: Call) -> dict[str, Json]:
    given = dict(call.arguments)
    if "size" in given:
        given["project_size"] = given.pop("size")
    with call.connect() as client:
        found = clean(client.call("suggest", {**given, "project_root": delegating.directory(call)}))
    return worded(suggest_view(found, _PLAIN), found)


def explain(call: Call) -> dict[str, Json]:
    with call.connect() as client:
        wanted = {"delegation": call.arguments["delegation"]}
        found = clean(client.call("delegation.get", wanted))
    text = short_view(found, _PLAIN)
    if len(text) > MAX_EXPLAIN_CHARS:
        hint = f"\n… cut; all of it: fallbackd-client explain {found['delegation']}"
        text = text[:MAX_EXPLAIN_CHARS] + hint
    shown = {"delegation": found["delegation"], "state": found["state"], "explanation": text}
    return worded(text, shown)


def _short(health: dict[str, Json]) -> dict[str, Json]:
    return {
        backend: {name: entry[name] for name in _HEALTH_FIELDS if entry.get(name)}
        for backend, entry in health.items()
    }
