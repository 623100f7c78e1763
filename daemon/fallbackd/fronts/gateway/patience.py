"""Waits of the gateway: for a caller, for a backend, and before it asks one a second time."""

import math
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Literal

import anyio
from msgspec import Struct

from fallbackd.config.schema import HOLD_S, MAX_MEMORY_MB
from fallbackd.core.failures import Failure
from fallbackd.core.health import is_paused
from fallbackd.core.ids import BackendId
from fallbackd.core.policy import Backend
from fallbackd.core.protocol import Evidence
from fallbackd.core.reasons import Reason
from fallbackd.core.scopes import find_backend, scopes_of
from fallbackd.engine import callers
from fallbackd.engine.api import Engine
from fallbackd.engine.feedback import judged
from fallbackd.engine.judging import off_the_loop
from fallbackd.fronts.gateway.answers import NotAnswered, Refusal

# --- settings ------------------------------------------------------------------------------------
# What configuration decides of the gateway.


class Rules(Struct, frozen=True, kw_only=True):
    hold: Literal["commit", "whole"] = "commit"
    hold_whole: frozenset[str] = frozenset()
    """Chains and roles that hold their answers to the end, whatever `hold` says."""
    hold_s: float = HOLD_S
    commit_on_reasoning: bool = True
    """True where an answer begins with what its model thinks."""
    keepalive_s: float | None = None
    """Seconds between two keep-alives in a streamed answer that is held; None: there are none."""
    allow_metered: bool = False
    """True where a backend that bills each call may stand in for one that does not."""


class Bounds(Struct, frozen=True, kw_only=True):
    max_body_bytes: int = 32 * 1024 * 1024
    max_memory_bytes: int = MAX_MEMORY_MB * 1024 * 1024
    """Bound of what is held of all long requests and answers together."""


# --- the limit of a caller -----------------------------------------------------------------------
# How long a caller waits for the beginning of its answer, where it says so.

TIMEOUT = "x-fallbackd-timeout-s"


class CallerDeadline:
    """
    Args:
        named: The headers of the request.

    Raises:
        Refusal: The time is none.
    """

    def __init__(self, named: Mapping[str, str]) -> None:
        stated = named.get(TIMEOUT)
        self._limit_s = math.inf if stated is None else _seconds(stated)
        self._scope: anyio.CancelScope | None = None

    async def bounds(self, work: Callable[[], Awaitable[bool]]) -> bool:
        """
        Do the work, which is cancelled when the time is over and `begun` was not called.

        Raises:
            Refusal: It was.
        """
        if self._limit_s == math.inf:
            return await work()
        with anyio.move_on_after(self._limit_s) as self._scope:
            return await work()
        raise Refusal(504, f"no answer within {self._limit_s:g} s ({TIMEOUT})", "timeout")

    @property
    def is_over(self) -> bool:
        return self._scope is not None and self._scope.cancel_called

    def begun(self) -> None:
        if self._scope is not None:
            self._scope.deadline = math.inf


def _seconds(stated: str) -> float:
    try:
        found = float(stated)
    except ValueError:
        found = 0.0
    if not 0 < found < math.inf:
        raise Refusal(400, f"{TIMEOUT}: {stated[:40]!r} is not a number of seconds", "timeout")
    return found


# --- pauses before a second try ------------------------------------------------------------------
# Failures that end within seconds: the same backend is asked once more, and stays in rotation.
#
# A caller of an interactive program waits a moment for the backend that has its conversation cached
# rather than move. All requests for that backend wait alike: it is not asked by others meanwhile.

Awaited = tuple[str, str | None, str | None]
"""Backend, model, credential."""

_CHANCE_S = 0.2
"""Wait before a server that broke once is asked again; up to twice that."""
_BUSY_S = 2.0
"""Wait for one that has too much to do; up to three."""
_BLIPS = frozenset({Reason.EMPTY_RESULT, Reason.NETWORK, Reason.OVERLOADED, Reason.SERVER_ERROR})


def wait_before_second(
    failure: Failure | None,
    *,
    status: int | None,
    patience_s: float,
    luck: float,
    is_alone: bool,
) -> float | None:
    """
    Return the time to wait before the same backend is asked again; None: it is not.

    Args:
        is_alone: No other backend would answer instead.
    """
    if failure is None:
        return None
    if failure.reason is Reason.RATE_LIMIT and failure.wait_s is not None:
        return failure.wait_s if failure.wait_s <= patience_s else None
    is_chance = failure.reason is Reason.SERVER_ERROR and status == 500
    is_blip = is_alone and failure.reason in _BLIPS
    if failure.wait_s is not None or not (is_chance or is_blip):
        return None
    is_busy = failure.reason is Reason.OVERLOADED
    return _BUSY_S * (1 + luck / 2) if is_busy else _CHANCE_S * (1 + luck)


def is_usable(engine: Engine, one: Awaited) -> bool:
    """Return whether it is still configured as it was chosen, and paused by no person."""
    name, model, credential = one
    backend = find_backend(engine.settings.policy, BackendId(name))
    if backend is None or not backend.enabled or backend.lacks is not None:
        return False
    if credential not in (backend.credentials or (None,)):
        return False
    health = engine.store.peek().health
    now = engine.clock.now()
    records = (health.get(scope) for scope in scopes_of(backend, model, credential))
    return all(record is None or not is_paused(record, now=now) for record in records)


