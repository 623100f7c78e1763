"""
Google's `gemini -o stream-json`.

| where | means |
| --- | --- |
| `init` | the id by which the conversation is resumed |
| `message` of role assistant, `tool_use` | the provider answered |
| stderr `Attempt 3 failed …` to `Retrying …` | it tries again, with the wait at the end |
| `result` `status: error` | the end, whatever the exit status is |
| exit status 144 to 255 | HTTP status less 256 |

Source: recorded runs of gemini 0.61.0. Ended by SIGTERM it exits 0, so only a `result` is
success. A stream that breaks is asked for again, and its partial text comes twice.
"""

import re
from typing import Any

import msgspec

from fallbackd.backends.commands import (
    as_plain_text,
    command_line,
    is_plain,
    model_of,
    program,
    resumes,
)
from fallbackd.backends.lines import CliParser, count, fields, read_object, words
from fallbackd.backends.outside import call_words, started, with_refused
from fallbackd.backends.spec import BackendKind, Footprint, Options, ProjectFiles, Setup
from fallbackd.classify.rules import Rule
from fallbackd.core.failures import NO_CONVERSATION
from fallbackd.core.protocol import (
    AgentText,
    Call,
    Conversation,
    Evidence,
    GivenUp,
    Observation,
    Output,
    OwnCopy,
    ProcessExit,
    Reply,
    StreamName,
    ToolEnded,
    Usage,
    Work,
)
from fallbackd.core.reasons import Reason

