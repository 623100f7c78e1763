"""
Watch over one attempt: what it shows while it runs, and which of its limits is over.

The engine folds every observation into a `Watch`; `expiry` says when it has to be looked at
again, or which limit has been passed. Output that comes often costs nothing here.
"""

from typing import Literal

from msgspec import Struct, structs

from fallbackd.core.protocol import (
    AgentStep,
    AgentText,
    Conversation,
    FiguresSeen,
    GivenUp,
    Observation,
    Output,
    Phase,
    ProviderAnswered,
    Retrying,
    ToolEnded,
    ToolStarted,
    Usage,
)
from fallbackd.core.reasons import Reason

MAX_OUTSIDE = 20
THINKING, WRITING, WAITING = "thinking", "writing", "waiting"
"""Phases. Besides them one is the name of the tool that runs."""
EffectsWord = Literal["none", "possible", "seen", "external"]
"""Effects of an attempt beside talking: perhaps changed files (`possible`), certainly (`seen`),
or done something that no directory shows: sent, published or committed it (`external`)."""
_RANK: dict[EffectsWord, int] = {"none": 0, "possible": 1, "seen": 2, "external": 3}


def worse(left: EffectsWord, right: EffectsWord) -> EffectsWord:
    return left if _RANK[left] >= _RANK[right] else right


class RunningTool(Struct, frozen=True, kw_only=True):
    call: str
    since_at: float
    outside: str = ""
    """Its action outside; empty: nothing that is known."""
    all_or_nothing: bool = False
    """If it fails, it has done nothing outside."""


class Watch(Struct, frozen=True, kw_only=True):
    started_at: float
    first_output_at: float | None = None
    answered_at: float | None = None
    last_output_at: float | None = None
    tools: tuple[RunningTool, ...] = ()
    """The tool calls that are under way."""
    step: str | None = None
    repeats: int = 0
    """Number of times that `step` came in a row."""
    tool_effects: EffectsWord = "none"
    """Effects of its tools, inside of the directory."""
    acted: tuple[str, ...] = ()
    """Actions outside, by those of its tools that have ended."""
    phase: str | None = None
    usage: Usage = Usage()

    @property
    def outside(self) -> tuple[str, ...]:
        """Things done outside, or maybe done by now by a call that has no result yet."""
        return tuple(dict.fromkeys((*self.acted, *self.unfinished)))[:MAX_OUTSIDE]

    @property
    def unfinished(self) -> tuple[str, ...]:
        """Things that may or may not have been done outside."""
        running = (one.outside for one in self.tools if one.outside)
        return tuple(dict.fromkeys(one for one in running if one not in self.acted))

    @property
    def effects(self) -> EffectsWord:
        return "external" if self.outside else self.tool_effects


class WatchLimits(Struct, frozen=True, kw_only=True):
    """All in seconds."""

    first_output_s: float
    first_answer_s: float
    stall_s: float
    busy_stall_s: float
    total_s: float | None = None
    """For the whole attempt, however busy it is; None: no limit."""
    loop_steps: int = 20
    shows_answer: bool = True
    """False: the output does not show `provider_answered`; then its limit is the first output."""


class Passed(Struct, frozen=True, kw_only=True):
    """A limit that is over."""

    reason: Reason
    detail: str
    evidence: str


def see(watch: Watch, seen: Observation, *, now: float) -> Watch:
    """Fold one observation in. Anything seen is output, but for text that is said once more."""
    if isinstance(seen, AgentText) and seen.again:
        return watch
    fresh = structs.replace(
        watch,
        first_output_at=now if watch.first_output_at is None else watch.first_output_at,
        last_output_at=now,
    )
    match seen:
        case Output() | Conversation() | FiguresSeen() | GivenUp():
            return fresh
        case Retrying():
            return structs.replace(fresh, phase=WAITING)
        case AgentText():
            return fresh if fresh.phase == WRITING else structs.replace(fresh, phase=WRITING)
        case ProviderAnswered():
            return _answered(fresh, now)
        case Phase(word):
            return structs.replace(fresh, phase=word)
        case Usage():
            return structs.replace(fresh, usage=seen)
        case ToolStarted():
            return _tool_started(_stepped(_answered(fresh, now), seen.key), seen, now=now)
        case ToolEnded():
            return _tool_ended(fresh, seen)
        case AgentStep():
            return _stepped(fresh, seen.key)


