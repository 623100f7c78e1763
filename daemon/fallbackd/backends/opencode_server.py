"""
Reader of the events of an opencode server about one prompt: `EventReader`.

| event | observation |
| --- | --- |
| `session.status` with `retry` | `Retrying`, wait from `next` (epoch milliseconds) |
| `session.error` | `GivenUp`; a context overflow only when the turn ends with it |
| `message.part.updated`, `message.part.delta` | `ProviderAnswered`, `ToolStarted`, `ToolEnded` |
| `message.updated` | `Usage`; `AgentStep("unknown")` for each message without a finish reason |
| `session.compacted` | `AgentStep("compacted")`: too small a limit compacts without an end |

Two lines are the transport's own: `fallbackd.session` names the session of the prompt, and
`fallbackd.final` carries its last assistant message, so that the text is whole even where events
were missed. Events of child sessions (subagents) count as life, tools and usage, never as the
answer.

Source: recorded calls and events of opencode 1.18.33. There `session.error` precedes
`session.idle`, a message's own `error` follows it, an aborted message carries neither, and a
provider stream that is cut off is asked for again without an end, each time with the finish
reason `unknown`.

A retry status holds the provider's sentence and the instant of the next try, and nothing else of
the answer: its headers and body come with `session.error`, when the last retry has failed. An
instant beyond opencode's own back-off is the one that the provider asked for in `Retry-After`,
which opencode obeys without a bound. Neither its log at any level, nor its messages, nor an abort
tell more (1.18.33).
"""

import re
from collections.abc import Mapping
from typing import Any, Literal, assert_never

import msgspec
from msgspec import Struct, field

from fallbackd.backends.outside import call_words, started, with_refused
from fallbackd.core.protocol import (
    AgentStep,
    AgentText,
    Conversation,
    Evidence,
    Exit,
    GivenUp,
    HttpResponse,
    NoAnswer,
    NotStarted,
    Observation,
    Outcome,
    Output,
    Phase,
    ProcessExit,
    ProviderAnswered,
    Reply,
    Retrying,
    ToolEnded,
    Usage,
)
from fallbackd.lib import foreign_json

ErrorFields = Mapping[str, object]

OWN_BACKOFF_BASE_S = 2.0
OWN_BACKOFF_SPREAD = 1.25
"""opencode waits 2 s · 2^n by itself, and up to a quarter more (measured)."""
SLACK_S = 0.5
"""Slack between its clock and the arrival of the event."""


def wait_of(status: ErrorFields, *, now: float) -> float | None:
    """Seconds until the next try; None: it says none."""
    next_at = status.get("next")
    if not isinstance(next_at, int | float) or isinstance(next_at, bool):
        return None
    return max(0.0, next_at / 1000 - now)


def retry_evidence(status: ErrorFields, *, now: float) -> Evidence:
    """A wait that is longer than the server's own back-off is what the provider has stated."""
    attempt = status.get("attempt")
    number = attempt if isinstance(attempt, int) else 1
    own_s = OWN_BACKOFF_BASE_S * 2.0 ** min(max(number - 1, 0), 16) * OWN_BACKOFF_SPREAD
    wait_s = wait_of(status, now=now)
    headers = {}
    if wait_s is not None and wait_s > own_s + SLACK_S:
        headers["retry-after"] = str(round(wait_s))
    text = foreign_json.text(status.get("message"))
    if error := foreign_json.fields(status.get("error")):  # of version 2
        found = error_evidence(error)
        return msgspec.structs.replace(found, headers={**headers, **found.headers})
    return Evidence(text=text, stream="jsonl", headers=headers, body=text_body(text))


_ERRORS: Mapping[str, tuple[str, int | None]] = {
    "aborted": ("MessageAbortedError", None),
    "permission.rejected": ("PermissionRejectedError", None),
    "provider.auth": ("ProviderAuthError", 401),
    "provider.rate-limit": ("APIError", 429),
    "provider.internal": ("APIError", 500),
}
"""Name in version 1 of a type of error, and the status that it means where none is given. Others
keep their own name."""


