"""Calls of a front that watches opencode sessions."""

import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import anyio
import msgspec
from msgspec import Struct, structs

from fallbackd.classify.rules import Rule
from fallbackd.core.events import (
    RedirectAsked,
    RescueAdvanced,
    RescueProgress,
    SessionCompacted,
    SessionEnded,
    TurnAnswered,
    TurnBegan,
    TurnEnded,
    TurnFailed,
    TurnUsed,
)
from fallbackd.core.failures import Failure, make_failure
from fallbackd.core.ids import LEASE_PREFIX, AttemptId, BackendId, SessionId
from fallbackd.core.opencode.session import (
    Unprotected,
    backend_of,
    in_project,
    longest_windows,
    why_unprotected,
)
from fallbackd.core.opencode.turns import Redirect, Ruled
from fallbackd.core.policy import Project
from fallbackd.core.protocol import Evidence, Usage
from fallbackd.core.reasons import Reason
from fallbackd.core.records import Session
from fallbackd.engine.api import Engine
from fallbackd.engine.judging import judge, off_the_loop, texts_of, without_quotations

KIND = "opencode"
AGAIN_KEY = "opencode_again"
MAX_AGAIN_BYTES = 16 * 1024 * 1024
"""Messages of one rescue that are kept; those of a larger one are at its server alone."""
MAX_SERVED = 50_000
"""Models that are remembered; a server lists some thousands."""
_TICKS = re.compile(r"msg_([0-9a-f]{12})")
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class Where(Struct, frozen=True, kw_only=True):
    """A session, with what is known about it at its server."""

    session: str
    server: str = ""
    project: str = ""
    """The directory whose files hold for it."""
    agent: str | None = None


class Again(Struct, kw_only=True):
    """A message of the user, or a request to compact, that is sent again to another model."""

    model: str
    info: dict[str, Any]  # any JSON
    parts: list[dict[str, Any]]  # any JSON
    compacts: bool = False
    continues: bool = False
    id: str = ""
    """Under which it is sent; empty: not chosen yet."""
    behind: str = ""
    """The message before a request to compact, whose id the server chooses."""


_AGAIN = msgspec.json.Decoder(dict[str, list[Again]])


