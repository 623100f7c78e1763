"""
Reads the journal beside the daemon and sends the notifications that the user has chosen.

    journal ──▶ rules: is it one? ──▶ pacing: is it news? ──▶ way: delivered ──▶ place on record

Each way has a recorded place of its own in the journal, so that a daemon that was killed resumes
there. It never makes anything wait: the journal is read beside the work.
"""

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.abc
import structlog
from msgspec import structs

from fallbackd.config.schema import Notify
from fallbackd.core import meter
from fallbackd.core.decision import Journaled
from fallbackd.core.ids import BackendId
from fallbackd.engine.api import Engine
from fallbackd.engine.live import Progress
from fallbackd.fronts.notify.rules import (
    Absences,
    Notification,
    Program,
    Undelivered,
    Way,
    Webhook,
    near_cap,
    notification_of,
)

if TYPE_CHECKING:
    import httpx2


# --- how often -----------------------------------------------------------------------------------
# Not the same again and again, and not more than a person can read.

HOUR_S = 3600.0


class Pacing:
    """
    Args:
        now: Any clock that only goes forward.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._sent_at: dict[str, float] = {}
        self._last_hour: deque[float] = deque()
        self.left_out = 0
        """Since the last one that was let through."""

    def lets_through(self, key: str, *, repeat_after_s: float, max_per_hour: int) -> bool:
        now = self._now()
        longest_s = max(HOUR_S, repeat_after_s)
        self._sent_at = {one: at for one, at in self._sent_at.items() if now - at < longest_s}
        while self._last_hour and now - self._last_hour[0] >= HOUR_S:
            self._last_hour.popleft()
        if key in self._sent_at and now - self._sent_at[key] < repeat_after_s:
            return False
        if len(self._last_hour) >= max_per_hour:
            self.left_out += 1
            return False
        self._sent_at[key] = now
        self._last_hour.append(now)
        return True


# --- the front -----------------------------------------------------------------------------------

log = structlog.get_logger("notify")

PAGE = 200
MAX_AGE_S = 3600.0
"""Age at which an event is no news."""
FIRST_PAUSE_S = 1.0
BROKEN_PAUSE_S = 60.0
SHOWN_CHARS = 200
"""Characters of a prompt or an answer, where text is included."""


class NotifyFront:
    """
    Args:
        claims: Directory of its own, for what programs are started by.
        find: Gives the HTTP client for an address.
    """

    def __init__(
        self, engine: Engine, claims: Path, find: Callable[[str], "httpx2.AsyncClient"]
    ) -> None:
        self._engine = engine
        self._claims = claims
        self._find = find
        self._settings = Notify()
        self._changed = anyio.Event()
        self._happened = anyio.Event()
        self._delivering = anyio.Lock()
        """One program at a time, that of a trial included."""

    def configure(self, settings: Notify) -> None:
        if settings != self._settings:
            self._settings = settings
            self._changed.set()

    async def run(self) -> None:
        """Run until cancelled."""
        stop = self._engine.subscribe(self._hear)
        try:
            while True:
                self._changed = anyio.Event()
                settings = self._settings
                async with anyio.create_task_group() as tasks:
                    for name, way in self._ways(settings).items():
                        if way is None:
                            await self._forget_place(name)
                        else:
                            tasks.start_soon(self._follow, way, settings)
                    await self._changed.wait()
                    tasks.cancel_scope.cancel()
        finally:
            stop()

    async def test(self) -> dict[str, str | None]:
        """Deliver one now. By way: None where it went well, else why not."""
        now = self._engine.clock.now()
        one = Notification(
            id=f"test-{self._engine.world.mint()}",
            event="test",
            title="fallbackd: test",
            text="Notifications of fallbackd arrive.",
            at=now,
            key="test",
        )
        found: dict[str, str | None] = {}
        for name, way in self._ways(self._settings).items():
            if way is None:
                continue
            try:
                async with self._delivering:
                    await way.deliver(one)
                found[name] = None
            except Undelivered as error:
                found[name] = self._engine.world.redact(str(error))
            finally:
                way.forget(one.id)
        return found

    def _ways(self, settings: Notify) -> dict[str, Way | None]:
        environ = self._engine.world.of_person
        return {
            Program.name: Program(settings.command, self._claims, environ)
            if settings.command
            else None,
            Webhook.name: None if settings.url is None else Webhook(settings.url, self._find),
        }

    def _hear(self, told: Journaled | Progress) -> None:
        if isinstance(told, Journaled):
            self._happened.set()
            self._happened = anyio.Event()

    # --- one way -------------------------------------------------------------------------------

    async def _follow(self, way: Way, settings: Notify) -> None:
        while True:
            try:
                await self._follow_journal(way, settings)
            except Exception:  # a notification must not stop the work that it is about
                log.exception("notify.broke", way=way.name)
                await anyio.sleep(BROKEN_PAUSE_S)

    async def _follow_journal(self, way: Way, settings: Notify) -> None:
        pacing = Pacing(anyio.current_time)
        place = kept = await self._place(way)
        absences = Absences(self._engine.snapshot().health.values())
        while True:
            happened = self._happened
            page = await self._engine.store.journal(after_seq=place, limit=PAGE)
            for entry in page:
                place = entry.seq
                if await self._take(way, entry, settings, pacing, absences):
                    kept = await self._keep_place(way.name, place)
                    way.tidy(up_to_seq=place)
            if not page:
                if place != kept:
                    kept = await self._keep_place(way.name, place)
                await happened.wait()

    async def _take(
        self, way: Way, entry: Journaled, settings: Notify, pacing: Pacing, absences: Absences
    ) -> bool:
        """Returns whether it was a notification, sent or not."""
        try:
            was_absent = absences.saw(entry)
            one = await self._chosen(entry, settings, was_absent=was_absent)
            if one is None:
                return False
            if pacing.lets_through(
                one.key,
                repeat_after_s=settings.repeat_after_s,
                max_per_hour=settings.max_per_hour,
            ):
                await self._deliver(way, _with_left_out(one, pacing))
        except Exception:  # one event that breaks must not be the end of all others
            log.exception("notification.broke", way=way.name, seq=entry.seq)
        return True

    async def _place(self, way: Way) -> int:
        """Find where to continue: behind what was delivered last, or now if nothing was."""
        kept = await self._engine.store.get_meta(_fact(way.name))
        last = self._engine.store.last_seq
        is_known = bool(kept) and kept is not None and kept.isdecimal() and int(kept) <= last
        place = int(kept) if is_known and kept is not None else last
        way.tidy(up_to_seq=place)
        return place if is_known else await self._keep_place(way.name, place)

    async def _keep_place(self, name: str, seq: int) -> int:
        await self._engine.store.set_meta(_fact(name), str(seq))
        return seq

    async def _forget_place(self, name: str) -> None:
        """A way that is switched on later begins with what happens then."""
        if await self._engine.store.get_meta(_fact(name)):
            await self._engine.store.set_meta(_fact(name), "")

    async def _chosen(
        self, entry: Journaled, settings: Notify, *, was_absent: bool
    ) -> Notification | None:
        engine, note = self._engine, entry.note
        if engine.clock.now() - note.at > MAX_AGE_S:
            return None
        is_end = note.kind == "delegation.ended"
        delegation = None
        if is_end and note.delegation is not None:
            delegation = await engine.store.delegation(note.delegation)
        one = notification_of(
            entry,
            delegation,
            finished_after_s=settings.finished_after_s,
            was_absent=was_absent,
            near=self._near(note.backend) if note.kind == "attempt.ended" else None,
        )
        if one is None or not (one.event in settings.events or one.event == "finished"):
            return None
        if settings.include_text and delegation is not None:
            starts = await engine.prompt_starts([delegation], max_bytes=4 * SHOWN_CHARS)
            prompt, answer = starts.get(delegation.delegation), await engine.text(delegation)
            one = structs.replace(one, prompt=_start(prompt), answer=_start(answer))
        return one

    def _near(self, name: BackendId | None) -> str | None:
        backend = None if name is None else self._engine.settings.policy.backends.get(name)
        if backend is None or name is None:
            return None
        used = self._engine.snapshot().meters.get(name)
        count = meter.tokens_in_hour if backend.cap_unit == "tokens" else meter.attempts_in_hour
        return near_cap(backend, count(used, now=self._engine.clock.now()))

    async def _deliver(self, way: Way, one: Notification) -> None:
        pause_s = FIRST_PAUSE_S
        for number in range(1, way.tries + 1):
            try:
                async with self._delivering:
                    await way.deliver(one)
                log.info("notification.delivered", way=way.name, event_type=one.event, id=one.id)
                return
            except Undelivered as error:
                problem = self._engine.world.redact(str(error))
                log.warning("notification.undelivered", way=way.name, id=one.id, problem=problem)
            if number < way.tries:
                await anyio.sleep(pause_s)
                pause_s *= 2


def _fact(name: str) -> str:
    return f"notified:{name}"


def _with_left_out(one: Notification, pacing: Pacing) -> Notification:
    count, pacing.left_out = pacing.left_out, 0
    if not count:
        return one
    return structs.replace(one, text=f"{one.text} ({count} more were left out.)")


def _start(text: str | None) -> str | None:
    if text is None:
        return None
    words = " ".join(text.split())
    return words if len(words) <= SHOWN_CHARS else f"{words[: SHOWN_CHARS - 1]}…"
