"""
OpenAI's `codex exec --json`.

| line on stdout | means |
| --- | --- |
| `thread.started` | the id by which the conversation is resumed |
| `error` `Reconnecting... 2/5 (reason)` | it tries again; the reason is only here |
| `item.started`, `item.completed` | the provider answered; an item of type `error` is a warning |
| `turn.completed` | the answer is the last `agent_message` |
| `turn.failed` | the end; no status field, the text names it |

Source: recorded runs of codex 0.169.0. It has no time-out on response headers and waits for a
network without an end, so silence and `waiting for network` are the engine's to bound. It retries
on two levels: a request up to 4 times without a word (3 s), then the stream up to 5 times, each
time with a line.

`codex app-server` takes one prompt after another, and says the same as notifications with names in
another spelling; its `item/agentMessage/delta` is a piece of a message, and
`account/rateLimits/updated` has the figures of the plan.

While a person works it writes `sessions/Y/M/D/rollout-….jsonl`:

| line | means |
| --- | --- |
| `session_meta`, the first | whose session it is: `"source":"exec"` is one of a program |
| `event_msg` `token_count` | figures of the plan, in `rate_limits` |
| `event_msg` `task_complete` | the end of a turn; with `error`, it failed |
| `turn_context` | the model of a turn |
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import structs

from fallbackd.backends import residents
from fallbackd.backends.commands import (
    command_line,
    encode_json,
    is_plain,
    model_of,
    program,
    resumes,
)
from fallbackd.backends.lines import CliParser, count, fields, status_in, words
from fallbackd.backends.outside import call_words, started, with_refused
from fallbackd.backends.spec import (
    BackendKind,
    Footprint,
    Login,
    Options,
    PlanInquiry,
    ProjectFiles,
    SessionFiles,
    SessionSeen,
    Setup,
)
from fallbackd.classify.rules import Rule
from fallbackd.core.failures import NO_CONVERSATION
from fallbackd.core.figures import Figure, Figures
from fallbackd.core.protocol import (
    AgentText,
    CommandLine,
    Conversation,
    Evidence,
    FiguresSeen,
    GivenUp,
    Inquiry,
    Observation,
    Output,
    Phase,
    ProcessExit,
    Reply,
    Residency,
    ToolEnded,
    ToolStarted,
    Usage,
    Work,
)
from fallbackd.core.reasons import Reason
from fallbackd_conversations.codex import owner_of


def evidence_of(error: dict[str, Any]) -> Evidence:
    """
    Read the message of an error and its typed kind, where there is one.

    The kind is a word, or an object whose only key is the word: `{"httpConnectionFailed":
    {"httpStatusCode": 503}}`. A status says more than that word, and an unknown word says nothing.
    """
    message = words(error.get("message"))
    kind = error.get("codexErrorInfo") or error.get("codex_error_info")
    status = status_in(message)
    if isinstance(kind, dict):
        kind, inner = next(iter(kind.items()), ("", None))
        for name in ("httpStatusCode", "http_status_code"):
            stated = fields(inner).get(name)
            status = stated if isinstance(stated, int) and stated >= 400 else status
        kind = kind if status is None else ""
    word = words(kind).replace("_", "").lower()
    return Evidence(
        text=message,
        stream="jsonl",
        code=word if word in _TYPED_WORDS else None,
        http_status=status,
    )


_TYPED = (
    Rule("codex-typed-context", Reason.CONTEXT_OVERFLOW, codes=("contextwindowexceeded",)),
    Rule("codex-typed-plan", Reason.USAGE_LIMIT, codes=("usagelimitexceeded",)),
    Rule("codex-typed-throttle", Reason.RATE_LIMIT, codes=("ratelimitexceeded",)),
    Rule(
        "codex-typed-load",
        Reason.OVERLOADED,
        codes=("serveroverloaded", "flexunavailable", "policycapacityunavailable"),
    ),
    Rule("codex-typed-model", Reason.MODEL_NOT_FOUND, codes=("modelnotfound",)),
    Rule(
        "codex-typed-safety",
        Reason.CONTENT_POLICY,
        codes=("cyberpolicy", "misalignmentpolicyviolation"),
    ),
    Rule("codex-typed-policy", Reason.PROVIDER_POLICY, codes=("inferencehookdenied",)),
    Rule("codex-typed-login", Reason.AUTH, codes=("unauthorized",)),
    Rule(
        "codex-typed-network",
        Reason.NETWORK,
        codes=(
            "httpconnectionfailed",
            "responsestreamconnectionfailed",
            "responsestreamdisconnected",
        ),
    ),
    Rule("codex-typed-fault", Reason.SERVER_ERROR, codes=("internalservererror",)),
)
"""The kinds that the program itself names; `codex exec` 0.169.0 prints none of them yet."""
_TYPED_WORDS = frozenset(word for rule in _TYPED for word in rule.codes)

RULES = (
    *_TYPED,
    Rule(
        "codex-warning",
        Reason.UNKNOWN,
        r"(?:■|ERROR:|stream error:|unexpected status|Error:)\s*",
        opens=True,
        streams=("stderr", "unknown"),
    ),
    Rule(
        "codex-plan-limit",
        Reason.USAGE_LIMIT,
        "You've hit your usage limit|The usage limit has been reached",
        codes=("usage_limit_reached", "usage_not_included"),
    ),
    Rule("codex-quota", Reason.BILLING, r"Quota exceeded\. Check your plan"),
    Rule(
        "codex-capacity",
        Reason.OVERLOADED,
        "Selected model is at capacity|We're currently experiencing high demand",
    ),
    Rule("codex-context", Reason.CONTEXT_OVERFLOW, "Codex ran out of room in the model's"),
    Rule(
        "codex-resume",
        Reason.SESSION,
        r"thread/resume failed:|thread \S+ already has an active writer"
        "|no rollout found for thread",
        detail=NO_CONVERSATION,
    ),
    Rule(
        "codex-config",
        Reason.NOT_CONFIGURED,
        r"Error loading config\.toml|Missing environment variable:|Not inside a trusted directory"
        r"|Model provider `[^`]*` not found",
    ),
    Rule(
        "codex-login",
        Reason.AUTH,
        "Your access token could not be refreshed|Not logged in"
        "|Please (?:log|sign)(?: ?in|ing in) again",
    ),
    Rule(
        "codex-model-for-login", Reason.MODEL_NOT_FOUND, "model is not supported when using Codex"
    ),
)


FRESH_S = 60.0
"""Age up to which news counts: the daemon hears of it within seconds."""


def read(head: bytes, lines: Sequence[bytes], now: float) -> SessionSeen:
    """
    Read only the figures of a session that a program runs: that program judges the rest. Ignores
    old failures, since a session that is opened again repeats its last one.
    """
    seen = SessionSeen()
    for at, kind, event in _events(lines, now):
        seen = structs.replace(seen, **_news(at, kind, event, seen.windows))
    if owner_of(head) == "program":
        return SessionSeen(windows=seen.windows)
    if seen.failure is not None or any(one.is_spent for one in seen.windows):
        seen = structs.replace(seen, worked_at=None)
    return seen


def _news(at: float, kind: str, event: dict[str, Any], windows: Figures) -> dict[str, Any]:
    """Fields of `SessionSeen` that one event changes."""
    if kind == "turn_context":
        return {"model": words(event.get("model")) or None}
    match event.get("type"):
        case "token_count":
            # Of one model alone (`limit_id`), they say nothing of the plan.
            limits = fields(event.get("rate_limits"))
            if words(limits.get("limit_id")) in ("", "codex") and (new := _windows(limits)):
                new = tuple(structs.replace(one, at=at) for one in new)
                return {"windows": new, "worked_at": at}
        case "task_started":
            return {"turn": None, "failure": None}
        case "task_complete":
            turn = words(event.get("turn_id")) or None
            if error := fields(event.get("error")):
                return {"turn": turn, "failure": _with_reset(evidence_of(error), windows)}
            worked = {"worked_at": at} if words(event.get("last_agent_message")) else {}
            return {"turn": turn, "failure": None, **worked}
    return {}


def _events(lines: Sequence[bytes], now: float) -> Iterator[tuple[float, str, dict[str, Any]]]:
    for line in lines:
        if b'"event_msg"' not in line and b'"turn_context"' not in line:
            continue
        try:
            found = msgspec.json.decode(line)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            continue
        kind = words(found.get("type")) if isinstance(found, dict) else ""
        if kind not in ("event_msg", "turn_context"):
            continue
        at = _instant(words(found.get("timestamp")))
        if at is not None and abs(now - at) <= FRESH_S:
            yield at, kind, fields(found.get("payload"))


def _instant(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None


def _windows(limits: Mapping[str, Any]) -> Figures:
    found = []
    for name in ("primary", "secondary"):
        one = {_spelled(key): value for key, value in fields(limits.get(name)).items()}
        minutes = _number(one.get("window_minutes", one.get("window_duration_mins")))
        used, at = _number(one.get("used_percent")), _number(one.get("resets_at"))
        if used is not None and minutes:
            found.append(Figure(window_s=minutes * 60, used_percent=used, resets_at=at or None))
    return tuple(found)


_ASK_PLAN = b"".join(
    msgspec.json.encode(one) + b"\n"
    for one in (
        {
            "id": 1,
            "method": "initialize",
            "params": {"clientInfo": {"name": "fallbackd", "version": "1"}},
        },
        {"method": "initialized"},
        {"id": 2, "method": "account/rateLimits/read", "params": {}},
    )
)


def _read_plan(said: Mapping[str, Any], at: float) -> Figures:
    """Further limits, of single models, are left out: they are spent apart from the plan."""
    limits = fields(fields(said.get("result")).get("rateLimits"))
    if words(limits.get("limitId")) not in ("", "codex"):
        return ()
    return tuple(structs.replace(one, source="asked", at=at) for one in _windows(limits))


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < 1e12 else None


def _with_reset(evidence: Evidence, windows: Figures) -> Evidence:
    """Add the instant at which a spent window begins anew: the sentence has but the minute."""
    ends = [one.resets_at for one in windows if one.is_spent and one.resets_at is not None]
    if evidence.code != "usagelimitexceeded" or not ends:
        return evidence
    body = {"error": {"type": "usage_limit_reached", "resets_at": max(ends)}}
    return structs.replace(evidence, body=body)


CONFIG = "${CODEX_HOME:-~/.codex}/config.toml"
_HOME = "CODEX_HOME"
"""The variable of another directory than `~/.codex`."""

_BUILT_IN_PROVIDERS = frozenset({"openai", "oss", "ollama", "ollama-chat", "lmstudio"})


_SANDBOX = {
    "read": ("-s", "read-only"),
    "workspace": ("-s", "workspace-write"),
    "full": ("--dangerously-bypass-approvals-and-sandbox",),
}


def start(work: Work, options: Options) -> CommandLine:
    # Without `-C`: it is started in the directory itself, whose name may lead elsewhere by then.
    argv = ["codex", "exec", "--json", "--skip-git-repo-check"]
    session: dict[str, Any] = {}
    if not (work.permissions == "workspace" and work.writable):  # which a profile of its own has
        argv += _SANDBOX[work.permissions]
        session["sandbox"] = _MODE[work.permissions]
    else:
        session["config"] = {"default_permissions": _PROFILE}
    settings = ["check_for_update_on_startup=false", "analytics.enabled=false"]
    own = _own_config(work)
    if work.permissions == "workspace":  # as for every agent: its own TMPDIR, not that of all
        settings.append("sandbox_workspace_write.exclude_slash_tmp=true")
        settings += _roots(work, own) if work.writable else []
    if work.planted:
        settings.append(f"projects={{{_untrusted(work.cwd)}}}")
    name = _own_provider(own)
    if name is not None and work.mode == "interactive":
        # Its silent retries would take most of the patience; those that it reports stay on.
        settings.append(f"model_providers.{name}.request_max_retries=0")
    if work.effort and re.fullmatch(r"[a-z]{1,20}", work.effort):
        settings.append(f'model_reasoning_effort="{work.effort}"')
    set_by_us = tuple(word for setting in settings for word in ("-c", setting))
    argv += set_by_us
    model = model_of(work, options)
    if model:
        argv += ["-m", model]
        session["model"] = model
    if work.resume is not None:
        argv += ["resume", work.resume]  # which takes the options of `exec` only in front of it
    residency = Residency(
        way="codex",
        argv=("codex", "app-server", *set_by_us),
        conversation=work.resume,
        session=session,
        reads=(*_READS, *(f"{work.cwd}/{place}" for place in _PROJECT.places)),
        stored=f"{_SESSIONS}/*/*/*/*{{conversation}}.jsonl",
        # What one caller has set is nothing that another one may find there.
        may_stay=options.resident and not options.command and not work.env,
    )
    call = command_line(work, options, (*argv, "-"), own_tmp=True)
    return structs.replace(call, residency=residency)


def _untrusted(cwd: str) -> str:
    """Trust is given to a directory or to one above it; configuration of neither is read then."""
    names = cwd.strip("/").split("/")
    places = ("/" + "/".join(names[:end]) for end in range(1, len(names) + 1))
    return ",".join(f'{encode_json(place)}={{trust_level="untrusted"}}' for place in places)


_MODE = {"read": "read-only", "workspace": "workspace-write", "full": "danger-full-access"}

_PROFILE = "fallbackd"


def _roots(work: Work, own: dict[str, Any]) -> list[str]:
    """
    The sandbox of its commands, with more places: as a profile of permissions, which goes before
    the mode and can close a place inside of an open one. Versions that know no profiles have the
    mode. What the user has set for the mode holds in the profile too.
    """
    mode = fields(own.get("sandbox_workspace_write"))
    theirs = mode.get("writable_roots")
    writable = [*work.writable, *(theirs if isinstance(theirs, list) else [])]
    writable = [each for each in writable if isinstance(each, str)]
    inside: dict[str, str] = {".": "write"}
    places = {":root": "read", ":tmpdir": "write", **dict.fromkeys(writable, "write")}
    for place in work.repositories:
        is_inside = place == f"{work.cwd}/.git"
        here, name = (inside, ".git") if is_inside else (places, place)
        here |= {name: "write", f"{name}/hooks": "read", f"{name}/config": "read"}
    filesystem = ",".join(
        f"{encode_json(name)}={encode_json(word)}" for name, word in places.items()
    )
    below = ",".join(f"{encode_json(name)}={encode_json(word)}" for name, word in inside.items())
    network = "true" if mode.get("network_access") is True else "false"
    return [
        'sandbox_mode="workspace-write"',
        f"sandbox_workspace_write.writable_roots={encode_json(writable)}",
        f'default_permissions="{_PROFILE}"',
        f'permissions.{_PROFILE}.filesystem={{{filesystem},":project_roots"={{{below}}}}}',
        f"permissions.{_PROFILE}.network={{enabled={network}}}",
    ]


def _own_config(work: Work) -> dict[str, Any]:
    """The user's own configuration; empty where it cannot be read."""
    try:
        return tomllib.loads(work.files.get(CONFIG, ""))
    except (tomllib.TOMLDecodeError, RecursionError):
        return {}