MIN_REPEAT_CHARS = 12
MIN_RETRY_GAP_S = 0.8
"""A broken stream is asked for again after about a second."""
_QUOTED = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`(?:[^`\\]|\\.)*`"
_CAUSE = re.compile(rf"^\s+message:\s+((?:{_QUOTED})(?:\s*\+\s*(?:{_QUOTED}))*)", re.M)


def causes(report: str) -> list[str]:
    """Messages of the causes of an error, as Node.js prints objects: quoted, over several lines."""
    return [
        "".join(
            re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], part[1:-1])
            for part in re.findall(_QUOTED, found[:4000])
        )
        for found in _CAUSE.findall(report)
    ]


def without_repeats(pieces: list[tuple[str, float]]) -> str:
    """
    Join the pieces of a text, without what came of streams that broke.

    A stream that broke shows as a pause after which the text begins again with the same pieces.
    """
    begin = 0
    for k in range(1, len(pieces)):
        lost = k - begin
        again = [t for t, _ in pieces[k : k + lost]]
        broken = [t for t, _ in pieces[begin:k]]
        is_long = sum(map(len, broken)) >= MIN_REPEAT_CHARS
        if is_long and again == broken and pieces[k][1] - pieces[k - 1][1] >= MIN_RETRY_GAP_S:
            begin = k
    return "".join(t for t, _ in pieces[begin:])


def seconds(event: dict[str, Any]) -> float | None:
    """Seconds of the day in an event's time, good enough for pauses."""
    found = re.search(r"T(\d\d):(\d\d):(\d\d(?:\.\d+)?)", words(event.get("timestamp")))
    return None if found is None else int(found[1]) * 3600 + int(found[2]) * 60 + float(found[3])


def evidence_of(message: str, kind: str = "") -> Evidence:
    inner = re.search(r"\{.*\}", message, re.S)
    body = read_object(inner[0]) if inner else None
    return Evidence(
        text=message,
        stream="jsonl",
        body=body,
        http_status=status_of(message),
        code=kind if kind and kind != "unknown" else None,
    )


def status_of(text: str) -> int | None:
    found = re.search(r"failed with status (\d{3})\b|\"code\":\s*(\d{3})\b", text)
    status = int(found[1] or found[2]) if found else 0
    return status if 400 <= status < 600 else None


LEAVES_POLICY = f"{__file__.rpartition('/')[0]}/gemini_leaves.toml"
"""Rules that only deny. With `--policy` they would replace those of the user."""
_APPROVAL = {"read": "default", "workspace": "auto_edit", "full": "yolo"}


def start(work: Work, options: Options) -> Call:
    argv = ["gemini", "-o", "stream-json", "--approval-mode", _APPROVAL[work.permissions]]
    if work.permissions == "workspace" and work.runs_commands:
        argv += ["--allowed-tools", "run_shell_command", "--admin-policy", LEAVES_POLICY]
    model = model_of(work, options)
    if model:
        argv += ["-m", model]
    if work.history is not None:
        argv += ["--session-file", work.history]
    elif work.resume is not None:
        argv += ["--resume", work.resume]  # a whole id: a number would be the place in a list
    env = {
        # Without it a relauncher ignores signals, and start-up takes half as long again.
        "GEMINI_CLI_NO_RELAUNCH": "true",
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
    }
    # A directory may bring commands of its own, in `.gemini/commands`.
    return command_line(work, options, tuple(argv), env=env, prompt=as_plain_text(work.prompt))


_HARMLESS_TOOLS = frozenset(
    {
        "read_file",
        "read_many_files",
        "list_directory",
        "glob",
        "search_file_content",
        "grep_search",
        "google_web_search",
        "web_fetch",
        "write_todos",
        "get_internal_docs",
        "activate_skill",
    }
)

MAX_RETRY_LINES = 20
MAX_REPORT_LINES = 60
_ATTEMPT = re.compile(r"Attempt \d+ failed")
_WAIT = re.compile(r"Retrying after (\d+(?:\.\d+)?)ms")
_TERMINAL = re.compile(r"Error when talking to Gemini API|\[ERROR\] |\w*QuotaError: |_ApiError: ")


class GeminiParser(CliParser):
    def __init__(self, options: Options) -> None:
        super().__init__(plain=is_plain(options))
        self._pieces: list[tuple[str, float]] = []
        self._retold: int | None = None
        """Pieces that the stream which runs now has repeated; None: it repeats none."""
        self._told: list[str] = []
        self._status = ""
        self._calls: dict[str, str] = {}
        """Tools that have been started, by id, as people read them."""
        self._refused: list[str] = []
        self._attempt: list[str] = []
        self._terminal: list[str] = []
        """The report of the terminal failure, with the cause that only stderr has."""

    def read_event(self, event: dict[str, Any], at: float) -> list[Observation]:
        match event.get("type"):
            case "init" if "-" in (session := words(event.get("session_id"))):
                return [Conversation(id=session)]  # not `latest`, nor a number in a list
            case "message" if event.get("role") == "assistant":
                return self._read_piece(words(event.get("content")), seconds(event) or at)
            case "tool_use":
                self._end_passage()
                return self._start_tool(event)
            case "tool_result":
                return [self._end_tool(event)]
            case "error":
                if event.get("severity") == "error":
                    self.error = evidence_of(words(event.get("message")))
                return [Output()]
            case "result":
                return self._read_result(event)
            case _:
                return [Output()]

    def _read_piece(self, text: str, at: float) -> list[Observation]:
        is_next_passage = bool(self._told) and not self._pieces
        is_again = self._is_again(text, at)
        self._pieces.append((text, at))
        if is_again:
            return [AgentText(text, again=True)]
        return [self.answers(), AgentText(f"\n\n{text}" if is_next_passage else text)]

    def _is_again(self, text: str, at: float) -> bool:
        """Check whether a stream that is asked for again repeats what the broken one had said."""
        if self._pieces and at - self._pieces[-1][1] >= MIN_RETRY_GAP_S:
            self._retold = 0
        if self._retold is None or self._retold >= len(self._pieces):
            return False
        is_same = self._pieces[self._retold][0] == text
        self._retold = self._retold + 1 if is_same else None
        return is_same

    def _start_tool(self, event: dict[str, Any]) -> list[Observation]:
        name = words(event.get("tool_name"))
        call = words(event.get("tool_id"))
        self._calls[call] = call_words(name, event.get("parameters"))
        return [
            self.answers(),
            started(name, event.get("parameters"), call=call, harmless=_HARMLESS_TOOLS),
        ]

    def _end_tool(self, event: dict[str, Any]) -> ToolEnded:
        call, error = words(event.get("tool_id")), fields(event.get("error"))
        told = self._calls.pop(call, "")
        if told and error.get("type") == "policy_violation":
            self._refused.append(told)
        return ToolEnded(call=call, failed=event.get("status") == "error")

    def _read_result(self, event: dict[str, Any]) -> list[Observation]:
        stats = fields(event.get("stats"))
        self.usage = Usage(
            input_tokens=count(stats.get("input_tokens")),
            output_tokens=count(stats.get("output_tokens")),
        )
        self._status = words(event.get("status"))
        if self._status == "success":
            self.error = None
            return [self.usage]
        error = fields(event.get("error"))
        if error:
            self.error = evidence_of(words(error.get("message")), words(error.get("type")))
        elif self.error is None:
            self.error = evidence_of("the run ended with an error that it does not name")
        # Given up for good by this event: what only the cause states counts already.
        self.error = self._with_cause(self.error)
        return [self.usage, GivenUp(evidence=self.error)]

    def read_text(self, stream: StreamName, line: str, at: float) -> list[Observation]:
        if stream != "stderr":
            return []
        if _ATTEMPT.match(line):
            seen = self._end_attempt()
            self._attempt = [line]
        elif self._attempt:
            seen = []
            self._attempt.append(line)
        else:
            if _TERMINAL.match(line):
                self._terminal = [line]
            elif self._terminal and len(self._terminal) < MAX_REPORT_LINES:
                self._terminal.append(line)
            return []
        if "Retrying" in line or len(self._attempt) >= MAX_RETRY_LINES:
            seen += self._end_attempt()
        return seen

    def _end_attempt(self) -> list[Observation]:
        """One report of a failed try may go over several lines."""
        if not self._attempt:
            return []
        text, self._attempt = "\n".join(self._attempt), []
        wait = _WAIT.search(text)
        body = read_object(text[text.find("{") :]) if "{" in text else None
        evidence = Evidence(
            text=text,
            stream="jsonl",
            body=body,
            http_status=status_of(text),
            code=self._silence(text),
        )
        return [self.retries(evidence, float(wait[1]) / 1000 if wait else None)]

    def reply(self, exit: ProcessExit) -> Reply | None:
        self._end_attempt()
        text = self._answer()
        if self._status == "success" and text.strip() and (whole := self.whole(text, exit)):
            return with_refused(whole, self._refused, _WAY_OUT)
        if self.error is not None:
            self.error = self._with_exit(self.error, exit)
        return None

    def _with_exit(self, error: Evidence, exit: ProcessExit) -> Evidence:
        """The status that the exit code carries, and the details that only stderr has."""
        status = error.http_status
        if status is None and exit.code is not None and 144 <= exit.code <= 255:
            status = exit.code + 256
        code = error.code or self._silence(error.text)
        error = self._with_cause(error)
        return msgspec.structs.replace(error, http_status=status, code=code)

    def _with_cause(self, error: Evidence) -> Evidence:
        if not self._terminal or "[API Error" not in error.text or error.body is not None:
            return error
        said = (self._terminal[0][:4000], *causes("\n".join(self._terminal)))
        lines = (error.text, *(one for one in said if one not in error.text))
        return msgspec.structs.replace(error, text="\n".join(lines))

    def _silence(self, text: str) -> str | None:
        """Code of a missing answer; the text is the same for a refused connection."""
        is_silent = self.was_silent() and "fetch failed" in text
        return "headerstimeouterror" if is_silent else None

    def _end_passage(self) -> None:
        """Drop the passage before a tool call, which is no part of the answer."""
        if self._pieces:
            self._told.append(without_repeats(self._pieces))
            self._pieces, self._retold = [], None

    def _answer(self) -> str:
        last = without_repeats(self._pieces)
        return last if last.strip() else "\n\n".join(t for t in self._told if t.strip())


_WAY_OUT = "allow it by a policy of gemini (~/.gemini/policies), or use permission `full`"

# It has asked for a stream that broke three times more before it says so: `retry_same`.
RULES = (
    Rule(
        "gemini-error",
        Reason.UNKNOWN,
        r"Error when talking to Gemini API[^:]*:?\s*|\[API Error:?\s*|Attempt \d+ failed[.:]?\s*"
        r"|_ApiError:\s*|✕\s*",
        opens=True,
        streams=("stderr", "unknown"),
    ),
    Rule("gemini-key", Reason.AUTH, "API key not valid", codes=("api_key_invalid",)),
    Rule(
        "gemini-login",
        Reason.NOT_CONFIGURED,
        "Please set an Auth method|you must specify the GEMINI_API_KEY"
        "|Invalid auth method selected|setting the GOOGLE_CLOUD_PROJECT",
        exits=(41,),
    ),
    Rule(
        "gemini-trust",
        Reason.NOT_CONFIGURED,
        "Gemini CLI is not running in a trusted",
        detail="untrusted_directory",
        exits=(52, 55),
    ),
    Rule(
        "gemini-daily",
        Reason.USAGE_LIMIT,
        "exhausted your daily quota|exhausted your capacity on this model",
    ),
    Rule(
        "gemini-throttle",
        Reason.RATE_LIMIT,
        r"exceeded your current quota(?=.*(?:Please retry in|Suggested retry after))(?!.*\blimit:"
        r" 0\b)|free_tier_requests(?!.*\blimit: 0\b)|Resource has been exhausted",
    ),
    Rule(
        "gemini-blocked",
        Reason.CONTENT_POLICY,
        "Model stream ended due to (?:safety|recitation) settings",
        requires_exit=False,
    ),
    Rule(
        "gemini-empty",
        Reason.EMPTY_RESULT,
        "Model stream ended (?:with|due to .{1,60} with) empty response"
        "|empty response with no text or thoughts",
        requires_exit=False,
        retry_same=False,
    ),
    Rule(
        "gemini-malformed",
        Reason.SERVER_ERROR,
        "Model stream ended with (?:malformed|unexpected)",
        requires_exit=False,
        retry_same=False,
    ),
    Rule(
        "gemini-stream",
        Reason.NETWORK,
        "Model stream ended without|Incomplete JSON segment",
        codes=("invalid_stream",),
        requires_exit=False,
        retry_same=False,
    ),
    # A connection that broke: this one it does not try again.
    Rule(
        "gemini-terminated",
        Reason.NETWORK,
        r"^\[?(?:API Error: )?terminated\]?$|TypeError: terminated",
        requires_exit=False,
    ),
    Rule(
        "gemini-resume",
        Reason.SESSION,
        "Error resuming session:|No previous sessions found",
        detail=NO_CONVERSATION,
    ),
    Rule(
        "gemini-context",
        Reason.CONTEXT_OVERFLOW,
        r"Sending this message \(\S+ tokens\) might exceed",
    ),
    Rule("gemini-400", Reason.FORMAT_ERROR, exits=(42, 144)),
    Rule("gemini-401", Reason.AUTH, exits=(145, 147)),
    Rule("gemini-402", Reason.BILLING, exits=(146,)),
    Rule("gemini-404", Reason.MODEL_NOT_FOUND, exits=(148,)),
    Rule("gemini-413", Reason.PAYLOAD_TOO_LARGE, exits=(157,)),
    Rule("gemini-429", Reason.RATE_LIMIT, exits=(173,)),
    Rule("gemini-5xx", Reason.SERVER_ERROR, exits=(244, 245, 246, 248)),
    Rule("gemini-503", Reason.OVERLOADED, exits=(247,)),
    Rule("gemini-turns", Reason.TASK_FAILED, detail="turn_limit", exits=(53,)),
)

_HOME = "${GEMINI_CLI_HOME:-~}/.gemini"
_CONVERSATIONS = tuple(f"{_HOME}/{name}/" for name in ("tmp", "history"))
_FOOTPRINT = Footprint(
    # Its conversations. Beside them it replaces files, which takes the directory of its settings,
    # extensions, commands and policies, so it has its own, with a copy of its login.
    writes=_CONVERSATIONS,
    copies=(
        OwnCopy(
            variable="GEMINI_CLI_HOME",
            place=_HOME,
            below=".gemini",
            shared=_CONVERSATIONS,
        ),
    ),
    keys=tuple(
        f"{_HOME}/{name}"
        for name in ("oauth_creds.json", "gemini-credentials.json", "mcp-oauth-tokens.json", ".env")
    ),
)

_PROJECT = ProjectFiles(
    places=(
        ".env",
        *(
            f".gemini/{name}"
            for name in (
                "settings.json",
                ".env",
                "agents",
                "commands",
                "extensions",
                "hooks",
                "policies",
            )
        ),
    ),
)
"""0.61 without trust in a directory reads none of these, and refuses to run unattended there."""

KIND = BackendKind(
    name="gemini",
    start=start,
    parser=GeminiParser,
    rules=RULES,
    program=lambda options: program("gemini", options),
    setup=Setup(
        install="npm install -g @google/gemini-cli",
        login="gemini",
        files=(".gemini/oauth_creds.json",),
        variables=("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI"),
        settings=(".gemini/settings.json", ".gemini/.env"),
        home="GEMINI_CLI_HOME",
        who=(".gemini/google_accounts.json:active",),
        personal="Gemini CLI has not served personal accounts since June 2026, only API keys and"
        " organisations: set GEMINI_API_KEY, or install its successor agy",
    ),
    variables=(
        *("GEMINI_*", "GOOGLE_*", "CODE_ASSIST_*", "CLOUD_SHELL", "OTEL_*", "BUILD_SANDBOX"),
        *("SEATBELT_PROFILE", "SANDBOX_*", "NO_BROWSER", "OAUTH_CALLBACK_*"),
    ),
    named={f"{_HOME}/settings.json": r"\$\{?(\w+)"},
    keeps_to_reading=True,
    project=_PROJECT,
    resumes=resumes,
    greets=True,
    forks=True,
    structured=True,
    footprint=lambda _: _FOOTPRINT,
)
