"""
Any agent that speaks the Agent Client Protocol: JSON-RPC, a message a line, on stdin and stdout.

The program takes a prompt in no other way, so each prompt is a turn of a resident
(`residents.AcpWay`), also where none may stay. `stopReason: "end_turn"` is no success by itself:
some agents end a turn so that has failed, without a word, or with a sentence of their own. `AGENTS`
has what is known of each, by the name of its program.
"""

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct, structs

from fallbackd.backends import generic_cli, residents
from fallbackd.backends.commands import is_command, model_of, substitute
from fallbackd.backends.lines import (
    CliParser,
    cost,
    count,
    fields,
    read_object,
    status_in,
    words,
)
from fallbackd.backends.outside import call_words, started, with_refused
from fallbackd.backends.spec import BackendKind, Footprint, Options, ProjectFiles
from fallbackd.classify.rules import Rule
from fallbackd.core.failures import NO_CONVERSATION
from fallbackd.core.protocol import (
    AgentText,
    Call,
    CommandLine,
    Conversation,
    Evidence,
    Observation,
    Output,
    Phase,
    ProcessExit,
    Reply,
    Residency,
    ToolEnded,
    Work,
)
from fallbackd.core.reasons import Reason


class Agent(Struct, frozen=True, kw_only=True):
    """Facts of one agent beyond the protocol."""

    least: str = ""
    """Oldest version that works; npm installs older ones where node is too old."""
    writes: tuple[str, ...] = ()
    """Places of its own, beside those that are named after its program."""
    reads: tuple[str, ...] = ()
    """Its settings and logins: one that is changed ends a resident."""
    retries: str = ""
    """Pattern of a piece of text by which it says that it asks its provider again."""
    failed: str = ""
    """Pattern of a last piece of text that is no answer, but the agent's word of a failure."""
    counts_session: bool = False
    """The usage that it states is that of the whole session."""
    env: Mapping[str, str] = {}


_ANY = Agent()
AGENTS: Mapping[str, Agent] = {
    "copilot": Agent(
        writes=("~/.copilot/", "~/.cache/copilot/"),
        reads=("~/.copilot/mcp-config.json",),
        retries=r"Info: (?:Request failed|Response was interrupted).{0,200}Retrying\.\.\.",
        failed=r"Error: (?:\d{3} |Authentication failed|Failed to get response).*"
        r"|Error: .{0,2000}\(HTTP \d{3}\).*|Info: Operation cancelled by user",
        counts_session=True,
    ),
    "gemini": Agent(
        reads=("${GEMINI_CLI_HOME:-~}/.gemini/settings.json",),
        env={"GEMINI_CLI_NO_RELAUNCH": "true"},
    ),
    "kimi": Agent(writes=("~/.kimi-code/",), reads=("~/.kimi-code/config.toml",)),
    "qwen": Agent(least="0.24", reads=("~/.qwen/settings.json",)),
    "vibe-acp": Agent(writes=("~/.vibe/",), reads=("~/.vibe/config.toml", "~/.vibe/.env")),
    "claude-agent-acp": Agent(least="0.101", writes=("~/.claude/", "~/.claude.json")),
    "codex-acp": Agent(writes=("${CODEX_HOME:-~/.codex}/",)),
}


def agent_of(options: Options) -> Agent:
    name = options.command[0].rpartition("/")[2] if options.command else ""
    return AGENTS.get(name, _ANY)


COMMAND_ESCAPED = "(The request begins with a slash; it is no command.)"


def start(work: Work, options: Options) -> Call:
    argv = substitute(options.command, work, options)
    session: dict[str, Any] = {
        "cwd": work.cwd,
        "permission": work.permissions,
        "runs_commands": work.runs_commands,
    }
    if (model := model_of(work, options)) and not any("{model}" in one for one in options.command):
        session["model"] = model
    prompt = f"{COMMAND_ESCAPED}\n{work.prompt}" if is_command(work.prompt) else work.prompt
    agent = agent_of(options)
    return CommandLine(
        argv=argv,
        cwd=work.cwd,
        stdin=prompt.encode("utf-8", "replace"),
        env={**agent.env, **options.env, **work.env},
        own_tmp=True,
        residency=Residency(
            way="acp",
            argv=argv,
            runs_alone=False,
            may_stay=options.resident and not work.env,
            conversation=work.resume,
            session=session,
            reads=agent.reads,
            watches=True,  # some do, and of the others it is not known
        ),
    )


