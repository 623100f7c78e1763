"""Earlier turns in words, within bounds."""

from collections.abc import Callable, Collection, Iterator, Sequence

from msgspec import structs

from fallbackd_conversations.redact import strip_controls
from fallbackd_conversations.turns import Attachment, OutcomeWord, ToolUse, Utterance

MAX_TOOL_CHARS = 2048
"""Of what a tool was given, and of what came back."""
BRIEF_BYTES = 4096
"""Of the earlier turns in front of a prompt; the rest is in a file."""
BRIEF_CHARS = 1000
"""Of one message there."""
CHARS_PER_TOKEN = 4.0
TOKENS_PER_FILE = 1500
MAX_FILES_CHARS = 5 * 1024 * 1024
"""Of all files of a conversation, in base64."""
MAX_NAME_CHARS = 100
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


def file_line(one: Attachment) -> str:
    """`[attached: shot.png, image/png, 120 kB]`, in the place of a file."""
    size = f"{max(1, round(one.size_bytes / 1000))} kB" if one.size_bytes else ""
    return f"[attached: {', '.join(part for part in (one.name, one.type, size) if part)}]"


def given_to(said: Sequence[Utterance], takes: Collection[str]) -> tuple[Utterance, ...]:
    """
    The messages with the latest files that an agent takes; of the others a line is left.

    Args:
        takes: Media types.
    """
    room = MAX_FILES_CHARS
    found: list[Utterance] = []
    for one in reversed(said):
        kept: list[Attachment] = []
        lines: list[str] = []
        for each in one.files:
            if each.data and each.type in takes and len(each.data) <= room:
                room -= len(each.data)
                kept.append(each)
            else:
                lines.append(file_line(each))
        if lines:
            text = "\n".join(part for part in (one.text, *lines) if part)
            one = structs.replace(one, text=text, files=tuple(kept))
        found.append(one)
    return tuple(reversed(found))


def cleaned(said: Sequence[Utterance], *, redact: Callable[[str], str]) -> tuple[Utterance, ...]:
    """
    Drop secrets, control characters, and empty messages; what tools said is cut.

    Characters that only join or direct others stay: scripts and emoji are written with them.
    """

    def clean(text: str) -> str:
        # Half a surrogate pair, which JavaScript writes, has no encoding.
        return redact(strip_controls(text).encode("utf-8", "replace").decode())

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
        attached = tuple(
            structs.replace(each, name=" ".join(clean(each.name[:MAX_NAME_CHARS]).split()))
            for each in one.files
        )
        one = structs.replace(one, text=clean(one.text), tools=tools, files=attached)
        if one.text.strip() or one.tools or one.files:
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


def left_out(said: Sequence[Utterance], kept: Sequence[Utterance], *, turns: int = 0) -> str:
    """
    `271 earlier turns and 2 files`, for people; empty: nothing.

    Args:
        turns: Of the whole conversation, where `said` holds only the latest.
    """
    turns = max(turns, sum(one.role == "user" for one in said))
    turns -= sum(one.role == "user" for one in kept)
    files = sum(len(one.files) for one in said) - sum(len(one.files) for one in kept)
    counted = ((turns, "earlier turn"), (files, "file"))
    return " and ".join(f"{n} {noun}{'' if n == 1 else 's'}" for n, noun in counted if n > 0)


def tokens_of(one: Utterance) -> float:
    """A rough measure, only compared with context sizes."""
    texts = len(one.text) + sum(len(tool_lines((each,))) for each in one.tools)
    attached = sum(
        TOKENS_PER_FILE + (0 if each.type.startswith("image/") else each.size_bytes / 50)
        for each in one.files
    )
    return texts / CHARS_PER_TOKEN + attached


def as_text(said: Sequence[Utterance]) -> str:
    """All of it, for a file. Only what begins a line says whose turn it is."""
    return (
        "\n\n".join(f"## {_speaker(one)}\n\n{_set_in(whole(one).splitlines())}" for one in said)
        + "\n"
    )


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
    text = whole(one)
    if len(text) > BRIEF_CHARS:
        text = f"{text[: BRIEF_CHARS - 1]}…"
    first, *rest = text.splitlines() or [""]
    said = f"> {_speaker(one)}: {first}"
    return f"{said}\n{_set_in(rest)}" if rest else said


_INSIDE = ">   "
"""Before the lines of a message but the first, so that none looks like the first of another."""


def _set_in(lines: list[str]) -> str:
    return "\n".join(f"{_INSIDE}{line}" for line in lines)


def _speaker(one: Utterance) -> str:
    return "User" if one.role == "user" else "Agent"


def whole(one: Utterance, *, between: str = "\n") -> str:
    """A message as text, with its calls and lines in the place of its files."""
    parts = (tool_lines(one.tools), one.text, "\n".join(map(file_line, one.files)))
    return between.join(part for part in parts if part)


def in_order(one: Utterance) -> Iterator[str | ToolUse]:
    """
    Yield a message as texts and calls of a shell, which every agent has: other tools are text.

    So is a call without a result, since every format demands one. It ends with a text: a call
    without one behind it reads as a turn that was interrupted.
    """
    lines: list[str] = []
    is_answered = bool(one.text.strip())
    for number, tool in enumerate(one.tools, start=1):
        is_last = number == len(one.tools) and not is_answered
        if tool.command is None or tool.outcome == "no_result" or is_last:
            lines.append(tool_lines((tool,)))
            continue
        if lines:
            yield "\n".join(lines)
            lines = []
        yield tool
    text = "\n\n".join(part for part in ("\n".join(lines), one.text) if part.strip())
    if text:
        yield text
