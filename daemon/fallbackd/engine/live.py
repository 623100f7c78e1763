"""Attempts that run now, and their subscribers: phases, text, and every commit."""

from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Literal, Protocol

import anyio
import structlog
from msgspec import Struct, structs

from fallbackd.core.decision import Journaled, StartAttempt
from fallbackd.core.events import Event
from fallbackd.core.figures import Figures
from fallbackd.core.ids import AttemptId, BackendId, DelegationId
from fallbackd.core.protocol import AgentText, Observation, Usage
from fallbackd.core.records import Delegation
from fallbackd.core.watch import Watch, shift, worse
from fallbackd.engine.environment import Settings, World
from fallbackd.engine.repairing import AttemptRepairs, KnownRepairs
from fallbackd.engine.runs import Runs
from fallbackd.engine.workspaces import Planted
from fallbackd.lib.secretvalues import SecretValues
from fallbackd.ports.store import Store
from fallbackd.ports.transport import Clock, Running
from fallbackd_conversations.redact import strip_controls

RECENT_LOOK_S = 0.25
"""More than a move to the next candidate takes, and less than any wait."""

MAX_KEPT_CHARS = 1_000_000
"""Most that is kept of one attempt; what follows is sent, but cannot be read again."""
MAX_ENDED_CHARS = 4_000_000
MAX_ENDED = 256
"""Most that is kept of delegations of which nothing runs."""

Fingerprint = Mapping[str, tuple[int, int]]


class Progress(Struct, frozen=True, kw_only=True):
    """Progress of a running attempt. No `seq`, not journaled."""

    kind: Literal["attempt.output", "attempt.phase", "attempt.text"] = "attempt.output"
    attempt: AttemptId
    delegation: str
    session: str
    backend: BackendId
    at: float
    offset: int = 0
    """Output: how far the log has grown. Text: the characters of all pieces before."""
    phase: str = ""
    text: str = ""
    run: str = ""
    """Run of the attempt that writes the text, where it was begun more than once."""


class AttemptText:
    """Text that one attempt has written so far. Offsets count characters (code points)."""

    def __init__(self, about: Progress) -> None:
        self._about = about
        self.is_open = True
        self.chars = 0
        """Characters of all pieces, kept or not."""
        self._pieces: list[str] = []
        self._starts: list[int] = []
        self._kept_chars = 0

    @property
    def attempt(self) -> AttemptId:
        return self._about.attempt

    @property
    def run(self) -> str:
        return self._about.run

    def said(self, piece: str, offset: int, *, at: float | None = None) -> Progress:
        """The event that carries a piece of it."""
        when = self._about.at if at is None else at
        return structs.replace(self._about, kind="attempt.text", text=piece, offset=offset, at=when)

    def add(self, piece: str) -> None:
        if self._kept_chars == self.chars and self.chars < MAX_KEPT_CHARS:
            self._starts.append(self.chars)
            self._pieces.append(piece)
            self._kept_chars += len(piece)
        self.chars += len(piece)

    @property
    def kept_chars(self) -> int:
        return self._kept_chars

    def since(self, offset: int, most: int | None = None) -> str:
        """Return what is kept from `offset` on: all of it, or so many characters at most."""
        if offset >= self._kept_chars:
            return ""
        first = bisect_right(self._starts, offset) - 1
        end = None if most is None else bisect_right(self._starts, offset + most)
        skipped = offset - self._starts[first]
        return "".join(self._pieces[first:end])[skipped:][:most]


class Texts:
    """Texts by the agents of running delegations, and of the last ones that ended."""

    def __init__(self) -> None:
        self._by_delegation: dict[str, list[AttemptText]] = {}
        """The one that began last at the end."""

    def begin(self, about: Progress) -> AttemptText:
        """`about`: what its events say; its `run` tells a text from one that began before."""
        begun = AttemptText(about)
        earlier = self._by_delegation.pop(about.delegation, [])
        self._by_delegation[about.delegation] = [*earlier, begun]
        self._prune()
        return begun

    def of(self, delegation: str) -> list[AttemptText]:
        """The texts of its attempts, in their order."""
        return self._by_delegation.get(delegation, [])

    def _prune(self) -> None:
        ended = {
            name: sum(each.kept_chars for each in texts)
            for name, texts in self._by_delegation.items()
            if not any(each.is_open for each in texts)
        }
        total, left = sum(ended.values()), len(ended)
        for name, chars in ended.items():
            if total <= MAX_ENDED_CHARS and left <= MAX_ENDED:
                return
            del self._by_delegation[name]
            total, left = total - chars, left - 1