def _own_provider(config: dict[str, Any]) -> str | None:
    """
    The provider of the user's own configuration whose retries can be switched off.

    Only one that is defined there: a setting for an unknown provider would define half of one,
    and built-in ones take none.
    """
    profile = fields(fields(config.get("profiles")).get(words(config.get("profile"))))
    name = words(profile.get("model_provider")) or words(config.get("model_provider"))
    if name in _BUILT_IN_PROVIDERS or not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        return None
    return name if fields(fields(config.get("model_providers")).get(name)) else None


_HARMLESS_TOOLS = frozenset({"web_search"})
_TOOLS = _HARMLESS_TOOLS | {
    "command_execution",
    "file_change",
    "mcp_tool_call",
    "collab_tool_call",
}
BACKOFF_S = 0.2
"""
Pause before its first retry of a stream; doubled each time, and up to a tenth more (measured).
"""
_RETRY = re.compile(
    r"Reconnecting\.\.\. ?(?:(?P<number>\d{1,3})/\d+|waiting for network)? ?(?:\((?P<why>.*)\))?",
    re.S,
)


def _backoff_s(number: str | None, why: str | None) -> float | None:
    """Its wait before this retry; None: a throttle's `Retry-After` is obeyed unseen."""
    if number is None or why is None or status_in(why) == 429:
        return None
    return 1.1 * BACKOFF_S * 2.0 ** (min(int(number), 10) - 1)