def withdrawn(one: Awaited) -> NotAnswered:
    """Make the failure in place of a call to a candidate that may not be used any more."""
    why = f"{one[0]} was paused or reconfigured while the call waited for it"
    return NotAnswered(evidence=Evidence(text=why, stream="exception"), unsuited=why)


Pause = Literal["short", "stated"]
"""What was waited for: a moment, or the time that the provider has stated."""


class Pauses:
    """The candidates that are waited for, each with its instant."""

    def __init__(self) -> None:
        self._until: dict[Awaited, float] = {}

    async def over(self, engine: Engine, one: Awaited) -> bool:
        """Wait for the pause. False: there was one, and the candidate may not be used any more."""
        has_waited = False
        while (until := self._until.get(one)) is not None:
            if until <= anyio.current_time():
                del self._until[one]
                break
            has_waited = True
            await anyio.sleep_until(until)
        return not has_waited or is_usable(engine, one)

    async def before_second(
        self, engine: Engine, one: Awaited, evidence: Evidence, *, is_alone: bool
    ) -> Pause | None:
        """
        Return when the same backend is to be asked once more. None: it is not.

        Args:
            evidence: Of its failure.
            is_alone: No other backend would answer instead.
        """
        judging = partial(judged, engine, evidence, backend=one[0])
        failure = await off_the_loop(evidence, judging)
        wait_s = wait_before_second(
            failure,
            status=evidence.http_status,
            patience_s=engine.settings.policy.patience_s("interactive"),
            luck=engine.world.luck(),
            is_alone=is_alone,
        )
        if failure is None or wait_s is None or not callers.may_retry(engine):
            return None
        self._until[one] = max(self._until.get(one, 0.0), anyio.current_time() + wait_s)
        if not (await self.over(engine, one) and is_usable(engine, one)):
            return None
        return "short" if failure.wait_s is None else "stated"


# --- the limits of a backend ---------------------------------------------------------------------

STALL_S = 180.0
"""Silence within an answer that has begun, where the backend sets none."""
WHOLE_S = 300.0
"""Limit of an answer that comes in one piece, where the backend sets no limit."""
UNSAID_S = 600.0
IN_A_ROW = 3
"""Number of callers that leave without a byte, which shows that a backend hangs."""
LEFT_S = 2.0
"""A caller that leaves earlier has changed its mind."""
SHARE = 2 / 3
"""Share of the time that a caller still waits: for a backend that others can follow."""
READ_TIMEOUT = "x-stainless-read-timeout"
"""Header of the clients of OpenAI and Anthropic: how long they wait, in seconds."""


class Patience(Struct, frozen=True, kw_only=True):
    first_s: float
    """Limit until the first words."""
    stall_s: float
    """Limit between words."""
    may_think: bool = False
    """
    An answer that was opened in time without words is no failure: what is held of it is passed on
    after `first_s`, and silence counts from then.
    """
    unsaid_s: float = UNSAID_S
    """Longest wait behind `first_s` for words of an answer that was opened."""
    is_of_caller: bool = False
    """`first_s` is what the caller allows, and less than the limit of the backend."""
    waits_for_text: bool = False
    """Thoughts of the model are held until its answer begins."""


class Impatience:
    """
    Callers that left one candidate before it said anything, one after another.

    What hangs for longer than its callers wait would never be found by a limit of ours.
    """

    def __init__(self) -> None:
        self._left: dict[Awaited, tuple[int, float]] = {}

    def heard(self, one: Awaited) -> None:
        self._left.pop(one, None)

    def left(self, one: Awaited, *, after_s: float, first_s: float) -> bool:
        """
        Count one that left. Returns whether it shows that the candidate hangs: the third, if they
        have waited for a third of its time together.

        Args:
            first_s: How long it may take until its first words.
        """
        if after_s < LEFT_S:
            return False
        count, waited_s = self._left.pop(one, (0, 0.0))
        count, waited_s = count + 1, waited_s + after_s
        if count >= IN_A_ROW and waited_s >= first_s / 3:
            return True
        self._left[one] = count, waited_s
        return False


def share_s(left_s: float, *, is_last: bool) -> float:
    """
    Return how much of the time that a caller still waits one backend has.

    Args:
        is_last: No other backend would be asked behind it.
    """
    return max(0.0, left_s) * (1.0 if is_last else SHARE)


def waits_s(named: Mapping[str, str]) -> float | None:
    """Read how long the client of a request waits for the next byte, where it says so."""
    try:
        found = float(named.get(READ_TIMEOUT, ""))
    except ValueError:
        return None
    return found if 0 < found < math.inf else None


def patience_with(
    backend: Backend | None, rules: Rules, *, is_streamed: bool, caller_s: float | None = None
) -> Patience:
    """
    Args:
        caller_s: How long the caller waits for this backend, where it is known.
    """
    own_first_s = None if backend is None else backend.first_answer_s
    own_stall_s = None if backend is None else backend.stall_s
    stall_s = own_stall_s or STALL_S
    first_s = own_first_s or (rules.hold_s if is_streamed else WHOLE_S)
    if not is_streamed:  # its first words come with its last
        first_s = max(first_s, stall_s)
    is_of_caller = not is_streamed and caller_s is not None and caller_s < first_s
    return Patience(
        first_s=caller_s if is_of_caller and caller_s is not None else first_s,
        is_of_caller=is_of_caller,
        stall_s=stall_s,
        may_think=own_first_s is None,
        waits_for_text=not rules.commit_on_reasoning,
    )