class AcpParser(CliParser):
    """
    Its stdout from the first call on, or from our own line that begins a later turn.

    What it says before the last answer to a call of the opening is of the past: `session/load`
    replays the conversation.
    """

    def __init__(self, options: Options) -> None:
        super().__init__()
        self.has_events = True  # what it prints beside the protocol is no answer
        agent = agent_of(options)
        self._retries, self._failed = (
            re.compile(pattern or r"(?!)", re.S) for pattern in (agent.retries, agent.failed)
        )
        self._counts_session = agent.counts_session
        self._used_before: dict[str, Any] = {}
        self._passages: list[str] = [""]
        """Text between tool calls."""
        self._notice = ""
        """The last piece of text, where it reads like a failure: it has not been passed on."""
        self._tools: dict[str, str] = {}
        """Tool calls that have begun, by id, as people read them."""
        self._known: dict[str, dict[str, Any]] = {}
        self._asked: set[str] = set()
        self._refused: list[str] = []
        self._stopped = ""
        """The `stopReason`."""
        self._is_over = False
        self._failure: Evidence | None = None
        """Its answer is an error."""

    def read_event(self, event: dict[str, Any], at: float) -> list[Observation]:
        if event.get("type") == residents.TURN:
            self._used_before = fields(event.get("usage")) if self._counts_session else {}
            return self._in_session(words(event.get("conversation")))
        said, id = fields(event.get("params")), event.get("id")
        match event.get("method"):
            case None if isinstance(id, str):
                return self._read_answer(id, event)
            case "session/update":
                return self._read_update(fields(said.get("update")))
            case "session/request_permission":
                call = fields(said.get("toolCall"))
                self._asked.add(words(call.get("toolCallId")))
                return self._read_tool(call, is_asked=True)
            case "_session/retrying":
                detail = words(said.get("detail"))
                evidence = _evidence(detail, code=words(said.get("category")))
                return [self.retries(evidence)]
            case _:
                return [Output()]

    def _in_session(self, id: str) -> list[Observation]:
        return [Conversation(id=id)] if id else [Output()]

    # --- answers to our calls -------------------------------------------------------------------

    def _read_answer(self, id: str, reply: dict[str, Any]) -> list[Observation]:
        result, error = fields(reply.get("result")), fields(reply.get("error"))
        if id.startswith(residents.OPENS):
            if error and not id.endswith(residents.PING):
                lost = _LOST if id.endswith("session/load") else ""
                self.error = evidence_of(error, code=lost)
                return [Output()]
            self._passages, self._notice = [""], ""
            self._draft = self._repeated = ""
            self._tools.clear()
            self._known.clear()
            return self._in_session(words(result.get("sessionId")))
        # Of several the last one is this turn's: with it the turn is over.
        self._is_over = True
        self._failure = self._with_structure(evidence_of(error)) if error else None
        if error:
            return [Output()]
        self._stopped = words(result.get("stopReason"))
        used = fields(result.get("usage")) or fields(fields(result.get("_meta")).get("quota"))
        used = fields(used.get("token_count")) or used
        self.usage = structs.replace(
            self.usage,
            input_tokens=self._of_turn(used, "inputTokens", "input_tokens"),
            output_tokens=self._of_turn(used, "outputTokens", "output_tokens"),
        )
        return [self.usage]

    def _of_turn(self, used: dict[str, Any], *names: str) -> int:
        now, before = (
            max(count(said.get(name)) for name in names) for said in (used, self._used_before)
        )
        return now - before if now >= before else now

    def _with_structure(self, evidence: Evidence) -> Evidence:
        """Prefer the failure that it has stated as data to its prose."""
        known = self.error or self.retrying
        if known is None or evidence.code or evidence.http_status:
            return evidence
        return known

    # --- what happens in a turn -----------------------------------------------------------------

    def _read_update(self, update: dict[str, Any]) -> list[Observation]:
        match update.get("sessionUpdate"):
            case "agent_message_chunk":
                return self._read_text_piece(words(fields(update.get("content")).get("text")))
            case "agent_thought_chunk":
                return [self.answers(), Phase("thinking")]
            case "tool_call" | "tool_call_update":
                return self._read_tool(update)
            case "plan":
                return [self.answers()]
            case "usage_update":
                spent = fields(update.get("cost"))
                if spent.get("currency") == "USD":
                    paid = cost({"cost": spent.get("amount")})
                    self.usage = structs.replace(self.usage, cost_usd=paid)
                return [Output()]
            case "session_info_update":
                return self._read_codex(fields(fields(update.get("_meta")).get("codex")))
            case _:
                return [Output()]

    def _read_codex(self, said: dict[str, Any]) -> list[Observation]:
        error = fields(said.get("error"))
        if not error:
            return [Output()]
        info = error.get("codexErrorInfo")
        name, more = (
            (info, {}) if isinstance(info, str) else next(iter(fields(info).items()), ("", {}))
        )
        text = words(error.get("additionalDetails")) or words(error.get("message"))
        status = count(fields(more).get("httpStatusCode"))
        evidence = _evidence(text, code=words(name), status=status or None)
        if error.get("willRetry") is True:
            return [self.retries(evidence)]
        self.error = evidence
        return [Output()]

    def _read_text_piece(self, text: str) -> list[Observation]:
        if self._retries.fullmatch(text):
            self._passages[-1] = ""
            self.begins()
            return [self.retries(_evidence(text, code=_AGAIN))]
        if not text:
            return [Output()]
        before, self._notice = self._notice, ""
        if self._failed.fullmatch(text):
            self._notice = f"{before}{text}"
            return [Output()]
        text = f"{before}{text}"
        is_next = len(self._passages) > 1 and not self._passages[-1]
        self._passages[-1] += text
        told = self.writes(f"\n\n{text}" if is_next else text)
        is_again = any(isinstance(one, AgentText) and one.again for one in told)
        return told if is_again else [self.answers(), *told]

    def _read_tool(self, call: dict[str, Any], *, is_asked: bool = False) -> list[Observation]:
        """Read a part of what is said of a call. It has begun once its arguments are known."""
        id, status = words(call.get("toolCallId")), call.get("status")
        known = self._known.setdefault(id, {})
        known |= residents.substance_of(call)
        seen: list[Observation] = []
        is_begun = is_asked or status not in (None, "pending") or "rawInput" in known
        if known and is_begun and id not in self._tools:
            if self._passages[-1]:
                self._passages.append("")
            self._draft = self._repeated = ""
            kind, given = words(known.get("kind")), known.get("rawInput")
            name = words(known.get("title")) or kind
            harmless = {name} if kind in _HARMLESS else frozenset[str]()
            seen += [self.answers(), started(name, given, call=id, harmless=harmless)]
            self._tools[id] = call_words(name, given)
        if status in ("completed", "failed"):
            if status == "failed" and id in self._asked:
                self._refused.append(self._tools.get(id, ""))
            seen.append(ToolEnded(call=id, failed=status == "failed"))
        return seen or [Output()]

    # --- how it ended ---------------------------------------------------------------------------

    def _text(self) -> str:
        last = self._passages[-1]
        return last if last.strip() else "\n\n".join(one for one in self._passages if one.strip())

    def reply(self, exit: ProcessExit) -> Reply | None:
        self.error = self._failure or self.error
        if not self._is_over or self.error is not None or exit.stopped:
            return None
        text = self._text()
        if self._stopped not in ("end_turn", "max_tokens"):
            self.error = _evidence(text or f"its turn ended: {self._stopped}", code=self._stopped)
            return None
        is_mute = not text.strip()
        if self._refused and (is_mute or self._notice):
            calls = ", ".join(dict.fromkeys(self._refused))
            self.error = _evidence(f"it was refused, and ended its turn: {calls}", code=_REFUSED)
            return None
        if self._notice:
            self.error = _evidence(self._notice)
            return None
        if is_mute:
            self.error = self.retrying or Evidence(stream="jsonl", empty=True)
            return None
        whole = self.whole(text, exit)
        if whole is not None and self._stopped == "max_tokens":
            cut = "the answer was cut off: the model reached its limit of tokens"
            whole = structs.replace(whole, warnings=(*whole.warnings, cut))
        return None if whole is None else with_refused(whole, self._refused, _WAY_OUT)