class LiveHost(Protocol):
    """Interface of the engine for an attempt."""

    clock: Clock
    settings: Settings
    world: World
    store: Store
    runs: Runs
    repairs: KnownRepairs
    attaching: anyio.Lock
    """Held while an attempt of an earlier daemon is found again."""
    beginning: int
    """Attempts that are being started, and have not taken all of their descriptors yet."""
    texts: Texts
    planted: Planted

    async def handle(self, event: Event) -> object: ...

    async def keep_figures(self, backend: BackendId, seen: Figures) -> None: ...

    def is_following(self) -> bool:
        """Test whether any attempt is followed now."""
        ...

    async def follow_workspaces(self) -> None: ...

    def why_not_there(self, delegation: Delegation) -> str | None: ...

    def recall(self, delegation: DelegationId, pid: int | None) -> None: ...

    def progress(self, progress: Progress) -> None: ...


class LiveAttempt:
    """An attempt that runs now: what cannot be stored."""

    def __init__(self, order: StartAttempt, *, started_at: float) -> None:
        self.order = order
        self.watch = Watch(started_at=started_at)
        self.running: Running | None = None
        self.repairs: AttemptRepairs | None = None
        """Repairs of its request; None: it is a program, or was begun by an earlier daemon."""
        self.may_run = False
        """Something may have been started for it that `running` does not stand for."""
        self.was_offline = False
        """Since it began to fail, this machine had no route when a `network` failure was seen."""
        self.heard_at_end: Callable[[], Awaitable[None]] | None = None
        """Looks for figures of its plan, once its end is known to all."""
        self._stop_grace_s: float | None = None

    @property
    def is_stopped(self) -> bool:
        return self._stop_grace_s is not None

    def stop(self, grace_s: float) -> None:
        """Also before it has started: then nothing is, or it is stopped as soon as it is there."""
        self._stop_grace_s = grace_s
        if self.running is not None:
            self.running.stop(grace_s=grace_s)

    def as_seen(self, found: Delegation) -> Delegation:
        """Its delegation, with what the attempt shows and the record does not say yet."""
        watch = self.watch
        attempts = (
            structs.replace(
                one,
                effects=worse(one.effects, watch.effects),
                outside=watch.outside,
                unfinished=watch.unfinished,
            )
            if one.attempt == self.order.attempt
            else one
            for one in found.attempts
        )
        return structs.replace(
            found,
            attempts=tuple(attempts),
            phase=watch.phase,
            last_activity_at=watch.last_output_at or found.last_activity_at,
            usage=found.usage if watch.usage == Usage() else watch.usage,
        )

    def shift(self, by_s: float) -> None:
        """The wall clock was set: what was seen moves with it."""
        self.watch = shift(self.watch, by_s)

    def opened(self, running: Running) -> None:
        self.running = running
        if self._stop_grace_s is not None:
            running.stop(grace_s=self._stop_grace_s)


class Looked:
    """The last look at the directory of a delegation."""

    def __init__(self) -> None:
        self._at = float("-inf")
        self._found: Fingerprint | None = None

    def keep(self, found: Fingerprint, *, now: float) -> None:
        self._at, self._found = now, found

    def recent(self, *, now: float) -> Fingerprint | None:
        """
        Return the last look; None: it is too long ago. What one attempt left a moment ago is
        what the next one finds.
        """
        return self._found if 0 <= now - self._at <= RECENT_LOOK_S else None


class Prepared(Struct, frozen=True, kw_only=True):
    """Knowledge of the engine about a delegation that core does not have."""

    prompt: str | None
    """Text of the prompt; None: it cannot be read back any more."""
    env: Mapping[str, str]
    missing: tuple[str, ...] = ()
    """Variables of the caller that this backend takes and that were lost with a daemon."""
    looked: Looked
    delegation: Delegation


class Held:
    """State in memory of a delegation that has not ended."""

    def __init__(
        self, prompt: str | None, env: Mapping[str, str], *, missing: tuple[str, ...] = ()
    ) -> None:
        """
        Args:
            prompt: None: the file that held it cannot be read any more.
            missing: Variables of the caller whose values have gone with an earlier daemon.
        """
        self.prompt = prompt
        self.env = dict(env)
        self.missing = missing
        self.looked = Looked()
        self.noted = (-1, False)
        """Attempts, and whether it had ended, when its record was last noted beside its prompt."""
        self.settled = anyio.Event()
        self.finished = anyio.Event()

    def finish(self) -> None:
        """Wake every caller that waits."""
        self.settled.set()
        self.finished.set()


