"""Conversations, and how one is put together from what an agent has stored."""

import re
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct, structs

RoleWord = Literal["user", "assistant"]
OutcomeWord = Literal["done", "failed", "no_result"]
"""Of a call. `no_result`: none is stored, or the call was cut off; it may or may not have run."""
TITLE_OF_PROGRAM = "fallbackd"
"""Of sessions of attempts, where they have a title; one that has a title asks no model for one."""
OwnerWord = Literal["person", "program"]
"""Of a stored session: a `person` opened it or had it continued, or a `program` ran a prompt."""
NO_OUTPUT = "(no output)"
"""The result of a command that printed nothing, where a format needs one."""


class ToolUse(Struct, frozen=True, kw_only=True):
    """One call of a tool in an earlier turn, with what came back, both cut to some length."""

    name: str
    command: str | None = None
    """What was run, where it is a shell; None: another tool."""
    args: str = ""
    """For people; JSON as a rule."""
    result: str = ""
    outcome: OutcomeWord = "no_result"


class Attachment(Struct, frozen=True, kw_only=True):
    """A picture or a document that a message holds."""

    type: str
    """Its media type."""
    name: str = ""
    data: str = ""
    """In base64; empty: the agent has stored only where it was."""
    size_bytes: int = 0
    """0: not known."""


_MEDIA_TYPE = re.compile(r"[a-z]{1,20}/[\w.+-]{1,80}")
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")
_DATA_URL = re.compile(r"data:([^;,]*)(?:;[^;,]*)*;base64,")


def attachment(type: object, data: object, *, name: object = "") -> Attachment:
    """An attachment of what an agent has stored, whatever that is."""
    is_type = isinstance(type, str) and _MEDIA_TYPE.fullmatch(type)
    is_data = isinstance(data, str) and _BASE64.fullmatch(data)
    return Attachment(
        type=str(type) if is_type else "application/octet-stream",
        name=name if isinstance(name, str) else "",
        data=str(data) if is_data else "",
        size_bytes=len(str(data)) * 3 // 4 if is_data else 0,
    )


def attachment_at(url: object, *, type: object = None, name: object = "") -> Attachment:
    """Return the same of a `data:` URL; of another one nothing is fetched."""
    found = _DATA_URL.match(url) if isinstance(url, str) else None
    if found is None or not isinstance(url, str):
        return attachment(type, None, name=name)
    return attachment(type or found[1], url[found.end() :], name=name)


class Utterance(Struct, frozen=True, kw_only=True):
    """One message of an earlier turn, by a user or by an agent."""

    role: RoleWord
    text: str
    tools: tuple[ToolUse, ...] = ()
    """Used before the text was written."""
    files: tuple[Attachment, ...] = ()
    """Beside the text."""


_PLAIN_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}")
"""It can be a word of a command line, and a part of a path or pattern, that means nothing else."""


def is_plain_id(id: str) -> bool:
    """Return whether a name of a conversation may be used: a program may have made it up."""
    return _PLAIN_ID.fullmatch(id) is not None


_JOINERS = "\u200c\u200d"


class Stored(Struct, frozen=True, kw_only=True):
    """A conversation as it was read."""

    id: str = ""
    cwd: str = ""
    said: tuple[Utterance, ...] = ()

    @property
    def first_words(self) -> str:
        """Return the first words of the user, for a list."""
        text = next((one.text for one in self.said if one.role == "user"), "")
        shown = (c if c.isprintable() or c in _JOINERS else " " for c in text[:400])
        return " ".join("".join(shown).split())[:120]


class Listener:
    """
    Puts messages together from texts, calls of tools and their results, as they come.

    A result may come after the text that follows its call, so calls join their messages at the end.
    """

    def __init__(self) -> None:
        self._said: list[Utterance] = []
        self._used: list[list[int]] = []
        """For each message, its calls."""
        self._calls: list[ToolUse] = []
        self._by_name: dict[str, int] = {}
        """The last call of each id."""
        self._open: list[int] = []
        """Calls without a message yet."""

    def user(self, text: str, files: Sequence[Attachment] = ()) -> None:
        asked = Utterance(role="user", text=text.strip("\n"), files=tuple(files))
        if not asked.text.strip() and not files:
            return
        self._end_tools()
        if not self._said or self._said[-1] != asked:
            self._add(asked)  # an attempt that is repeated says it once more

    def agent(self, text: str) -> None:
        text = text.strip("\n")
        if not text.strip():
            return
        last = self._said[-1] if self._said else None
        if last is not None and last.role == "assistant" and last.text and not self._open:
            self._said[-1] = structs.replace(last, text=f"{last.text}\n\n{text}")
            return
        self._add(Utterance(role="assistant", text=text))

    def tool(self, call: str, use: ToolUse) -> None:
        """A call that is still open is described once more by the same id."""
        number = self._by_name.get(call) if call else None
        if number is not None and number in self._open:
            self._calls[number] = use
            return
        self._by_name[call] = len(self._calls)
        self._open.append(len(self._calls))
        self._calls.append(use)

    def use_of(self, call: str) -> ToolUse | None:
        """The last call with this id, as far as it is known."""
        number = self._by_name.get(call) if call else None
        return None if number is None else self._calls[number]

    def result(self, call: str, text: str, *, outcome: OutcomeWord) -> None:
        number = self._by_name.get(call) if call else None
        if number is not None:
            text = "" if text == NO_OUTPUT else text
            self._calls[number] = structs.replace(self._calls[number], result=text, outcome=outcome)

    def forget(self, turns: int) -> None:
        """The last turns were taken back."""
        self._end_tools()
        while turns > 0 and self._said:
            self._used.pop()
            turns -= self._said.pop().role == "user"

    def clear(self) -> None:
        self._said, self._used, self._open = [], [], []

    def said(self) -> tuple[Utterance, ...]:
        self._end_tools()
        return tuple(
            structs.replace(one, tools=tuple(self._calls[number] for number in used))
            for one, used in zip(self._said, self._used, strict=True)
        )

    def _add(self, one: Utterance) -> None:
        self._said.append(one)
        self._used.append(self._open)
        self._open = []

    def _end_tools(self) -> None:
        if self._open:
            self._add(Utterance(role="assistant", text=""))


def alternating(said: Sequence[Utterance]) -> tuple[Utterance, ...]:
    """Messages of a user that follow each other are one message, as some APIs demand."""
    found: list[Utterance] = []
    for one in said:
        if found and one.role == found[-1].role == "user":
            text = "\n\n".join(part for part in (found[-1].text, one.text) if part)
            files = (*found[-1].files, *one.files)
            found[-1] = structs.replace(found[-1], text=text, files=files)
        else:
            found.append(one)
    return tuple(found)
