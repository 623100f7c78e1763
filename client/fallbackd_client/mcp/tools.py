"""
The tools as clients see them. Their text stands in the prompt of each turn, so every word counts.

Only plain types, no `$ref`, `oneOf`, `format` or null: clients rewrite or refuse these.
"""

from __future__ import annotations

from fallbackd_client.errors import ClientError
from fallbackd_client.mcp.call import ToolFailed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from fallbackd_client.calls import Json
    from fallbackd_client.client import Client
    from fallbackd_client.mcp.call import Call

_TEXT: dict[str, Json] = {"type": "string"}
_NUMBER: dict[str, Json] = {"type": "number"}
_BOOLEAN: dict[str, Json] = {"type": "boolean"}
_OBJECT: dict[str, Json] = {"type": "object"}
DEFAULT_WAIT_S = 50.0
LEVELS = ("read", "workspace", "full")
DEFAULT_LEVEL = "workspace"
"""Asked for where the agent names none, so that one with less is refused with both words."""
MAX_NUMBER = 1e9
"""Of seconds: some thirty years."""


def _text(description: str) -> dict[str, Json]:
    return {**_TEXT, "description": description}


def _number(description: str) -> dict[str, Json]:
    return {**_NUMBER, "description": description}


def _one_of(*words: str) -> dict[str, Json]:
    return {**_TEXT, "enum": list(words)}


_WAIT: dict[str, Json] = {
    **_number("seconds to wait before a handle is returned instead; default 50"),
    "minimum": 0,
}
_ID = _text("id as delegate returned it")
_OUTCOME: dict[str, Json] = {
    "type": "object",
    "properties": {
        "delegation": _TEXT,
        "state": _text("succeeded, failed, refused, cancelled, running, awaiting_answer, …"),
        "text": _text("the answer"),
        "served_by": _TEXT,
        "fallback_from": _TEXT,
        "fallback_reason": _TEXT,
        "message": _TEXT,
        "next": _text("what to do now"),
        "retry_at": _NUMBER,
        "question": _OBJECT,
        "usage": _OBJECT,
    },
    "required": ["delegation", "state"],
}
_ANY: dict[str, Json] = {"type": "object"}
READS = {"readOnlyHint": True, "idempotentHint": True, "openWorldHint": False}
CHANGES = {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": True}
_SHOWN = {"_meta": {"anthropic/alwaysLoad": True}}
"""Otherwise Claude Code hides a tool behind a search where there are many."""


class Tool:
    """
    Args:
        function: `module.name` below this package; loaded when the tool is called.
        extra: Further fields of its definition.
    """

    __slots__ = ("definition", "function", "name")

    def __init__(
        self,
        name: str,
        description: str,
        function: str,
        *,
        arguments: dict[str, Json],
        required: tuple[str, ...] = (),
        returns: dict[str, Json] = _ANY,
        annotations: dict[str, bool],
        extra: dict[str, Json] | None = None,
    ) -> None:
        self.name = name
        self.function = function
        schema: dict[str, Json] = {"type": "object", "properties": arguments}
        if required:
            schema["required"] = list(required)
        self.definition: dict[str, Json] = {
            "name": name,
            "description": description,
            "inputSchema": schema,
            "outputSchema": returns,
            "annotations": annotations,
            **(extra or {}),
        }


TOOLS: tuple[Tool, ...] = (
    Tool(
        "delegate",
        "Run a prompt on another agent or model, failing over along the chain when one is limited,"
        " logged out or down. Returns the answer, which backend gave it, and why.",
        "delegating.delegate",
        arguments={
            "prompt": _text("complete instructions; this conversation is not seen"),
            "backend": _text("tried first: claude, codex, opencode, gemini, … (see status)"),
            "role": _text("a configured role"),
            "cwd": _text("directory of the work, inside the project; default the project"),
            "model": _TEXT,
            "session": _text("name of a conversation to continue; default this one's"),
            "permissions": {
                **_one_of(*LEVELS),
                "description": "default workspace: may write below cwd",
            },
            "timeout_s": _number("stops the work"),
            "when_available": {
                **_BOOLEAN,
                "description": "while all backends are out, wait for one, 24 h at most",
            },
            "wait_s": _WAIT,
            "request_id": _text("the same id is never run twice"),
        },
        required=("prompt",),
        returns=_OUTCOME,
        annotations={**CHANGES, "idempotentHint": False},
        extra={
            "_meta": {"anthropic/alwaysLoad": True, "anthropic/maxResultSizeChars": 100_000},
        },
    ),
    Tool(
        "wait",
        "Wait for a delegation that is still running, and return its answer.",
        "delegating.wait",
        arguments={"delegation": _ID, "wait_s": _WAIT},
        required=("delegation",),
        returns=_OUTCOME,
        annotations=READS,
    ),
    Tool(
        "cancel",
        "Stop a delegation; returns when its processes have exited.",
        "delegating.cancel",
        arguments={"delegation": _ID},
        required=("delegation",),
        returns=_OUTCOME,
        annotations={**CHANGES, "idempotentHint": True},
    ),
    Tool(
        "status",
        "Which backends are available now, which are limited and until when, and running work.",
        "looking.status",
        arguments={},
        annotations=READS,
        extra=_SHOWN,
    ),
    Tool(
        "health",
        "Health of the backends, or of one with its scopes.",
        "looking.health",
        arguments={"action": _one_of("list"), "target": _text("a backend or scope")},
        annotations=READS,
    ),
    Tool(
        "suggest",
        "Which backend suits a task.",
        "looking.suggest",
        arguments={
            "goal": _text("the task"),
            "size": _one_of("tiny", "small", "medium", "large", "xlarge"),
            "complexity": _one_of("low", "medium", "high", "extreme"),
            "scope": _text("code, refactor, security, research, analysis, build, test"),
        },
        required=("goal",),
        annotations=READS,
    ),
    Tool(
        "explain",
        "Why a delegation was routed as it was.",
        "looking.explain",
        arguments={"delegation": _ID},
        required=("delegation",),
        annotations=READS,
    ),
)

_HEALTH_ACTIONS = ("list", "clear", "pause", "resume")


def _with_health_changes(tool: Tool) -> Tool:
    return Tool(
        tool.name,
        "Health of the backends; clear, pause or resume one.",
        tool.function,
        arguments={
            "action": _one_of(*_HEALTH_ACTIONS),
            "target": _text("a backend or scope"),
        },
        annotations={**CHANGES, "idempotentHint": True, "openWorldHint": False},
    )


_LOOKS = ("status", "health", "suggest")


class Offer:
    """
    The tools of one server.

    Args:
        may_change_health: An agent that may could lift its own limits, so only its user says so.
    """

    def __init__(self, *, may_change_health: bool) -> None:
        self._plain = {one.name: one for one in TOOLS}
        self._tools = dict(self._plain)
        if may_change_health:
            self._tools["health"] = _with_health_changes(self._plain["health"])

    @property
    def names(self) -> list[str]:
        return list(self._tools)

    def find(self, name: Json) -> Tool | None:
        return self._tools.get(name) if isinstance(name, str) else None

    def listed(self, connect: Callable[[], Client]) -> list[Json]:
        """
        Definitions of those that may be called, by the processes above this one, which the daemon
        looks at. It does so again for each call.
        """
        try:
            with connect() as client:
                found = client.call("daemon.ping")
        except ClientError:  # each call says what is wrong
            found = {}
        most = found.get("permissions", LEVELS[-1])
        if most is None:
            return [self._plain[name].definition for name in _LOOKS]
        if not found.get("attempt"):
            return [one.definition for one in self._tools.values()]
        return [
            _within(one, most) if one.name == "delegate" else one.definition
            for one in self._plain.values()
        ]


def _within(delegate: Tool, most: str) -> dict[str, Json]:
    """Its definition for an agent that may delegate no more than this."""
    levels = list(LEVELS[: LEVELS.index(most) + 1])
    schema = delegate.definition["inputSchema"]
    asked = {**schema["properties"]["permissions"], "enum": levels}
    narrowed = {**schema, "properties": {**schema["properties"], "permissions": asked}}
    if DEFAULT_LEVEL not in levels:
        narrowed["required"] = [*schema["required"], "permissions"]
        asked["description"] = f"you may ask for {most}"
    return {**delegate.definition, "inputSchema": narrowed}


def load(tool: Tool) -> Callable[[Call], dict[str, Json]]:
    module, _, name = tool.function.partition(".")
    loaded = __import__(f"{__package__}.{module}", fromlist=[name])
    function: Callable[[Call], dict[str, Json]] = getattr(loaded, name)
    return function


_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "number": (int, float),
    "boolean": (bool,),
}