log = structlog.get_logger("engine")

_NOT_SET_UP = frozenset({"not_installed", "not_configured"})
"""Reasons that are not incidents: what a machine lacks is shown by `status`."""
_UNLOGGED = frozenset(
    {"event", "evidence", "text", "note", "seq", "delegation", "session", "backend"}
)

Listener = Callable[[Journaled | Progress], None]


class Audience:
    def __init__(self) -> None:
        self._listeners: dict[int, Listener] = {}
        self._next = 0

    def add(self, listener: Listener) -> Callable[[], None]:
        """Subscribe to what is published from now on, in order. Returns how to unsubscribe."""
        number = self._next
        self._next += 1
        self._listeners[number] = listener
        return lambda: self._listeners.pop(number, None) and None

    def publish(self, notes: Sequence[Journaled]) -> None:
        for one in notes:
            note = one.note
            say = log.debug if note.fields.get("reason") in _NOT_SET_UP else log.info
            say(
                note.kind,
                seq=one.seq,
                delegation=note.delegation,
                session=note.session,
                backend=note.backend,
                **{k: v for k, v in note.fields.items() if k not in _UNLOGGED},
            )
            self.tell(one)

    def tell(self, told: Journaled | Progress) -> None:
        for number, listener in list(self._listeners.items()):
            try:
                listener(told)
            except Exception:  # what is decided is also done when a subscriber has a bug
                log.exception("listener.broke")
                self._listeners.pop(number, None)


MAX_PIECE_CHARS = 16_384
"""A longer piece is sent in several."""


class Teller:
    """
    Sends the phase and the text of one attempt.

    Args:
        about: What all of its events say.
        text: Keeps what it writes.
        secrets: Values that are not sent, also where one comes in several pieces.
    """

    def __init__(
        self,
        about: Callable[[], Progress],
        tell: Callable[[Progress], None],
        text: AttemptText,
        secrets: SecretValues,
    ) -> None:
        self._about = about
        self._tell = tell
        self._text = text
        self._secrets = secrets
        self._held = ""
        """The end of what was written, which may be the beginning of a secret."""
        self._phase: str | None = None

    def heard(self, seen: list[Observation], watch: Watch, *, is_past: bool = False) -> None:
        """
        Send the phase and the text of one piece of output.

        Args:
            is_past: It is read again after a restart: its text is kept, and nothing is sent.
        """
        if not is_past and watch.phase is not None and watch.phase != self._phase:
            self._phase = watch.phase
            self._tell(
                structs.replace(
                    self._about(), kind="attempt.phase", phase=strip_controls(watch.phase)
                )
            )
        said = "".join(one.text for one in seen if isinstance(one, AgentText))
        if said:
            said, self._held = f"{self._held}{said}", ""
            begun = self._secrets.begun_at_end(said)
            sure = said[: len(said) - begun]
            self._held = said[len(sure) :]
            self._write(self._shown(sure), is_past=is_past)

    def ended(self, answer: str) -> None:
        """Send what of the answer was not sent while it came: all of it, or its last line."""
        self._let_go()
        shown, told = self._shown(answer), self._text.since(0)
        if self._text.chars == len(told) and shown.startswith(told):
            self._write(shown[len(told) :])

    def close(self) -> None:
        """Nothing follows."""
        self._let_go()
        self._text.is_open = False
        # It leads to the reader of the attempt, and each would keep the other, with the answer.
        del self._about

    def _let_go(self) -> None:
        held, self._held = self._held, ""
        self._write(self._shown(held))

    def _shown(self, text: str) -> str:
        return strip_controls(self._secrets.conceal(text))

    def _write(self, text: str, *, is_past: bool = False) -> None:
        for piece in pieces(text):
            offset = self._text.chars
            self._text.add(piece)
            if not is_past:
                self._tell(self._text.said(piece, offset, at=self._about().at))


def pieces(text: str) -> Iterator[str]:
    """The text, cut into pieces that one event can carry."""
    for start in range(0, len(text), MAX_PIECE_CHARS):
        yield text[start : start + MAX_PIECE_CHARS]
