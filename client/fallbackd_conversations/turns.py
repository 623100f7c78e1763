"""What a conversation is, and how one is put together from what an agent has stored."""

from collections.abc import Iterator, Sequence
from typing import Literal

from msgspec import Struct, structs

RoleWord = Literal["user", "assistant"]


class ToolUse(Struct, frozen=True, kw_only=True):
    """One call of a tool in an earlier turn, with what came back, both cut to some length."""

    name: str
    command: str | None = None
    """What was run, where it is a shell; None: another tool."""
    args: str = ""
    """For people; JSON as a rule."""
    result: str = ""
    ok: bool = True


class Utterance(Struct, frozen=True, kw_only=True):
    """One message of an earlier turn, by a user or by an agent."""

    role: RoleWord
    text: str
    tools: tuple[ToolUse, ...] = ()
    """Used before the text was written."""


class Stored(Struct, frozen=True, kw_only=True):
    """A conversation as it was read."""

    id: str = ""
    cwd: str = ""
    said: tuple[Utterance, ...] = ()

    @property
    def first_words(self) -> str:
        """Of the user, for a list."""
        text = next((one.text for one in self.said if one.role == "user"), "")
        return " ".join("".join(c if c.isprintable() else " " for c in text[:400]).split())[:120]


class Listener:
    """Puts messages together from texts, calls of tools and their results, as they come."""

    def __init__(self) -> None:
        self._said: list[Utterance] = []
        self._tools: dict[str, ToolUse] = {}

    def user(self, text: str) -> None:
        asked = Utterance(role="user", text=text.strip("\n"))
        if not asked.text.strip():
            return
        self._end_tools()
        if not self._said or self._said[-1] != asked:
            self._said.append(asked)  # an attempt that is repeated says it once more

    def agent(self, text: str) -> None:
        text = text.strip("\n")
        if not text.strip():
            return
        last = self._said[-1] if self._said else None
        if last is not None and last.role == "assistant" and last.text and not self._tools:
            self._said[-1] = structs.replace(last, text=f"{last.text}\n\n{text}")
            return
        tools, self._tools = tuple(self._tools.values()), {}
        self._said.append(Utterance(role="assistant", text=text, tools=tools))

    def tool(self, call: str, use: ToolUse) -> None:
        self._tools[call or f"#{len(self._tools)}"] = use

    def result(self, call: str, text: str, *, ok: bool = True) -> None:
        if call in self._tools:
            self._tools[call] = structs.replace(self._tools[call], result=text, ok=ok)

    def forget(self, turns: int) -> None:
        """The last turns were taken back."""
        self._end_tools()
        while turns > 0 and self._said:
            turns -= self._said.pop().role == "user"

    def clear(self) -> None:
        self._said, self._tools = [], {}

    def said(self) -> tuple[Utterance, ...]:
        self._end_tools()
        return tuple(self._said)

    def _end_tools(self) -> None:
        if self._tools:
            tools, self._tools = tuple(self._tools.values()), {}
            self._said.append(Utterance(role="assistant", text="", tools=tools))


def alternating(said: Sequence[Utterance]) -> tuple[Utterance, ...]:
    """Messages of a user that follow each other are one message, as some APIs demand."""
    found: list[Utterance] = []
    for one in said:
        if found and one.role == found[-1].role == "user":
            found[-1] = structs.replace(found[-1], text=f"{found[-1].text}\n\n{one.text}")
        else:
            found.append(one)
    return tuple(found)


def in_order(one: Utterance) -> Iterator[str | ToolUse]:
    """
    A message as texts and calls of a shell, which every agent has: other tools are text.

    It ends with a text: a call without one behind it reads as a turn that was interrupted.
    """
    from fallbackd_conversations.words import tool_lines

    lines: list[str] = []
    is_answered = bool(one.text.strip())
    for number, tool in enumerate(one.tools, start=1):
        if tool.command is None or (number == len(one.tools) and not is_answered):
            lines.append(tool_lines((tool,)))
            continue
        if lines:
            yield "\n".join(lines)
            lines = []
        yield tool
    text = "\n\n".join(part for part in ("\n".join(lines), one.text) if part.strip())
    if text:
        yield text
