"""
Anthropic's `claude -p --output-format stream-json --verbose`.

| line on stdout | means |
| --- | --- |
| `system` `init` | the id by which the conversation is resumed |
| `system` `api_retry` | it tries again: status, word and wait are fields |
| `rate_limit_event` with `rejected` | a window of the plan is spent, where the event names one |
| `system` `model_refusal_no_fallback` | the model refused, and no other one is asked |
| `stream_event` with a `content_block_delta` | a piece of an answer |
| `assistant` | the provider answered, unless its model is `<synthetic>` |
| `result` | the end; `is_error` decides, `subtype` says "success" of failures too |
| `result` `permission_denials` | tools that its own rules refused |

The typed words of a failure go before its sentence, whose wording changes with each release:
`stop_reason`, then `api_error` (since 2.1.3xx), the window, `error`, and the provider's own word in
`api_error_type`. A word or an event that is not known here counts as absent.

Source: recorded runs of claude 2.1.197 and 2.1.330; meanings of `api_error` by the schema in the
program itself. In text mode it prints its errors on stdout.

Meanings of the words of `api_error` are those of the schema in the program itself (2.1.330).
"""

import re
from typing import Any

from msgspec import structs

from fallbackd.backends import residents
from fallbackd.backends.commands import (
    as_plain_text,
    command_line,
    encode_json,
    encode_prompt,
    is_command,
    is_plain,
    model_of,
    names_files,
    program,
    resumes,
)
from fallbackd.backends.figures import in_claude_event, in_claude_usage
from fallbackd.backends.lines import (
    CliParser,
    count,
    fields,
    status_in,
    words,
)
from fallbackd.backends.outside import LEAVES, call_words, started, with_refused
from fallbackd.backends.spec import (
    BackendKind,
    Footprint,
    Login,
    Options,
    PlanInquiry,
    ProjectFiles,
    Setup,
)
from fallbackd.classify.rules import Rule
from fallbackd.classify.rules import words as listed
from fallbackd.core.failures import NO_CONVERSATION
from fallbackd.core.protocol import (
    AgentText,
    Call,
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
    Usage,
    Work,
)
from fallbackd.core.reasons import Reason

NO_STATUS = "no_status"
"""Ours: it tries again without any status, as after a refused or broken connection."""

NO_ANSWER = "no_response"
"""Its own word, and ours where such a try has lasted for minutes."""

_PRINTS = ("stdout", "stderr", "unknown")
REFUSED = "refusal"
"""The provider's `stop_reason`."""

VAGUE_WORDS = ("", "unknown", "invalid_request", "server_error", "rate_limit")
"""Values of `error` that say less than the provider's own word."""

_TYPED = (
    Rule("claude-refusal", Reason.CONTENT_POLICY, codes=(REFUSED,)),
    Rule("claude-window", Reason.USAGE_LIMIT, codes=("rejected", "usage_limit_reached")),
    Rule(
        "claude-typed-context",
        Reason.CONTEXT_OVERFLOW,
        codes=("prompt_too_long", "message_over_context_limit", "autocompact_thrashing"),
    ),
    Rule(
        "claude-typed-login",
        Reason.AUTH,
        codes=listed(
            """
            stored_login_refused oauth_refresh_store_refused provider_credentials
            gateway_signin_required gateway_session_expired api_key_auth_disabled
            org_disabled_credential invalid_credential_header named_profile_unusable
            """
        ),
    ),
    Rule(
        "claude-typed-money",
        Reason.BILLING,
        codes=("model_requires_usage_credits", "long_context_credits_required"),
    ),
    Rule(
        "claude-typed-policy",
        Reason.PROVIDER_POLICY,
        codes=("dlp_request_denied", "field_not_granted", "hook_denied"),
    ),
    Rule("claude-typed-safety", Reason.CONTENT_POLICY, codes=("safety_monitor_blocked",)),
    Rule(
        "claude-typed-version",
        Reason.NOT_CONFIGURED,
        detail="version",
        codes=("claude_code_version_too_old",),
    ),
    Rule(
        "claude-typed-network",
        Reason.NETWORK,
        codes=("connection_failed", "computer_slept", "network_edge_blocked"),
    ),
    Rule("claude-typed-silence", Reason.TIMEOUT, codes=(NO_ANSWER, "stream_idle_timeout")),
    Rule(
        "claude-typed-certificate",
        Reason.TLS,
        codes=("tls_untrusted_ca", "tls_cert_signature_failure"),
    ),
    Rule(
        "claude-typed-request",
        Reason.FORMAT_ERROR,
        codes=listed(
            """
            effort_requires_thinking advisor_incompatible tool_history_mismatch
            pdf_password_protected
            """
        ),
    ),
    Rule(
        "claude-typed-length",
        Reason.FORMAT_ERROR,
        detail="output_limit",
        codes=("max_output_tokens",),
    ),
    Rule(
        "claude-typed-size", Reason.PAYLOAD_TOO_LARGE, codes=("pdf_too_large", "request_too_large")
    ),
    Rule(
        "claude-typed-malformed",
        Reason.SERVER_ERROR,
        codes=("gateway_content_type", "malformed_tool_use_exhausted"),
    ),
    Rule("claude-typed-silent", Reason.EMPTY_RESULT, codes=("empty_completion",)),
)
TYPED_WORDS = frozenset(word for rule in _TYPED for word in rule.codes)