class Watched:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._keeping = anyio.Lock()

    @property
    def now(self) -> float:
        return self._engine.clock.now()

    @property
    def loop_steps(self) -> int:
        return self._engine.settings.policy.defaults.loop_steps

    def backend_of(self, model: str) -> BackendId:
        return backend_of(self._engine.settings.policy, model)

    def know(self, models: Iterable[str], *, contexts: Mapping[str, int] = {}) -> None:
        """
        These models can be used: an opencode server offers them, or has just used them.

        Args:
            contexts: How many tokens some of them hold.
        """
        settings = self._engine.settings
        served, known = settings.policy.served, settings.policy.contexts
        more = frozenset(models) - served
        is_news = more or any(known.get(name) != size for name, size in contexts.items())
        if not is_news or len(served) + len(more) > MAX_SERVED:
            return
        policy = structs.replace(
            settings.policy, served=served | more, contexts={**known, **contexts}
        )
        self._engine.settings = structs.replace(settings, policy=policy)

    def take_projects(self, projects: Mapping[str, Project]) -> None:
        """Take what the files of opencode projects say now, by directory."""
        settings = self._engine.settings
        if settings.policy.projects == projects:
            return
        policy = structs.replace(
            settings.policy, projects=projects, windows=longest_windows(projects.values())
        )
        self._engine.settings = structs.replace(settings, policy=policy)

    def why_unprotected(self, directory: str) -> Unprotected | None:
        """Reason why no failed turn of a session there would be moved."""
        return why_unprotected(in_project(self._engine.settings.policy, directory))

    # --- turns -----------------------------------------------------------------------------

    async def began(self, where: Where, *, message: str, model: str) -> None:
        self.know((model,))
        await self._engine.handle(
            TurnBegan(
                session=SessionId(where.session),
                message=message,
                backend=self.backend_of(model),
                server=where.server,
                project=where.project,
                role=where.agent,
            )
        )

    async def answered(self, session: str, *, message: str, model: str) -> None:
        await self._engine.handle(
            TurnAnswered(
                session=SessionId(session), message=message, backend=self.backend_of(model)
            )
        )

    async def ended(self, session: str) -> None:
        await self._engine.handle(TurnEnded(session=SessionId(session)))

    async def used(
        self, session: str, *, message: str, model: str, usage: Usage, at: float
    ) -> None:
        await self._engine.handle(
            TurnUsed(
                session=SessionId(session),
                message=message,
                backend=self.backend_of(model),
                usage=usage,
                at=at,
            )
        )

    async def compacted(self, session: str) -> None:
        await self._engine.handle(SessionCompacted(session=SessionId(session)))

    async def deleted(self, session: str) -> None:
        await self._engine.handle(SessionEnded(session=SessionId(session)))

    # --- failures --------------------------------------------------------------------------

    async def judge(
        self, evidence: Evidence, *, model: str, rules: Sequence[Rule] = (), asked: Any = None
    ) -> Failure:
        """
        Args:
            rules: Of the project, before all others.
            asked: JSON with what was asked, of which nothing is kept where the error repeats it.
        """
        engine = self._engine
        judging = partial(
            judge,
            evidence,
            engine.settings,
            engine.world.kinds.get(KIND),
            self.backend_of(model),
            now=self.now,
            own_rules=tuple(rules),
            conceal=engine.world.conceal,
            model=engine.world.taught.model(),
        )
        prompt = texts_of(asked)

        def judged() -> Failure | None:
            failure = judging() or make_failure(
                Reason.UNKNOWN,
                now=self.now,
                confidence="structured",
                signature="fallbackd/opencode",
                evidence=engine.world.redact(evidence.text)
                or "an opencode server says that a turn failed, and not why",
            )
            return without_quotations(failure, prompt)

        failure = await off_the_loop(evidence, judged, beside=len(prompt))
        assert failure is not None
        return failure

    async def failed(
        self,
        where: Where,
        *,
        message: str,
        model: str,
        failure: Failure,
        wrote: bool = False,
        is_child: bool = False,
        can_move: bool = False,
        is_awaited: bool = False,
        is_late: bool = False,
        compacts: bool = False,
        continues: bool = False,
        latest: str = "",
        retries_since_at: float | None = None,
    ) -> Ruled:
        """
        Args:
            is_awaited: A program waits for the turn, and takes its end for the answer.
            retries_since_at: Of the server itself; None: the turn is over.
            is_late: The server itself says that this is not so any more.
            compacts: `message` asks for a compaction.
            continues: Which the server began by itself.
            latest: The last message of the session.
        """
        self.know((model,))
        engine = self._engine
        decision = await engine.handle(
            TurnFailed(
                session=SessionId(where.session),
                message=message,
                backend=self.backend_of(model),
                failure=failure,
                server=where.server,
                project=where.project,
                role=where.agent,
                wrote=wrote,
                is_child=is_child,
                can_move=can_move,
                is_awaited=is_awaited,
                retries_since_at=retries_since_at,
                is_late=is_late,
                compacts=compacts,
                continues=continues,
                has_route=failure.reason is not Reason.NETWORK or engine.world.has_route(),
                rescue=engine.world.mint(),
                new_message=message_id(latest or message, now=self.now),
                luck=engine.world.luck(),
            )
        )
        assert isinstance(decision.answer, Ruled)
        return decision.answer

    async def advance(
        self,
        session: str,
        rescue: str,
        outcome: RescueProgress,
        *,
        detail: str = "",
        message: str = "",
    ) -> bool:
        """False: the rescue is not this owner's any more."""
        decision = await self._engine.handle(
            RescueAdvanced(
                session=SessionId(session),
                rescue=rescue,
                outcome=outcome,
                detail=detail,
                message=message,
            )
        )
        return decision.answer is True

    async def keep(self, rescue: str, messages: Sequence[Again]) -> None:
        """
        Keep what a rescue sends until it has ended: its server forgets the messages that are taken
        back before it has them again.
        """
        is_known = rescue in await self._kept()
        if len(msgspec.json.encode(messages)) > MAX_AGAIN_BYTES or not (messages or is_known):
            return
        alive = {one.rescue.id for one in await self.unfinished() if one.rescue is not None}
        async with self._keeping:
            kept = {k: one for k, one in (await self._kept()).items() if k in alive}
            kept.pop(rescue, None)
            if messages:
                kept[rescue] = list(messages)
            await self._engine.store.set_meta(AGAIN_KEY, msgspec.json.encode(kept).decode())

    async def kept(self, rescue: str) -> list[Again]:
        """Messages of a rescue that an earlier run of the daemon has kept."""
        return (await self._kept()).get(rescue, [])

    async def _kept(self) -> dict[str, list[Again]]:
        try:
            return _AGAIN.decode(await self._engine.store.get_meta(AGAIN_KEY) or "{}")
        except (msgspec.DecodeError, RecursionError):
            return {}

    async def session(self, session: str) -> Session | None:
        return await self._engine.store.session(SessionId(session))

    async def unfinished(self) -> list[Session]:
        """Sessions whose rescue is under way, of this run of the daemon or of an earlier one."""
        limit = self._engine.settings.policy.defaults.max_sessions
        found = await self._engine.store.sessions(limit=limit)
        return [one for one in found if one.rescue is not None]

    async def living_at(self, server: str) -> list[Session]:
        """Sessions on record that were last seen at a server."""
        limit = self._engine.settings.policy.defaults.max_sessions
        found = await self._engine.store.sessions(limit=limit)
        return [one for one in found if one.server == server]

    # --- before a message is sent ----------------------------------------------------------

    async def redirect(self, where: Where, *, model: str) -> Redirect:
        self.know((model,))
        decision = await self._engine.handle(
            RedirectAsked(
                session=SessionId(where.session),
                backend=self.backend_of(model),
                server=where.server,
                project=where.project,
                role=where.agent,
                lease=AttemptId(f"{LEASE_PREFIX}{self._engine.world.mint()}"),
            )
        )
        assert isinstance(decision.answer, Redirect)
        return decision.answer


def message_id(before: str, *, number: int = 1, now: float) -> str:
    """
    An id as opencode makes them, that sorts directly behind `before`.

    Not by our own clock: a message that sorts behind its answer is answered again without end.

    Args:
        before: The latest message of the session.
        number: 1 for the first one behind it, 2 for the second.

    Source: ids of opencode 1.18.33, 48 bits of (milliseconds · 4096 + counter) in hexadecimal,
    then 14 letters and digits.
    """
    found = _TICKS.match(before)
    ticks = int(now * 1000) << 12 if found is None else int(found[1], 16)
    tail = "".join(secrets.choice(_DIGITS) for _ in range(14))
    return f"msg_{(ticks + number) & 0xFFFFFFFFFFFF:012x}{tail}"