def check(tool: Tool, arguments: dict[str, Json]) -> None:
    """
    Hold arguments to the schema, and leave out those that say nothing: models like to fill in all.

    Raises:
        ToolFailed: With what is wrong, for the model to correct.
    """
    schema = tool.definition["inputSchema"]
    properties: dict[str, dict[str, Json]] = schema["properties"]
    for name in [name for name, value in arguments.items() if value is None or value == ""]:
        del arguments[name]
    for name in schema.get("required", ()):
        if name not in arguments:
            raise ToolFailed(f"{tool.name} needs the argument `{name}`")
    for name, value in arguments.items():
        if name not in properties:
            known = ", ".join(properties) or "none"
            raise ToolFailed(f"{tool.name} has no argument `{name[:80]}`; it takes: {known}")
        _check_value(name, value, properties[name])


def _check_value(name: str, value: Json, wanted: dict[str, Json]) -> None:
    is_flag = wanted["type"] == "boolean"
    if isinstance(value, bool) != is_flag or not isinstance(value, _TYPES[wanted["type"]]):
        raise ToolFailed(f"`{name}` has to be a {wanted['type']}")
    if isinstance(value, int | float) and not abs(value) <= MAX_NUMBER:
        raise ToolFailed(f"`{name}` is too large")
    if isinstance(value, int | float) and value < wanted.get("minimum", value):
        raise ToolFailed(f"`{name}` has to be {wanted['minimum']} or more")
    if "enum" in wanted and value not in wanted["enum"]:
        raise ToolFailed(f"`{name}` has to be one of {', '.join(wanted['enum'])}")