RULES = (
    *_TYPED,
    Rule(
        "claude-error",
        Reason.UNKNOWN,
        r"(?:Failed to authenticate\. )?API Error\b[:\s]*",
        opens=True,
        streams=_PRINTS,
    ),
    Rule(
        "claude-spend-limit",
        Reason.BILLING,
        r"You've (?:hit|reached) your (?:org's |organization's )?(?:\w+ )?(?:spend|spending"
        r"|budget) limit|Credit balance (?:is )?too low",
        streams=_PRINTS,
        codes=("billing_error",),
    ),
    # Said of a throttle to people with a plan, and it names the limit that it is not.
    Rule(
        "claude-passing",
        Reason.RATE_LIMIT,
        "Server is temporarily limiting requests",
        streams=_PRINTS,
        anywhere=True,
    ),
    Rule(
        "claude-plan-limit",
        Reason.USAGE_LIMIT,
        r"You've (?:hit|reached) your (?:\w+[- ]){0,3}?limit\b"
        r"|(?:Weekly|Session|5-hour|Opus|Sonnet|Usage) limit reached"
        r"|Claude (?:AI )?usage limit reached",
        streams=_PRINTS,
    ),
    Rule(
        "claude-login",
        Reason.AUTH,
        r"Not logged in\b|Invalid API key\b|Please run /login"
        r"|OAuth token (?:has )?(?:expired|revoked)",
        streams=_PRINTS,
        codes=("authentication_failed", "oauth_org_not_allowed"),
    ),
    Rule("claude-context", Reason.CONTEXT_OVERFLOW, "Prompt is too long", streams=_PRINTS),
    Rule("claude-too-large", Reason.PAYLOAD_TOO_LARGE, r"Request too large \(max", streams=_PRINTS),
    Rule(
        "claude-model",
        Reason.MODEL_NOT_FOUND,
        "There's an issue with the selected model",
        streams=_PRINTS,
        codes=("model_not_found",),
    ),
    Rule(
        "claude-overloaded",
        Reason.OVERLOADED,
        "Repeated 529 Overloaded",
        streams=_PRINTS,
        codes=("overloaded",),
    ),
    Rule(
        "claude-malformed",
        Reason.SERVER_ERROR,
        "API returned an empty or malformed|Failed to parse JSON|JSON Parse error",
        streams=_PRINTS,
    ),
    Rule(
        "claude-resume",
        Reason.SESSION,
        "No conversation found with session ID",
        detail=NO_CONVERSATION,
        streams=_PRINTS,
    ),
    Rule(
        "claude-connect",
        Reason.NETWORK,
        "Unable to connect to API(?!.*certificate)",
        streams=_PRINTS,
        codes=(NO_STATUS,),
    ),
    Rule(
        "claude-turn-limit",
        Reason.TASK_FAILED,
        detail="turn_limit",
        codes=("error_max_turns", "error_max_budget_usd"),
    ),
    Rule(
        "claude-root",
        Reason.NOT_CONFIGURED,
        "(?:^.{0,80})?cannot be used with root/sudo privileges",
        streams=_PRINTS,
    ),
    Rule(
        "claude-not-built",
        Reason.NOT_INSTALLED,
        "claude native binary not installed",
        streams=_PRINTS,
    ),
)


