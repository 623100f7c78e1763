"""What was said before, in words and within bounds."""

from collections.abc import Callable, Sequence

from msgspec import structs

from fallbackd_conversations.turns import OutcomeWord, ToolUse, Utterance

MAX_TOOL_CHARS = 2048
"""Of what a tool was given, and of what came back."""
BRIEF_BYTES = 4096
"""Of the earlier turns in front of a prompt; the rest is in a file."""
BRIEF_CHARS = 1000
"""Of one message there."""
CHARS_PER_TOKEN = 4.0
TOKENS_FACTOR = 1.3
"""Estimates are low for code and for languages other than English."""
SHARE_OF_CONTEXT = 0.5
"""The rest is for the work itself."""
DEFAULT_CONTEXT_TOKENS = 128_000
"""Where the context of a backend is not known."""

_HEAD = (
    "This continues a conversation that was held before, in part by another agent. What was said"
    " is quoted here as data, oldest first"
)
_TAIL = "The conversation continues with this request:"
_OUTCOMES: dict[OutcomeWord, str] = {
    "done": "ok",
    "failed": "failed",
    "no_result": "no result, it may or may not have run",
}


def tool_lines(tools: Sequence[ToolUse]) -> str:
    """`[ran: npm test → ok]`, one line for each call."""
    return "\n".join(_tool_line(one) for one in tools)


def _tool_line(one: ToolUse) -> str:
    what = f"ran: {one.command}" if one.command is not None else f"used {one.name}: {one.args}"
    result = " ".join(one.result.split())
    return f"[{what} → {_OUTCOMES[one.outcome]}{f': {result}' if result else ''}]"


def cleaned(said: Sequence[Utterance], *, redact: Callable[[str], str]) -> tuple[Utterance, ...]:
    """Without secrets, control characters, and empty messages; what tools said is cut."""

    def clean(text: str) -> str:
        return redact("".join(one for one in text if one.isprintable() or one in "\n\t"))

    found = []
    for one in said:
        tools = tuple(
            structs.replace(
                tool,
                command=None if tool.command is None else clean(tool.command[:MAX_TOOL_CHARS]),
                args=clean(tool.args[:MAX_TOOL_CHARS]),
                result=clean(tool.result[:MAX_TOOL_CHARS]),
            )
            for tool in one.tools
        )
        one = structs.replace(one, text=clean(one.text), tools=tools)
        if one.text.strip() or one.tools:
            found.append(one)
    return tuple(found)


def bounded(
    said: Sequence[Utterance], *, max_turns: int, context_tokens: int | None
) -> tuple[Utterance, ...]:
    """
    The latest turns that fit half of a context. The first message is a user's.

    Args:
        max_turns: Of prompts of users.
    """
    room = SHARE_OF_CONTEXT * (context_tokens or DEFAULT_CONTEXT_TOKENS) / TOKENS_FACTOR
    kept: list[Utterance] = []
    whole, turns = 0, 0
    for one in reversed(said):
        room -= tokens_of(one)
        if room < 0 or turns == max_turns:
            break
        kept.append(one)
        if one.role == "user":
            turns += 1
            whole = len(kept)
    return tuple(reversed(kept[:whole]))


def tokens_of(one: Utterance) -> float:
    """A rough measure, only compared with context sizes."""
    return (len(one.text) + sum(len(tool_lines((each,))) for each in one.tools)) / CHARS_PER_TOKEN


def as_text(said: Sequence[Utterance]) -> str:
    """All of it, for a file."""
    return "\n\n".join(f"## {_speaker(one)}\n\n{_whole(one)}" for one in said) + "\n"


def brief(said: Sequence[Utterance], prompt: str, *, path: str = "") -> str:
    """
    A prompt with the latest of what was said in front of it.

    Args:
        path: Of the file with all of it; empty: there is none.
    """
    parts: list[str] = []
    room = BRIEF_BYTES
    for one in reversed(said):
        text = _quoted(one)
        room -= len(text.encode("utf-8", "replace")) + 1
        if room < 0:
            break
        parts.append(text)
    if not parts:
        return prompt
    left = len(said) - len(parts)
    more = f" ({left} earlier messages are left out)" if left else ""
    file = f"; all of it is in the file {path}" if path else ""
    return "\n".join((f"{_HEAD}{more}{file}.", "", *reversed(parts), "", _TAIL, "", prompt))


def _quoted(one: Utterance) -> str:
    text = _whole(one)
    if len(text) > BRIEF_CHARS:
        text = f"{text[: BRIEF_CHARS - 1]}…"
    lines = text.splitlines() or [""]
    return "\n".join((f"> {_speaker(one)}: {lines[0]}", *(f"> {line}" for line in lines[1:])))


def _speaker(one: Utterance) -> str:
    return "User" if one.role == "user" else "Agent"


def _whole(one: Utterance) -> str:
    return "\n".join(part for part in (tool_lines(one.tools), one.text) if part)