class CodexParser(CliParser):
    def __init__(self, options: Options) -> None:
        super().__init__(plain=is_plain(options))
        self._text = ""
        self._is_complete = False
        self._running: set[str] = set()
        self._refused: list[str] = []
        self._thread = ""
        """Thread of the turn; that of a subagent is another one."""
        self._windows: Figures = ()

    def read_event(self, event: dict[str, Any], at: float) -> list[Observation]:
        if "type" not in event and ("method" in event or "id" in event):
            return self._read_message(event, at)
        match event.get("type"):
            case residents.TURN:
                return self._in_thread(words(event.get("conversation")))
            case "thread.started" if thread := words(event.get("thread_id")):
                return [Conversation(id=thread)]
            case "turn.started":
                return [Phase("thinking")]
            case "item.started" | "item.updated" | "item.completed" as kind:
                return self._read_item(fields(event.get("item")), ended=kind == "item.completed")
            case "turn.completed":
                self._is_complete, self.error = True, None
                used = fields(event.get("usage"))
                self.usage = Usage(
                    input_tokens=count(used.get("input_tokens")),
                    output_tokens=count(used.get("output_tokens")),
                )
                return [self.answers(), self.usage]
            case "error":
                return self._read_error(event)
            case "turn.failed":
                self.error = evidence_of(fields(event.get("error")))
                return [GivenUp(evidence=self.error)]
            case _:
                return [Output()]

    def _in_thread(self, thread: str) -> list[Observation]:
        self._thread = thread
        return [Conversation(id=thread)] if thread else []

    def _read_message(self, message: dict[str, Any], at: float) -> list[Observation]:
        """A message of the app server."""
        method, said = message.get("method"), fields(message.get("params"))
        if method is None:
            if error := fields(message.get("error")):
                return self.read_event({"type": "turn.failed", "error": error}, at)
            thread = fields(fields(message.get("result")).get("thread"))
            return self._in_thread(words(thread.get("id"))) if thread else [Output()]
        if words(said.get("threadId")) not in ("", self._thread):
            return [Output()]
        match method:
            case "turn/started":
                return [Phase("thinking")]
            case "item/started" | "item/completed":
                return self._read_served_item(fields(said.get("item")), method, at)
            case "item/agentMessage/delta":
                told = self.writes(words(said.get("delta")))
                is_again = any(isinstance(one, AgentText) and one.again for one in told)
                return told if is_again else [self.answers(), *told]
            case "error":
                error = fields(said.get("error"))
                if said.get("willRetry") is True and (why := words(error.get("additionalDetails"))):
                    error = {**error, "message": f"{words(error.get('message'))} ({why})"}
                return self.read_event({"type": "error", **error}, at)
            case "thread/tokenUsage/updated":
                used = fields(fields(said.get("tokenUsage")).get("total"))
                self.usage = Usage(
                    input_tokens=count(used.get("inputTokens")),
                    output_tokens=count(used.get("outputTokens")),
                )
            case "account/rateLimits/updated":
                limits = fields(said.get("rateLimits"))
                if words(limits.get("limitId")) in ("", "codex") and (new := _windows(limits)):
                    self._windows = tuple(
                        structs.replace(one, source="event", at=at) for one in new
                    )
                    return [FiguresSeen(figures=self._windows)]
            case "turn/completed":
                return self._read_end(fields(said.get("turn")))
        return [Output()]

    def _read_served_item(self, item: dict[str, Any], method: str, at: float) -> list[Observation]:
        kind = _spelled(words(item.get("type")))
        if kind in _NOT_OF_THE_MODEL:
            return [Output()]
        if kind == "agent_message" and method == "item/started":
            self.begins()
        item = {_spelled(name): value for name, value in item.items()}
        item["type"] = "collab_tool_call" if kind == "collab_agent_tool_call" else kind
        return self.read_event({"type": method.replace("/", "."), "item": item}, at)

    def _read_end(self, turn: dict[str, Any]) -> list[Observation]:
        if turn.get("status") == "completed":
            self._is_complete, self.error = True, None
            return [self.answers(), self.usage]
        if error := fields(turn.get("error")):
            self.error = _with_reset(evidence_of(error), self._windows)
            return [GivenUp(evidence=self.error)]
        return [Output()]

    def _read_error(self, error: dict[str, Any]) -> list[Observation]:
        message = words(error.get("message"))
        retry = _RETRY.match(message)
        if retry is None:
            # `turn.failed` repeats it; a crash in between leaves it as the only statement.
            self.error = evidence_of(error)
            return [Output()]
        why = retry["why"]
        evidence = evidence_of({**error, "message": why or message})
        return [self.retries(evidence, _backoff_s(retry["number"], why))]

    def _read_item(self, item: dict[str, Any], *, ended: bool) -> list[Observation]:
        kind, key = words(item.get("type")), words(item.get("id"))
        if kind in ("error", ""):
            return [Output()]
        seen: list[Observation] = [self.answers()]
        if kind == "agent_message":
            self._text = words(item.get("text")) or self._text
            seen += self.says(self._text) if ended else [Phase("writing")]
        elif kind == "reasoning":
            seen.append(Phase("thinking"))
        elif kind in _TOOLS:
            if key not in self._running:
                self._running.add(key)
                seen.append(_tool(kind, key, item))
            if ended:
                seen.append(ToolEnded(call=key, failed=_has_failed(item)))
            if ended and item.get("status") == "declined":
                self._refused.append(call_words(kind, item.get("command") or item.get("tool")))
        return seen

    def reply(self, exit: ProcessExit) -> Reply | None:
        if not self._is_complete or not self._text.strip():
            return None
        reply = self.whole(self._text, exit)
        return None if reply is None else with_refused(reply, self._refused, _WAY_OUT)