_CONFINED_SHELL = {"allow": ["Bash"], "deny": [f"Bash({one}:*)" for one in LEAVES]}
"""Rules beside the user's own, of which those that deny go before these."""
_PERMISSION_MODE = {"read": "plan", "workspace": "acceptEdits", "full": "bypassPermissions"}


def start(work: Work, options: Options) -> Call:
    argv = ["claude", "-p", "--output-format", "stream-json", "--verbose"]
    argv += ["--include-partial-messages", "--input-format", "stream-json"]
    argv += ["--permission-mode", _PERMISSION_MODE[work.permissions]]
    if work.permissions == "workspace" and work.runs_commands:
        argv += ["--settings", encode_json({"permissions": _CONFINED_SHELL})]
    if work.planted:
        argv += ["--setting-sources", "user"]
    model = model_of(work, options)
    if model:
        argv += ["--model", model]
    if work.resume is not None:
        argv += ["--resume", work.resume]  # kept by working directory, which is the same
    env = {"DISABLE_AUTOUPDATER": "1", "CLAUDE_CODE_DISABLE_FILE_MENTIONS": "1"}
    if work.effort and work.effort.isalnum():
        env["CLAUDE_CODE_EFFORT_LEVEL"] = work.effort
    residency = Residency(
        way="claude",
        argv=tuple(argv if work.resume is None else argv[:-2]),
        continues=tuple(() if work.resume is None else argv[-2:]),
        conversation=work.resume,
        session={"mode": _PERMISSION_MODE[work.permissions]},
        reads=(*_READS, *(f"{work.cwd}/{place}" for place in _PROJECT.places)),
        watches=True,  # measured in 2.1.332: a hook for a change of the settings runs at once
        stored=f"{_OWN}/projects/*/{{conversation}}.jsonl",
        # What one caller has set is nothing that another one may find there.
        may_stay=options.resident and not options.command and not work.env,
    )
    # A daemon that was started from inside a session of claude would pass on its mark.
    call = command_line(
        work,
        options,
        tuple(argv),
        env=env,
        unset=("CLAUDECODE", "CLAUDE_CODE_ENTRYPOINT"),
        prompt=as_plain_text(work.prompt),
        own_stdin=_message(work.prompt),
    )
    return structs.replace(call, residency=residency)


END_OF_PROMPT = "The text above is the whole request."


def _message(prompt: str) -> bytes:
    """
    The prompt as one line of `--input-format stream-json`.

    Commands (`/clear`) and files to attach (`@/etc/passwd`) are looked for in the last block of
    text only, so a prompt that could hold one is not the last block. 2.1.330 has a variable
    against files, 2.1.197 has not.
    """
    blocks = [encode_prompt(prompt).decode()]
    if is_command(prompt) or names_files(prompt):
        blocks.append(END_OF_PROMPT)
    content = [{"type": "text", "text": block} for block in blocks]
    message = {"type": "user", "message": {"role": "user", "content": content}}
    return encode_prompt(encode_json(message) + "\n")


_HARMLESS_TOOLS = frozenset(
    {
        "Read",
        "Glob",
        "Grep",
        "LS",
        "WebFetch",
        "WebSearch",
        "TodoWrite",
        "TodoRead",
        "TaskList",
        "TaskGet",
        "TaskCreate",
        "TaskUpdate",
        "ToolSearch",
        "EnterPlanMode",
        "ExitPlanMode",
    }
)