def first_error(error: ErrorFields) -> dict[str, Any]:
    """An error of version 2 (`{type, message, status?, response?, retryAfterMs?}`) as in 1."""
    kind = foreign_json.text(error.get("type"))
    name, status = _ERRORS.get(kind, (kind, None))
    data: dict[str, Any] = {"message": foreign_json.text(error.get("message"))}
    if isinstance(given := error.get("status", status), int):
        data["statusCode"] = given
    if body := foreign_json.text(foreign_json.fields(error.get("response")).get("body")):
        data["responseBody"] = body
    if isinstance(wait := error.get("retryAfterMs"), int | float):
        data["responseHeaders"] = {"retry-after-ms": str(wait)}
    return {"name": name, "data": data}


def error_evidence(error: ErrorFields) -> Evidence:
    data = foreign_json.fields(error.get("data"))
    text = foreign_json.text(data.get("message")) or foreign_json.text(error.get("message"))
    status = data.get("statusCode")
    headers = foreign_json.fields(data.get("responseHeaders"))
    raw = foreign_json.text(data.get("responseBody"))
    body = _json(raw) if raw else text_body(text)
    return Evidence(
        text=text,
        stream="jsonl",
        http_status=status if isinstance(status, int) else None,
        headers={name.lower(): foreign_json.text(value) for name, value in headers.items()},
        body=body,
        code=foreign_json.text(error.get("name")) or None,
    )


def text_body(text: str) -> object:
    """A failure in the middle of a stream has the provider's own JSON as its message."""
    return _json(text) if text.startswith("{") else None


def _json(text: str) -> object:
    """The value that `text` holds, or `text` as it is: bodies are cut off and HTML at times."""
    try:
        return foreign_json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return text


MessageFields = foreign_json.Fields


class MessagePart(Struct, kw_only=True):
    kind: str
    text: str = ""
    synthetic: bool = False


class ServedMessage(Struct, kw_only=True):
    role: str = ""
    summary: bool = False
    """Written by the compaction, not for the caller."""
    finish: str | None = None
    completed: bool = False
    usage: Usage = Usage()
    parts: dict[str, MessagePart] = field(default_factory=dict)

    def take_info(self, info: MessageFields) -> None:
        self.role = foreign_json.text(info.get("role")) or self.role
        # A user message carries an object here: what it changed.
        self.summary = info.get("summary") is True or info.get("mode") == "compaction"
        self.finish = foreign_json.text(info.get("finish")) or self.finish
        self.completed = self.completed or "completed" in foreign_json.fields(info.get("time"))

    def take_part(self, part: MessageFields, *, key: str) -> None:
        kind = foreign_json.text(part.get("type"))
        if kind == "step-finish" and self.finish is None:
            self.finish = foreign_json.text(part.get("reason")) or None
        synthetic = part.get("synthetic") is True or part.get("ignored") is True
        self.parts[key] = MessagePart(
            kind=kind, text=foreign_json.text(part.get("text")), synthetic=synthetic
        )

    def answer(self) -> str:
        """Texts behind the last `step-start`: what stands before is of an earlier try."""
        texts: list[str] = []
        for part in self.parts.values():
            if part.kind == "step-start":
                texts.clear()
            elif part.kind == "text" and not part.synthetic and part.text.strip():
                texts.append(part.text.strip("\n"))
        return "\n\n".join(texts)


def message_usage(info: MessageFields) -> Usage:
    tokens = foreign_json.fields(info.get("tokens"))
    cache = foreign_json.fields(tokens.get("cache"))
    cost = info.get("cost")
    return Usage(
        input_tokens=foreign_json.count(tokens.get("input"))
        + foreign_json.count(cache.get("read"))
        + foreign_json.count(cache.get("write")),
        output_tokens=foreign_json.count(tokens.get("output"))
        + foreign_json.count(tokens.get("reasoning")),
        cost_usd=float(cost) if isinstance(cost, int | float) and cost > 0 else None,
    )