_HARMLESS = frozenset({"read", "search", "fetch", "think"})
_WAY_OUT = 'use permission `full`, or `shell = "confined"` for commands'
_LOST = "session_load"
_REFUSED = "call_refused"
_AGAIN = "transient"
_STATUS = re.compile(r"(?:^|Last error: )\D{0,60}?\b([45]\d\d)\b")


def _evidence(text: str, *, code: str = "", status: int | None = None) -> Evidence:
    found = _STATUS.search(text[:2000])
    return Evidence(
        text=text,
        stream="jsonl",
        http_status=status or status_in(text) or (int(found[1]) if found else None),
        body=read_object(text[text.find("{") :]) if "{" in text else None,
        code=code.lower() or None,
    )


def evidence_of(error: dict[str, Any], *, code: str = "") -> Evidence:
    """A JSON-RPC error: its data goes before its number, and that before its words."""
    data = error.get("data")
    more = fields(data)
    names = ("codexErrorInfo", "errorKind", "errorName", "startupFailureReason", "code")
    named = next((words(more.get(name)) for name in names if words(more.get(name))), "")
    details = data if isinstance(data, str) else ""
    details = details or words(more.get("details")) or words(more.get("message"))
    message = words(error.get("message"))
    text = "\n".join(dict.fromkeys(one for one in (details, message) if one))
    number = error.get("code")
    number = number if isinstance(number, int) else 0
    is_http = 400 <= number < 600
    found = _evidence(text, code=code or named, status=number if is_http else None)
    if found.code is None and number and not is_http:
        found = structs.replace(found, code=f"rpc{number}")
    return found