class ClaudeParser(CliParser):
    stream_of_errors = "stdout"

    def __init__(self, options: Options) -> None:
        super().__init__(plain=is_plain(options))
        self._text: str | None = None
        self._last_said = ""
        """Text of the newest message of the model, if nothing but text came since."""
        self._spent_usd = 0.0
        """What its process had spent before this prompt."""
        self._word: str | None = None
        self._window: dict[str, Any] | None = None
        self._has_refused = False
        self._refused: list[str] = []
        """Calls of tools that its rules refused."""

    def _read_system(self, event: dict[str, Any]) -> Observation:
        match event.get("subtype"):
            case "api_retry":
                return self._read_retry(event)
            case "init" if words(event.get("session_id")):
                return Conversation(id=words(event.get("session_id")))
            case "model_refusal_no_fallback":
                self._has_refused = True
        return Output()

    def read_event(self, event: dict[str, Any], at: float) -> list[Observation]:
        match event.get("type"):
            case "system":
                return [self._read_system(event)]
            case "rate_limit_event":
                from fallbackd.classify.reset_fields import names_spent_window  # slow to load

                info = fields(event.get("rate_limit_info"))
                # Later words replace earlier ones: a window may open again within a run.
                self._window = info if names_spent_window(info) else None
                found = in_claude_event(info, at=at)
                return [FiguresSeen(figures=found)] if found else [Output()]
            case "assistant":
                return self._read_assistant(event)
            case "user":
                self._last_said, self._has_refused = "", False
                ended: list[Observation] = [
                    ToolEnded(
                        call=words(part.get("tool_use_id")), failed=part.get("is_error") is True
                    )
                    for part in _content(event)
                    if part.get("type") == "tool_result"
                ]
                return ended or [Output()]
            case "stream_event":
                return self._read_piece(event)
            case "result":
                return self._read_result(event)
            case residents.TURN:
                spent = event.get("cost_usd")
                self._spent_usd = float(spent) if isinstance(spent, int | float) else 0.0
                return []
            case _:
                return [Output()]

    def _read_piece(self, event: dict[str, Any]) -> list[Observation]:
        """A message may begin and fail before its first word: only a piece of it is an answer."""
        piece = fields(event.get("event"))
        is_own = event.get("parent_tool_use_id") is None  # else a subagent writes it
        if piece.get("type") == "message_start" and is_own:
            self.begins()
        if piece.get("type") != "content_block_delta":
            return [Output()]
        delta = fields(piece.get("delta"))
        if delta.get("type") == "thinking_delta":
            return [self.answers(), Phase("thinking")]
        text = words(delta.get("text"))
        said = self.writes(text) if text and is_own else []
        is_again = any(isinstance(one, AgentText) and one.again for one in said)
        return said if is_again else [self.answers(), *said]

    def _read_retry(self, event: dict[str, Any]) -> Observation:
        status, delay = event.get("error_status"), event.get("retry_delay_ms")
        if status is None and words(event.get("error")) in ("", "unknown"):
            event = {**event, "error": NO_ANSWER if self.was_silent() else NO_STATUS}
        evidence = self._evidence(event, words(event.get("error_message")), status)
        return self.retries(evidence, delay / 1000 if isinstance(delay, int | float) else None)

    def _read_assistant(self, event: dict[str, Any]) -> list[Observation]:
        word = words(event.get("error"))
        if word or fields(event.get("message")).get("model") == "<synthetic>":
            self._word = word or self._word
            return [Output()]
        self._word, self._has_refused = None, False
        seen: list[Observation] = [self.answers()]
        said: list[str] = []
        for part in _content(event):
            match part.get("type"):
                case "text":
                    said.append(words(part.get("text")))
                    of_subagent = event.get("parent_tool_use_id") is not None
                    seen += [] if of_subagent else self.says(said[-1])
                case "thinking":
                    seen.append(Phase("thinking"))
                case "tool_use" | "server_tool_use":
                    said.clear()
                    name = words(part.get("name"))
                    given, call = part.get("input"), words(part.get("id"))
                    seen.append(started(name, given, call=call, harmless=_HARMLESS_TOOLS))
        if event.get("parent_tool_use_id") is None:  # what a subagent says is not the answer
            self._last_said = "".join(said)
        return seen

    def _read_result(self, event: dict[str, Any]) -> list[Observation]:
        self.usage = _usage(event, spent_usd=self._spent_usd)
        denials = event.get("permission_denials")
        self._refused += [
            call_words(words(one.get("tool_name")), one.get("tool_input"))
            for one in (denials if isinstance(denials, list) else [])
            if isinstance(one, dict) and words(one.get("tool_name"))
        ]
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
        self.error = self._evidence({**event, "error": word}, text, status or status_in(text))
        return [self.usage, GivenUp(evidence=self.error)]

    def _evidence(self, event: dict[str, Any], text: str, status: object) -> Evidence:
        word, kind = words(event.get("error")), words(event.get("api_error"))
        if self._has_refused or event.get("stop_reason") == "refusal":
            code = REFUSED
        elif kind in TYPED_WORDS:
            code = kind
        elif event.get("terminal_reason") == "prompt_too_long":
            code = "prompt_too_long"
        elif self._window is not None:
            code = "rejected"
        elif word in VAGUE_WORDS:
            code = words(event.get("api_error_type")) or word
        else:
            code = word
        return Evidence(
            text=text,
            stream="jsonl",
            code=code or None,
            http_status=status if isinstance(status, int) else None,
            body=self._window,
        )

    def reply(self, exit: ProcessExit) -> Reply | None:
        text = self._text
        if text is None and exit.code == 0 and not exit.stopped and self.error is None:
            text = self._last_said if _CUT_SUCCESS.match(self.cut) else None
        if text is None or not text.strip():
            return None
        reply = self.whole(text, exit)
        return None if reply is None else with_refused(reply, self._refused, _WAY_OUT)