Effects = Literal["none", "possible"]
_HARMLESS_TOOLS = frozenset(
    {
        "read",
        "glob",
        "grep",
        "list",
        "ls",
        "lsp",
        "webfetch",
        "websearch",
        "codesearch",
        "todoread",
        "todowrite",
        "question",
        "skill",
    }
)

_NO_ANSWER_FINISHES = frozenset({"unknown", "error", "tool-calls"})
"""Finish reasons of a last message that is no answer, whatever text it carries."""


class OpencodeEventReader:
    """Reads the events of one prompt, each once, in order. Unknown events are life."""

    def __init__(self) -> None:
        self._session = ""
        self._messages: dict[str, ServedMessage] = {}
        self._tools: set[str] = set()
        self._ended_tools: set[str] = set()
        self._unknown_messages: set[str] = set()
        self._error: Evidence | None = None
        self._held: Evidence | None = None
        self._rejected: list[str] = []
        self._refused: list[str] = []
        """Calls of tools that its rules refused."""
        self._final: ServedMessage | None = None
        self._usage_by_message: dict[str, Usage] = {}
        self._usage = Usage()
        self._answered = False
        self._has_said = False

    def feed_event(self, obj: Mapping[str, object], at: float) -> list[Observation]:
        """
        Read one event, bare or in the wrapper of `/global/event`.

        Args:
            obj: `{"type", "properties"}`.
            at: When it came, by the clock of the machine that the server runs on.
        """
        payload = obj.get("payload")
        event = payload if isinstance(payload, dict) else obj
        properties = foreign_json.fields(event.get("properties"))
        session = foreign_json.text(properties.get("sessionID"))
        if not self._session and session:
            self._session = session
            return [Conversation(id=session), *self.feed_event(obj, at)]
        is_main = session in ("", self._session)
        match event.get("type"):
            case "fallbackd.session":
                return []
            case "fallbackd.final":
                return self._read_final(foreign_json.fields(properties.get("message")))
            case "fallbackd.permission":
                self._rejected.append(foreign_json.text(properties.get("permission")))
                return [Output()]
            case str() as kind if kind.startswith("session."):
                return self._read_of_session(kind, properties, at, is_main=is_main)
            case str() as kind if kind.startswith("message."):
                return self._read_of_message(kind, properties, session)
            case _:
                return [Output()]

    def _read_of_session(
        self, kind: str, properties: MessageFields, at: float, *, is_main: bool
    ) -> list[Observation]:
        match kind:
            case "session.status":
                return self._read_status(foreign_json.fields(properties.get("status")), at)
            case "session.error":
                return self._read_error(
                    foreign_json.fields(properties.get("error")), is_main=is_main
                )
            case "session.compacted":
                if is_main:
                    self._error = self._held = None
                return [AgentStep(key="compacted")]
            case "session.idle" if is_main and self._held is not None:
                self._error, self._held = self._held, None
                return [GivenUp(evidence=self._error)]
            case _:
                return [Output()]

    def _read_of_message(
        self, kind: str, properties: Mapping[str, object], session: str
    ) -> list[Observation]:
        match kind:
            case "message.updated":
                return self._read_message(foreign_json.fields(properties.get("info")), session)
            case "message.removed":
                self._messages.pop(foreign_json.text(properties.get("messageID")), None)
                return [Output()]
            case "message.part.updated":
                return self._read_part(foreign_json.fields(properties.get("part")))
            case "message.part.delta":
                return self._read_delta(properties)
            case _:
                return [Output()]

    def outcome(self, exit: Exit) -> Outcome:
        match exit:
            case ProcessExit():
                return self._ended(exit)
            case NotStarted():
                return Evidence(text=exit.text, stream="exception", code=exit.error)
            case NoAnswer():
                if self._error is not None:
                    return self._error
                return self._seal(
                    Evidence(text=exit.text, stream="exception", exception=exit.exception)
                )
            case HttpResponse():
                return self._seal(Evidence(stream="http", http_status=exit.status))
            case _:
                assert_never(exit)

    # How a turn went.

    def _read_status(self, status: MessageFields, at: float) -> list[Observation]:
        if status.get("type") != "retry":
            return [Output()]
        evidence = self._seal(retry_evidence(status, now=at))
        return [Retrying(evidence=evidence, wait_s=wait_of(status, now=at))]

    def _read_error(self, error: MessageFields, *, is_main: bool) -> list[Observation]:
        name = foreign_json.text(error.get("name"))
        if not is_main or name == "MessageAbortedError":
            # A subagent's failure goes back to its parent; an abort is what we asked for.
            return [Output()]
        if self._error is not None:
            # The same failure comes again with its stack trace.
            return [Output()]
        evidence = self._seal(error_evidence(error))
        if name == "ContextOverflowError":
            self._held = self._held or evidence
            return [Output()]
        self._error = evidence
        return [GivenUp(evidence=evidence)]

    def _ended(self, exit: ProcessExit) -> Outcome:
        error = self._error or self._held
        if error is not None:
            return self._seal(error)
        last = self._final or self._last_answer()
        text = last.answer() if last is not None else ""
        if exit.code != 0 or exit.stopped:
            return self._seal(
                Evidence(text=exit.note, exit_code=exit.code, signal=exit.signal, stream="unknown")
            )
        if last is not None and text and self._is_finished(last):
            return with_refused(Reply(text=text, usage=self._usage), self._refused, _WAY_OUT)
        return self._seal(self._unfinished(last, text))

    def _unfinished(self, last: ServedMessage | None, text: str) -> Evidence:
        if last is not None and last.finish == "content-filter":
            note = "the provider's content filter ended the answer (finish reason content-filter)"
            return Evidence(text=note, stream="jsonl", code="content-filter")
        if rejected := self._rejected or self._refused:
            note = f"permission asked for and rejected: {', '.join(rejected)}"
            return Evidence(text=note, stream="jsonl", code="permission_rejected")
        note = "the provider's stream ended without a finish reason" if text else ""
        return Evidence(text=note, stream="jsonl", exit_code=0, empty=True)

    @staticmethod
    def _is_finished(message: ServedMessage) -> bool:
        if message.finish is None:
            return message.completed
        return message.finish not in _NO_ANSWER_FINISHES and message.finish != "content-filter"

    def _last_answer(self) -> ServedMessage | None:
        for message in reversed(self._messages.values()):
            if message.role == "assistant" and not message.summary:
                return message
        return None

    def _seal(self, evidence: Evidence) -> Evidence:
        return msgspec.structs.replace(evidence, answered=self._answered)

    # Messages and their parts.

    def _read_message(self, info: MessageFields, session: str) -> list[Observation]:
        key = foreign_json.text(info.get("id"))
        owner = foreign_json.text(info.get("sessionID")) or session or self._session
        message = self._messages.get(key) or ServedMessage()
        if owner == self._session:
            self._messages[key] = message
        message.take_info(info)
        seen: list[Observation] = []
        if message.role != "assistant":
            return [Output()]
        if message.finish == "unknown" and key not in self._unknown_messages:
            self._unknown_messages.add(key)
            seen.append(AgentStep(key="unknown"))
        usage = message_usage(info)
        if usage != Usage():
            before = self._usage
            self._usages(key, usage)
            self._answered = True
            seen.append(ProviderAnswered())
            if self._usage != before:
                seen.append(self._usage)
        return seen or [Output()]

    def _usages(self, key: str, usage: Usage) -> None:
        """Messages report their own totals; those of subagents count too."""
        self._usage_by_message[key] = usage
        costs = [u.cost_usd for u in self._usage_by_message.values() if u.cost_usd is not None]
        self._usage = Usage(
            input_tokens=sum(u.input_tokens for u in self._usage_by_message.values()),
            output_tokens=sum(u.output_tokens for u in self._usage_by_message.values()),
            cost_usd=sum(costs) if costs else None,
        )

    def _read_final(self, message: MessageFields) -> list[Observation]:
        final = ServedMessage()
        final.take_info(foreign_json.fields(message.get("info")))
        parts = message.get("parts")
        for number, part in enumerate(parts if isinstance(parts, list) else []):
            final.take_part(foreign_json.fields(part), key=str(number))
        self._final = final
        info = foreign_json.fields(message.get("info"))
        usage = message_usage(info)
        if usage != Usage():
            self._usages(foreign_json.text(info.get("id")), usage)
        error = foreign_json.fields(info.get("error"))
        if error and self._error is None and error.get("name") != "MessageAbortedError":
            self._error = self._held or self._seal(error_evidence(error))
        return [Output()]

    def _read_part(self, part: MessageFields) -> list[Observation]:
        message = self._messages.get(foreign_json.text(part.get("messageID")))
        said: list[Observation] = []
        if message is not None:
            key = foreign_json.text(part.get("id"))
            before = message.parts.get(key)
            message.take_part(part, key=key)
            if message.role == "user":
                return [Output()]
            said = self._say(message, message.parts[key], "" if before is None else before.text)
        match part.get("type"):
            case "tool":
                return self._read_tool(part)
            case "text" | "reasoning" if message is not None and foreign_json.text(
                part.get("text")
            ):
                self._answered = True
                return [ProviderAnswered(), *said]
            case "step-start":
                return [Phase("thinking")]
            case _:
                return [Output()]

    def _say(self, message: ServedMessage, part: MessagePart, before: str) -> list[Observation]:
        """Say the news of a part of the answer. Each part is a passage of its own."""
        new = part.text[len(before) :] if part.text.startswith(before) else ""
        if part.kind != "text" or part.synthetic or message.summary or not new:
            return []
        is_next_passage = self._has_said and not before
        self._has_said = True
        return [AgentText(f"\n\n{new}" if is_next_passage else new)]

    def _read_delta(self, properties: MessageFields) -> list[Observation]:
        delta = foreign_json.text(properties.get("delta"))
        message = self._messages.get(foreign_json.text(properties.get("messageID")))
        said: list[Observation] = []
        if message is not None and properties.get("field") == "text":
            part = message.parts.get(foreign_json.text(properties.get("partID")))
            if part is not None:
                before = part.text
                part.text += delta
                said = self._say(message, part, before)
        if not delta:
            return [Output()]
        self._answered = True
        return [ProviderAnswered(), *said]

    def _read_tool(self, part: MessageFields) -> list[Observation]:
        self._answered = True
        call = foreign_json.text(part.get("callID")) or foreign_json.text(part.get("id"))
        name = foreign_json.text(part.get("tool"))
        state = foreign_json.fields(part.get("state"))
        # Two messages may use the same call id: the part is what is unique.
        unique = foreign_json.text(part.get("id")) or call
        seen: list[Observation] = [ProviderAnswered()]
        status = state.get("status")
        if status in ("running", "completed", "error") and unique not in self._tools:
            self._tools.add(unique)
            seen.append(started(name, state.get("input"), call=unique, harmless=_HARMLESS_TOOLS))
        if status in ("completed", "error") and unique not in self._ended_tools:
            self._ended_tools.add(unique)
            exit_code = foreign_json.fields(state.get("metadata")).get("exit")
            failed = status == "error" or exit_code not in (0, None)
            if status == "error" and _REFUSED.match(foreign_json.text(state.get("error"))):
                self._refused.append(call_words(name, state.get("input")))
            seen.append(ToolEnded(call=unique, failed=failed))
        return seen


_REFUSED = re.compile(
    r"The user (?:rejected permission to use this|has specified a rule which prevents)"
)
_WAY_OUT = "change `permission` in opencode.json, or use permission `full`"


def tool_effects(tool: str) -> Effects:
    return "none" if tool in _HARMLESS_TOOLS else "possible"