def _tool_started(watch: Watch, seen: ToolStarted, *, now: float) -> Watch:
    tool = RunningTool(
        call=seen.call,
        since_at=now,
        outside=seen.outside,
        all_or_nothing=seen.all_or_nothing,
    )
    return structs.replace(
        watch,
        tools=(*watch.tools, tool),
        tool_effects=worse(watch.tool_effects, seen.effects),
        phase=seen.name,
    )


def _tool_ended(watch: Watch, seen: ToolEnded) -> Watch:
    left = list(watch.tools)
    acted: tuple[str, ...] = ()
    for index, tool in enumerate(left):
        if tool.call == seen.call:
            is_undone = seen.failed and tool.all_or_nothing
            acted = () if is_undone or not tool.outside else (tool.outside,)
            del left[index]
            break
    phase = watch.phase if left else THINKING
    return structs.replace(watch, tools=tuple(left), acted=_with(watch.acted, acted), phase=phase)


def _with(acted: tuple[str, ...], more: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*acted, *more)))[:MAX_OUTSIDE]


def _answered(watch: Watch, now: float) -> Watch:
    if watch.answered_at is not None:
        return watch
    return structs.replace(watch, answered_at=now)


def _stepped(watch: Watch, key: str) -> Watch:
    repeats = watch.repeats + 1 if key == watch.step else 1
    return structs.replace(watch, step=key, repeats=repeats)


def shift(watch: Watch, by_s: float) -> Watch:
    """Move every instant: the wall clock was set by `by_s` seconds."""

    def moved(at: float | None) -> float | None:
        return None if at is None else at + by_s

    return structs.replace(
        watch,
        started_at=watch.started_at + by_s,
        first_output_at=moved(watch.first_output_at),
        answered_at=moved(watch.answered_at),
        last_output_at=moved(watch.last_output_at),
        tools=tuple(structs.replace(one, since_at=one.since_at + by_s) for one in watch.tools),
    )


def expiry(watch: Watch, limits: WatchLimits, *, now: float) -> Passed | float:
    """
    The limit that is over at `now`, or the instant of the next look.

    Before the first output a limit is a `timeout`, after it each is `stalled`.
    """
    if watch.repeats >= limits.loop_steps:
        return Passed(
            reason=Reason.STALLED,
            detail="loop",
            evidence=f"the same step {watch.repeats} times in a row",
        )
    due: list[tuple[float, Passed]] = []
    if watch.first_output_at is None:
        limit_s = min(limits.first_output_s, limits.first_answer_s)
        due.append(
            (
                watch.started_at + limit_s,
                Passed(
                    reason=Reason.TIMEOUT,
                    detail="first_output",
                    evidence=f"no output within {limit_s:g} s",
                ),
            )
        )
    elif watch.answered_at is None and limits.shows_answer:
        due.append(
            (
                watch.started_at + limits.first_answer_s,
                Passed(
                    reason=Reason.STALLED,
                    detail="first_answer",
                    evidence=f"no answer of the provider within {limits.first_answer_s:g} s",
                ),
            )
        )
    if watch.last_output_at is not None:
        busy = bool(watch.tools)
        limit_s = limits.busy_stall_s if busy else limits.stall_s
        since_at = watch.last_output_at
        due.append(
            (
                since_at + limit_s,
                Passed(
                    reason=Reason.STALLED,
                    detail="busy" if busy else "silent",
                    evidence=f"silent for {limit_s:g} s" + (" inside a tool" if busy else ""),
                ),
            )
        )
    if limits.total_s is not None:
        is_late = watch.first_output_at is not None
        due.append(
            (
                watch.started_at + limits.total_s,
                Passed(
                    reason=Reason.STALLED if is_late else Reason.TIMEOUT,
                    detail="total",
                    evidence=f"not done within {limits.total_s:g} s",
                ),
            )
        )
    at, passed = min(due, key=lambda pair: pair[0])
    return passed if now >= at else at