_WAY_OUT = (
    "add rules to permissions.allow in ~/.claude/settings.json, set `shell` to confined in the"
    " configuration, or use permission `full`"
)

_CUT_SUCCESS = re.compile(
    r'\{(?!"type":"(?!result"))(?:(?!"result":|"is_error":).)*"is_error":false'
)
"""The beginning of the event of a good end. claude 2.1.197 exits before a full pipe was read, so
the end of this event may be missing; the answer is then the whole event of the message before."""


def _usage(event: dict[str, Any], *, spent_usd: float) -> Usage:
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
        # It counts everything since its start.
        cost_usd=max(0.0, cost - spent_usd) if isinstance(cost, int | float) else None,
    )


def _content(event: dict[str, Any]) -> list[dict[str, Any]]:
    content = fields(event.get("message")).get("content")
    return [p for p in content if isinstance(p, dict)] if isinstance(content, list) else []


_LOGIN_WORDS = ("apiKeyHelper", "API_KEY", "AUTH", "TOKEN", "CLAUDE_CODE_USE", "BASE_URL")

_OWN = "${CLAUDE_CONFIG_DIR:-~/.claude}"
_READS = (
    *(f"{_OWN}/{name}" for name in ("settings.json", "CLAUDE.md", ".credentials.json")),
    *("/etc/claude-code/managed-settings.json", "/etc/claude-code/managed-mcp.json"),
)
"""What it has read at its start, beside what is in the project."""
_FOOTPRINT = Footprint(
    # What it keeps of conversations. Left out is what a person's own session runs or obeys: its
    # settings, hooks, plugins, commands and list of MCP servers (in `.claude.json`), and the files
    # that its shells read (`shell-snapshots`, `session-env`). It goes without writing them.
    writes=tuple(
        f"{_OWN}/{name}"
        for name in (
            *("projects/", "todos/", "tasks/", "plans/", "file-history/", "paste-cache/"),
            *("sessions/", "debug/", "statsig/", "telemetry/", "cache/"),
            # Rewritten in place where no file can be made beside it.
            *(".credentials.json", "history.jsonl", "stats-cache.json"),
        )
    ),
    folders=(f"{_OWN}/session-env/",),
    keys=("${CLAUDE_CONFIG_DIR:-~/.claude}/.credentials.json",),
)

