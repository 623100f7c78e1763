"""
Anthropic's `claude -p --output-format stream-json --verbose`.

| line on stdout | means |
| --- | --- |
| `system` `api_retry` | it tries again: status, word and wait are fields |
| `rate_limit_event` with `rejected` | a window of the plan is spent, with its end |
| `assistant` | the provider answered, unless its model is `<synthetic>` |
| `result` | the end; `is_error` decides, `subtype` says "success" of failures too |

Source: recorded runs of claude 2.1.197. In text mode it prints its errors on stdout.
"""

from typing import Any, Literal

from fallbackd.backends.commands import command_line, is_plain, model_of, program
from fallbackd.backends.lines import (
    CliParser,
    count,
    fields,
    status_in,
    tool_key,
    words,
)
from fallbackd.backends.spec import BackendKind, Options
from fallbackd.core.classify import Rule
from fallbackd.core.exchange import (
    Call,
    Evidence,
    GivenUp,
    Observation,
    Output,
    Phase,
    ProcessExit,
    Reply,
    ToolEnded,
    ToolStarted,
    Usage,
    Work,
)
from fallbackd.core.failures import Reason

_PERMISSION_MODE = {"read": "plan", "workspace": "acceptEdits", "full": "bypassPermissions"}


def start(work: Work, options: Options) -> Call:
    argv = ["claude", "-p", "--output-format", "stream-json", "--verbose"]
    argv += ["--permission-mode", _PERMISSION_MODE[work.permissions]]
    model = model_of(work, options)
    if model:
        argv += ["--model", model]
    env = {"DISABLE_AUTOUPDATER": "1"}
    if work.effort and work.effort.isalnum():
        env["CLAUDE_CODE_EFFORT_LEVEL"] = work.effort
    # A daemon that was started from inside a session of claude would pass on its mark.
    return command_line(
        work, options, tuple(argv), env=env, unset=("CLAUDECODE", "CLAUDE_CODE_ENTRYPOINT")
    )


_TOOLS: dict[str, Literal["none", "possible", "seen"]] = {
    "Read": "none",
    "Glob": "none",
    "Grep": "none",
    "LS": "none",
    "WebFetch": "none",
    "WebSearch": "none",
    "TodoWrite": "none",
    "TodoRead": "none",
    "TaskList": "none",
    "TaskGet": "none",
    "TaskCreate": "none",
    "TaskUpdate": "none",
    "ToolSearch": "none",
    "EnterPlanMode": "none",
    "ExitPlanMode": "none",
    "Edit": "seen",
    "MultiEdit": "seen",
    "Write": "seen",
    "NotebookEdit": "seen",
}


NO_RESPONSE = "no_response"
"""Ours: it tries again without any status, as after a refused or broken connection."""


class Parser(CliParser):
    stream_of_errors = "stdout"

    def __init__(self, options: Options) -> None:
        super().__init__(plain=is_plain(options))
        self._text: str | None = None
        self._word: str | None = None
        self._window: dict[str, Any] | None = None

    def read_event(self, event: dict[str, Any], at: float) -> list[Observation]:
        match event.get("type"):
            case "system" if event.get("subtype") == "api_retry":
                return [self._read_retry(event)]
            case "rate_limit_event":
                info = fields(event.get("rate_limit_info"))
                # Later words replace earlier ones: a window may open again within a run.
                self._window = info if info.get("status") == "rejected" else None
                return [Output()]
            case "assistant":
                return self._read_assistant(event)
            case "user":
                ended: list[Observation] = [
                    ToolEnded(call=words(part.get("tool_use_id")))
                    for part in _content(event)
                    if part.get("type") == "tool_result"
                ]
                return ended or [Output()]
            case "stream_event":
                return [self.answers()]
            case "result":
                return self._read_result(event)
            case _:
                return [Output()]

    def _read_retry(self, event: dict[str, Any]) -> Observation:
        status, delay = event.get("error_status"), event.get("retry_delay_ms")
        word = words(event.get("error")) or "unknown"
        if word == "unknown" and status is None:
            word = NO_RESPONSE
        evidence = Evidence(
            text=words(event.get("error_message")),
            stream="jsonl",
            code="rejected" if self._window else word,
            http_status=status if isinstance(status, int) else None,
            body=self._window,
        )
        return self.retries(evidence, delay / 1000 if isinstance(delay, int | float) else None)

    def _read_assistant(self, event: dict[str, Any]) -> list[Observation]:
        word = words(event.get("error"))
        if word or fields(event.get("message")).get("model") == "<synthetic>":
            self._word = word or self._word
            return [Output()]
        self._word = None
        seen: list[Observation] = [self.answers()]
        for part in _content(event):
            match part.get("type"):
                case "text":
                    seen.append(Phase("answering"))
                case "thinking":
                    seen.append(Phase("thinking"))
                case "tool_use" | "server_tool_use":
                    name = words(part.get("name"))
                    seen.append(
                        ToolStarted(
                            key=tool_key(name, part.get("input")),
                            name=name,
                            effects=_TOOLS.get(name, "possible"),
                            call=words(part.get("id")),
                        )
                    )
        return seen

    def _read_result(self, event: dict[str, Any]) -> list[Observation]:
        self.usage = _usage(event)
        text = words(event.get("result"))
        if not event.get("is_error"):
            self._text, self.error = text, None
            return [self.usage]
        subtype = words(event.get("subtype"))
        errors = event.get("errors")
        if not text and isinstance(errors, list):
            text = "\n".join(e for e in errors if isinstance(e, str))
        word = self._word if subtype in ("", "success") else subtype
        status = event.get("api_error_status")
        self.error = Evidence(
            text=text,
            stream="jsonl",
            code="rejected" if self._window else word,
            http_status=status if isinstance(status, int) else status_in(text),
            body=self._window,
        )
        return [self.usage, GivenUp(evidence=self.error)]

    def reply(self, exit: ProcessExit) -> Reply | None:
        if self._text is None or not self._text.strip() or exit.code not in (0, None):
            return None
        return Reply(text=self._text, usage=self.usage)