RULES = (
    Rule("acp-lost", Reason.SESSION, codes=(_LOST,), detail=NO_CONVERSATION, requires_exit=False),
    Rule("acp-refused", Reason.APPROVAL_REQUIRED, codes=(_REFUSED,), requires_exit=False),
    Rule("acp-login", Reason.AUTH, codes=("rpc-32000", "rpc-31002"), requires_exit=False),
    Rule(
        "acp-throttle",
        Reason.RATE_LIMIT,
        codes=("rpc-31001", "rate_limit", "rate_limited"),
        requires_exit=False,
    ),
    Rule("acp-quota", Reason.USAGE_LIMIT, codes=("usagelimitexceeded",), requires_exit=False),
    Rule(
        "acp-server",
        Reason.SERVER_ERROR,
        codes=("server_error", "responsetoomanyfailedattempts", _AGAIN),
        requires_exit=False,
    ),
    Rule(
        "acp-stream",
        Reason.NETWORK,
        "^terminated$",
        codes=("responsestreamdisconnected",),
        requires_exit=False,
        yields=True,
    ),
    Rule(
        "acp-refusal", Reason.CONTENT_POLICY, codes=("refusal",), requires_exit=False, yields=True
    ),
    Rule(
        "acp-turns",
        Reason.TASK_FAILED,
        codes=("max_turn_requests",),
        detail="turn_limit",
        requires_exit=False,
    ),
    Rule(
        "acp-error",
        Reason.UNKNOWN,
        r"(?:Error|Info|Internal error):\s*",
        opens=True,
        requires_exit=False,
    ),
)


def _footprint(options: Options) -> Footprint:
    own = generic_cli.footprint(options)
    return structs.replace(own, writes=(*own.writes, *agent_of(options).writes))


_PROJECT = ProjectFiles(places=(".mcp.json", ".qwen", ".vibe", ".kimi-code", ".github/copilot"))

KIND = BackendKind(
    name="acp",
    start=start,
    parser=AcpParser,
    rules=RULES,
    program=lambda options: options.command[0] if options.command else None,
    project=_PROJECT,
    resumes=lambda _: True,
    forks=True,
    structured=True,
    footprint=_footprint,
)