_NOT_OF_THE_MODEL = frozenset({"user_message", "hook_prompt"})
_CAPITAL = re.compile(r"[A-Z]")


def _spelled(name: str) -> str:
    """`aggregatedOutput` as `codex exec` has it."""
    return _CAPITAL.sub(lambda found: f"_{found[0].lower()}", name)


_WAY_OUT = "change its rules in ~/.codex, or use permission `full`"


def _tool(kind: str, key: str, item: dict[str, Any]) -> ToolStarted:
    name, arguments = kind, item.get("command")
    if kind == "mcp_tool_call":
        name = f"{words(item.get('server'))}.{words(item.get('tool'))}"
        arguments = item.get("arguments")
    elif kind == "file_change":
        arguments = item.get("changes")
    elif kind == "web_search":
        arguments = item.get("query")
    return started(name, arguments, call=key, harmless=_HARMLESS_TOOLS)


def _has_failed(item: dict[str, Any]) -> bool:
    return item.get("status") in ("failed", "declined") or item.get("exit_code") not in (0, None)


_SESSIONS = "${CODEX_HOME:-~/.codex}/sessions"
_READS = (
    *(f"${{CODEX_HOME:-~/.codex}}/{name}" for name in ("config.toml", "auth.json", ".env")),
    *(f"${{CODEX_HOME:-~/.codex}}/{name}" for name in ("AGENTS.md", "hooks.json", "rules")),
    "/etc/codex/config.toml",
)
"""What it has read at its start, beside what is in the project."""
_LOGIN_WORDS = ("model_provider", "auth", "env_key", "base_url", "oss", "profile")