_PROJECT = ProjectFiles(
    places=(
        ".mcp.json",
        *(
            f".claude/{name}"
            for name in (
                "settings.json",
                "settings.local.json",
                "agents",
                "commands",
                "hooks",
                "output-styles",
                "plugins",
                "skills",
            )
        ),
    ),
    can_be_left_out=True,
)
"""Commands and agents may bring hooks and commands of the shell along."""

KIND = BackendKind(
    name="claude",
    start=start,
    parser=ClaudeParser,
    rules=RULES,
    program=lambda options: program("claude", options),
    setup=Setup(
        install="npm install -g @anthropic-ai/claude-code",
        login="claude auth login",
        files=(".claude/.credentials.json",),
        variables=(
            "ANTHROPIC_API_KEY",
            "ANTHROPIC_AUTH_TOKEN",
            "CLAUDE_CODE_OAUTH_TOKEN",
            "CLAUDE_CODE_USE_BEDROCK",
            "CLAUDE_CODE_USE_VERTEX",
        ),
        settings=(".claude/settings.json",),
        home="CLAUDE_CONFIG_DIR",
        home_replaces=".claude",
        who=(".claude.json:oauthAccount.emailAddress",),
    ),
    # Those without a prefix are settings of its own; the clouds are where it asks for its models.
    variables=(
        *("ANTHROPIC_*", "CLAUDE_*", "AWS_*", "GOOGLE_*", "GCLOUD_PROJECT", "CLOUD_ML_REGION"),
        *("VERTEX_*", "DISABLE_*", "ENABLE_*", "OTEL_*", "MCP_*", "MAX_THINKING_TOKENS"),
        *("MAX_MCP_OUTPUT_TOKENS", "MAX_STRUCTURED_OUTPUT_RETRIES", "API_TIMEOUT_MS"),
        *("BASH_DEFAULT_TIMEOUT_MS", "BASH_MAX_*", "USE_BUILTIN_RIPGREP", "IS_DEMO", "IS_SANDBOX"),
        *("TASK_MAX_OUTPUT_LENGTH", "SLASH_COMMAND_TOOL_CHAR_BUDGET", "FORCE_AUTOUPDATE_PLUGINS"),
    ),
    named={
        "${CLAUDE_CONFIG_DIR:-~}/.claude.json": r"\$\{(\w+)",
        "${CLAUDE_CONFIG_DIR:-~/.claude}/settings.json": r"\$\{?(\w+)",
    },
    keeps_to_reading=True,
    project=_PROJECT,
    resumes=resumes,
    greets=True,
    forks=True,
    login=Login(
        package="@anthropic-ai/claude-code",
        files=("${CLAUDE_CONFIG_DIR:-~/.claude}/.credentials.json",),
        settings={
            "${CLAUDE_CONFIG_DIR:-~}/.claude.json": (
                "oauthAccount",
                "primaryApiKey",
                *_LOGIN_WORDS,
            ),
            "${CLAUDE_CONFIG_DIR:-~/.claude}/settings.json": _LOGIN_WORDS,
            "/etc/claude-code/managed-settings.json": _LOGIN_WORDS,
        },
        variables=("ANTHROPIC_", "CLAUDE_"),
        home="CLAUDE_CONFIG_DIR",
        command="claude auth login",
    ),
    structured=True,
    footprint=lambda _: _FOOTPRINT,
    plan=PlanInquiry(
        inquiry=Inquiry(
            argv=(
                *("-p", "--input-format", "stream-json", "--output-format", "stream-json"),
                *("--verbose", "--no-session-persistence", "--strict-mcp-config"),
                # Hooks of the person are for work.
                *("--setting-sources", "user", "--settings", '{"disableAllHooks":true}'),
            ),
            lines=b'{"type":"control_request","request_id":"plan","request":'
            b'{"subtype":"get_usage","skip_behaviors":true}}\n',
            is_answer=lambda said: said.get("type") == "control_response",
            env={"DISABLE_AUTOUPDATER": "1"},
        ),
        read=in_claude_usage,
    ),
)