def _usage(event: dict[str, Any]) -> Usage:
    used, cost = fields(event.get("usage")), event.get("total_cost_usd")
    taken = sum(
        count(used.get(f"{word}input_tokens")) for word in ("", "cache_read_", "cache_creation_")
    )
    given = count(used.get("output_tokens"))
    if not taken and not given:
        # After its own change to a request without streaming it counts only by model.
        by_model = [fields(one) for one in fields(event.get("modelUsage")).values()]
        words_in = ("inputTokens", "cacheReadInputTokens", "cacheCreationInputTokens")
        taken = sum(count(one.get(word)) for one in by_model for word in words_in)
        given = sum(count(one.get("outputTokens")) for one in by_model)
    return Usage(
        input_tokens=taken,
        output_tokens=given,
        cost_usd=float(cost) if isinstance(cost, int | float) else None,
    )


def _content(event: dict[str, Any]) -> list[dict[str, Any]]:
    content = fields(event.get("message")).get("content")
    return [p for p in content if isinstance(p, dict)] if isinstance(content, list) else []


_PRINTS = ("stdout", "stderr", "unknown")

RULES = (
    Rule(
        id="claude-error",
        reason=Reason.UNKNOWN,
        opens=True,
        pattern=r"(?:Failed to authenticate\. )?API Error\b[:\s]*",
        streams=_PRINTS,
    ),
    Rule(
        id="claude-spend-limit",
        reason=Reason.BILLING,
        pattern=r"You've (?:hit|reached) your (?:org's |organization's )?(?:\w+ )?(?:spend"
        r"|spending|budget) limit"
        r"|Credit balance (?:is )?too low",
        streams=_PRINTS,
        codes=("billing_error",),
    ),
    Rule(
        id="claude-plan-limit",
        reason=Reason.USAGE_LIMIT,
        pattern=r"You've (?:hit|reached) your (?:\w+[- ]){0,3}?limit\b|(?:Weekly|Session|5-hour"
        r"|Opus|Sonnet|Usage) limit reached"
        r"|Claude (?:AI )?usage limit reached",
        streams=_PRINTS,
    ),
    Rule(
        id="claude-login",
        reason=Reason.AUTH,
        pattern=r"Not logged in\b|Invalid API key\b|Please run /login"
        r"|OAuth token (?:has )?(?:expired|revoked)",
        streams=_PRINTS,
        codes=("authentication_failed", "oauth_org_not_allowed"),
    ),
    Rule(
        id="claude-context",
        reason=Reason.CONTEXT_OVERFLOW,
        pattern=r"Prompt is too long",
        streams=_PRINTS,
    ),
    Rule(
        id="claude-too-large",
        reason=Reason.PAYLOAD_TOO_LARGE,
        pattern=r"Request too large \(max",
        streams=_PRINTS,
    ),
    Rule(
        id="claude-model",
        reason=Reason.MODEL_NOT_FOUND,
        pattern=r"There's an issue with the selected model",
        streams=_PRINTS,
        codes=("model_not_found",),
    ),
    Rule(
        id="claude-overloaded",
        reason=Reason.OVERLOADED,
        pattern=r"Repeated 529 Overloaded",
        streams=_PRINTS,
        codes=("overloaded",),
    ),
    Rule(
        id="claude-malformed",
        reason=Reason.SERVER_ERROR,
        pattern=r"API returned an empty or malformed|Failed to parse JSON",
        streams=_PRINTS,
    ),
    Rule(
        id="claude-connect",
        reason=Reason.NETWORK,
        pattern=r"Unable to connect to API(?!.*certificate)",
        streams=_PRINTS,
        codes=(NO_RESPONSE,),
    ),
    Rule(
        id="claude-turn-limit",
        reason=Reason.TASK_FAILED,
        detail="turn_limit",
        codes=("error_max_turns", "error_max_budget_usd"),
    ),
    Rule(
        id="claude-root",
        reason=Reason.NOT_CONFIGURED,
        pattern=r".{0,80}cannot be used with root/sudo privileges",
        streams=_PRINTS,
    ),
    Rule(
        id="claude-not-built",
        reason=Reason.NOT_INSTALLED,
        pattern=r"claude native binary not installed",
        streams=_PRINTS,
    ),
)

KIND = BackendKind(
    name="claude",
    start=start,
    parser=Parser,
    rules=RULES,
    program=lambda options: program("claude", options),
    structured=True,
)
