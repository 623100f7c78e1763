"""
Decisions that need a human: what they are, and how they are closed.

    opened ── answered (by whom, with what) ──▶ the work continues, or ends as was chosen
       └───── closed without an answer ───────▶ the work ended otherwise: cancelled, out of time

A question lives in the record of its delegation: both change in one decision, and outlive a
restart together. There is no default choice, and none is made by time.
"""

import re
from collections.abc import Mapping
from typing import Literal

from msgspec import Struct, structs

from fallbackd.core.ids import DelegationId

QuestionKind = Literal["outage", "consent", "partial", "must_differ"]

USE = "use:"
"""Begins a choice that names a backend: `use:codex`."""

_ID = re.compile(r"(.+)\.q[1-9][0-9]*")


class Option(Struct, frozen=True, kw_only=True):
    choice: str
    """`wait`, `skip`, `stop`, `hand_back`, or `use:BACKEND`."""
    text: str


class AnsweredBy(Struct, frozen=True, kw_only=True):
    """The process that gave the answer, as reported by the kernel."""

    uid: int
    pid: int | None = None
    attempt: str | None = None
    """The one in which that process ran; null: a person answered."""


class Question(Struct, frozen=True, kw_only=True):
    question: str
    """`<delegation>.q<n>`, n from 1."""
    delegation: DelegationId
    session: str
    role: str | None = None
    asked_by: str | None = None
    """The attempt that asked for the work; null: a person did."""
    kind: QuestionKind
    text: str
    options: tuple[Option, ...]
    opened_at: float
    deadline_at: float | None = None
    """When the work ends without an answer; null: it waits for ever."""
    answered_at: float | None = None
    answered_by: AnsweredBy | None = None
    choice: str | None = None
    note: str | None = None
    closed_at: float | None = None
    """When it stopped to matter, answered or not."""

    @property
    def is_open(self) -> bool:
        return self.closed_at is None


def question_id(delegation: DelegationId, number: int) -> str:
    return f"{delegation}.q{number}"


def delegation_asking(question: str) -> DelegationId | None:
    """The delegation that a question belongs to; None: this is the name of no question."""
    found = _ID.fullmatch(question)
    return None if found is None else DelegationId(found[1])


def find(questions: tuple[Question, ...], name: str) -> Question | None:
    return next((one for one in questions if one.question == name), None)


def open_one(questions: tuple[Question, ...]) -> Question | None:
    """The open question of a delegation: never more than one, always the last."""
    return questions[-1] if questions and questions[-1].is_open else None


def closed(questions: tuple[Question, ...], *, now: float) -> tuple[Question, ...]:
    """The same, with none open."""
    if open_one(questions) is None:
        return questions
    return (*questions[:-1], structs.replace(questions[-1], closed_at=now))


def shifted(questions: tuple[Question, ...], by_s: float) -> tuple[Question, ...]:
    """The wall clock was set: the deadline of the open one moves with it."""
    last = open_one(questions)
    if last is None or last.deadline_at is None:
        return questions
    return (*questions[:-1], structs.replace(last, deadline_at=last.deadline_at + by_s))


def options_with(usable: Mapping[str, str], *, wait: str | None) -> tuple[Option, ...]:
    """
    What may be chosen.

    Args:
        usable: Backends that could go on now, each with the rules that speak against it, or "".
        wait: What waiting would wait for; None: there is nothing to wait for.
    """
    found = [
        Option(choice=f"{USE}{name}", text=f"let {name} do it" + (why and f" ({why})"))
        for name, why in usable.items()
    ]
    if wait is not None:
        found.append(Option(choice="wait", text=wait))
    found += [
        Option(choice="skip", text="do without this piece of work"),
        Option(choice="hand_back", text="hand it back: the caller does it"),
        Option(choice="stop", text="cancel it"),
    ]
    return tuple(found)