_FOOTPRINT = Footprint(
    keys=("${CODEX_HOME:-~/.codex}/auth.json", "${CODEX_HOME:-~/.codex}/.env"),
    # bubblewrap: it mounts, which no sandbox of the kernel's own allows.
    confines_itself=True,
)

_PROJECT = ProjectFiles(
    places=(
        *(f".codex/{name}" for name in ("config.toml", "hooks.json", "hooks", "agents", "rules")),
        ".agents/plugins",
    ),
    can_be_left_out=True,
)

KIND = BackendKind(
    name="codex",
    start=start,
    parser=CodexParser,
    rules=RULES,
    program=lambda options: program("codex", options),
    setup=Setup(
        install="npm install -g @openai/codex",
        login="codex login",
        files=(".codex/auth.json",),
        variables=("OPENAI_API_KEY", "CODEX_API_KEY"),
        settings=(".codex/config.toml",),
        home=_HOME,
        home_replaces=".codex",
        who=(".codex/auth.json:tokens.id_token.email",),
    ),
    variables=("OPENAI_*", "CODEX_*", "AZURE_OPENAI_*", "AWS_*"),
    named={CONFIG: r'"(\w+)"'},  # `env_key` of a provider, `bearer_token_env_var` of a server
    keeps_to_reading=True,
    project=_PROJECT,
    login=Login(
        package="@openai/codex",
        files=("${CODEX_HOME:-~/.codex}/auth.json", "${CODEX_HOME:-~/.codex}/.env"),
        settings={
            "${CODEX_HOME:-~/.codex}/config.toml": _LOGIN_WORDS,
            "/etc/codex/config.toml": _LOGIN_WORDS,
        },
        variables=("OPENAI_", "CODEX_"),
        home=_HOME,
        command="codex login",
    ),
    reads=(CONFIG,),
    resumes=resumes,
    greets=True,
    resumes_anywhere=True,
    counts_conversation=True,
    structured=True,
    footprint=lambda _: _FOOTPRINT,
    plan=PlanInquiry(
        inquiry=Inquiry(
            argv=("app-server",),
            lines=_ASK_PLAN,
            is_answer=lambda said: said.get("id") == 2,
        ),
        read=_read_plan,
    ),
    sessions=SessionFiles(place=_SESSIONS, read=read),
)
