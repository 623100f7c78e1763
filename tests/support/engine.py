"""An engine that does what a test says, for tests of what stands in front of it."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import msgspec

from fallbackd.api.host import Checked, ConfigState, Trouble
from fallbackd.classify.rules import Rule
from fallbackd.config.fields import Problem
from fallbackd.core.authority import PERSON, Authority
from fallbackd.core.callers.lease import ReportAnswer, Resolution
from fallbackd.core.decision import Decision, Journaled, Note, PutStory
from fallbackd.core.events import Event, HealthCleared, Reported, ResolveRequested
from fallbackd.core.ids import BackendId, DelegationId, SessionId
from fallbackd.core.policy import Backend, Policy
from fallbackd.core.reasons import Reason
from fallbackd.core.records import Delegation, Keys, Question, Session, Snapshot, options_with
from fallbackd.engine.environment import Settings, Transports, World
from fallbackd.engine.exchanges import Exchanges
from fallbackd.engine.live import Progress
from fallbackd.engine.requests import LogPart, NewWork, NotKept, Unknown, Withdrawn
from fallbackd.engine.runs import KeptAnswer
from fallbackd.stores.memory import MemoryStore

NOW = 1_800_000_000.0
QUESTION = Question(
    question="d1.q1",
    delegation=DelegationId("d1"),
    session="s1",
    kind="outage",
    text="codex is out. Who does it?",
    options=options_with({"opencode": ""}, wait="wait until codex is back"),
    opened_at=NOW,
)


class FixedClock:
    def __init__(self) -> None:
        self.now_at = NOW

    def now(self) -> float:
        return self.now_at

    def slept(self) -> float:
        return 0.0

    def step(self) -> float:
        return 0.0

    def boot_id(self) -> str:
        return "boot"


def policy(*ids: str) -> Policy:
    return Policy(
        backends={BackendId(one): Backend(id=BackendId(one), kind="generic-cli") for one in ids}
    )


class NothingToSee:
    """Readiness of a machine on which nothing has changed."""

    async def look(self, backends: object) -> None:
        pass

    async def look_at_candidates(self, **asked: object) -> None:
        pass


NOBODY: Any = None
"""Of a world in which nothing runs."""

BARE_WORLD = World(
    transports=Transports(command=NOBODY, http=NOBODY, served=NOBODY),
    kinds={},
    signatures={
        "codex": (
            Rule(id="acme-limit", reason=Reason.RATE_LIMIT, pattern="ACME", statuses=(429,)),
        ),
        "openai-http": (),
    },
    find_program=lambda _: None,
    read_text=lambda _: None,
    changed_at=lambda _: None,
    environ={},
    fingerprint=NOBODY,
    read_log=NOBODY,
    home="/nowhere",
    runs_root=Path("/nowhere"),
    luck=lambda: 0.5,
    mint=lambda: "l1",
)


class ScriptedEngine:
    """`raises` makes a call fail; work ends when the test says so, or never."""

    def __init__(self) -> None:
        self.settings = Settings(policy=policy("codex", "opencode", "gemini"), options={})
        self.clock = FixedClock()
        self.store = MemoryStore()
        self.unwanted: list[NewWork] = []
        self.readiness = NothingToSee()
        self.peers = None
        self.exchanges = Exchanges()
        self.started_at = NOW - 60
        self.last_tick_at: float | None = None
        self.raises: dict[str, Exception] = {}
        self.works: list[NewWork] = []
        self.authorities: list[Authority] = []
        self.found: dict[str, Delegation] = {}
        self.answers: dict[str, str] = {}
        self.listeners: list[Callable[[Journaled | Progress], None]] = []
        self.resolution = Resolution(backend=None, retry_at=NOW + 300)
        self.calls: list[tuple[str, Any]] = []
        self.events: list[Event] = []
        self.world = BARE_WORLD
        self.ended = anyio.Event()
        self.asked = anyio.Event()
        """Set when somebody waits for work."""
        self.is_slow = anyio.Event()
        self.before_delegate: Callable[[], Awaitable[None]] | None = None

    # --- as the engine -------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        return self.store.peek()

    async def follow_clock(self) -> None:
        """It is never set."""

    async def delegate(
        self,
        work: NewWork,
        *,
        authority: Authority = PERSON,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> Delegation:
        if self.before_delegate is not None:
            await self.before_delegate()
        self._raise("delegate")
        if not is_wanted():
            self.unwanted.append(work)
            raise Withdrawn("nothing was begun")
        self.works.append(work)
        self.authorities.append(authority)
        made = delegation(f"d{len(self.works)}")
        self.found[made.delegation] = made
        return made

    async def wait(
        self, delegation_id: str, *, until: str, timeout_s: float | None
    ) -> tuple[Delegation, bool]:
        self.calls.append(("wait", (until, timeout_s)))
        found = await self.delegation(delegation_id)
        self.asked.set()
        with anyio.move_on_after(timeout_s) as scope:
            await self.ended.wait()
        return self.found[found.delegation], not scope.cancelled_caught

    async def why_not_kept(self, found: Delegation) -> None:
        return None

    async def require_kept(self, what: str) -> None:
        if not await self.store.flush():
            raise NotKept(f"{what}: {self.store.problem}")

    async def cancel(self, delegation_id: str, *, by: str | None = None) -> Delegation:
        return await self.delegation(delegation_id)

    async def delegation(self, delegation_id: str, authority: Authority = PERSON) -> Delegation:
        self._raise("delegation")
        if delegation_id not in self.found:
            raise Unknown(f"There is no delegation {delegation_id}.")
        return self.found[delegation_id]

    async def delegations(
        self, session: str | None = None, state: str | None = None, limit: int = 100
    ) -> Sequence[Delegation]:
        return list(self.found.values())[:limit]

    async def prompt_starts(
        self, found: Sequence[Delegation], *, max_bytes: int
    ) -> dict[DelegationId, str]:
        return {one.delegation: "the prompt"[:max_bytes] for one in found}

    async def kept_answer(self, found: Delegation) -> KeptAnswer | None:
        text = await self.text(found)
        return None if text is None else KeptAnswer(text=text, path="/nowhere")

    async def text(self, found: Delegation) -> str | None:
        return self.answers.get(found.delegation)

    async def log(
        self,
        delegation_id: str,
        *,
        attempt: int | str | None,
        offset: int,
        max_bytes: int,
        as_text: bool = False,
    ) -> LogPart:
        self.calls.append(("log", (attempt, offset, max_bytes)))
        return LogPart(
            attempt=f"{delegation_id}.1",
            log_path="/runs/output.log",
            text="abc"[offset:],
            offset=offset,
            next_offset=3,
            size_bytes=3,
            ended=True,
        )

    async def questions(
        self, *, session: str | None = None, only_open: bool = True, limit: int = 100
    ) -> Sequence[Question]:
        self.calls.append(("questions", (session, only_open, limit)))
        return [one for each in self.found.values() for one in each.questions]

    async def answer(
        self, question: str, *, choice: str, note: str | None, uid: int, pid: int | None, **by: Any
    ) -> Question:
        self.calls.append(("answer", (question, choice, note, uid, pid)))
        self._raise("answer")
        return QUESTION

    async def story(self, delegation_id: str) -> Sequence[PutStory]:
        return [PutStory(delegation=DelegationId(delegation_id), at=NOW, event="Started")]

    async def handle(self, event: Event, *, outlives: str = "machine") -> Decision:
        self.events.append(event)
        match event:
            case ResolveRequested():
                return Decision(answer=self.resolution)
            case Reported():
                return Decision(answer=ReportAnswer(failure=None, next=None))
            case HealthCleared():
                return Decision(answer=["codex"] if event.target is None else [event.target])
        return Decision()

    async def session(self, name: str, authority: Authority = PERSON) -> Session:
        if name != "s1":
            raise Unknown(f"There is no session {name}.")
        return session(name)

    async def sessions(self, *, limit: int = 100) -> Sequence[Session]:
        return [session("s1")]

    async def end_session(self, name: str) -> None:
        await self.session(name)

    async def compact_session(self, name: str) -> None:
        await self.session(name)

    def subscribe(self, callback: Callable[[Journaled | Progress], None]) -> Callable[[], None]:
        self.listeners.append(callback)
        return lambda: self.listeners.remove(callback)

    # --- as the test ---------------------------------------------------------------------------

    def _raise(self, call: str) -> None:
        if call in self.raises:
            raise self.raises[call]

    async def happen(self, kind: str, **named: Any) -> None:
        """Commit one event and tell everybody."""
        note = Note(kind=kind, at=NOW, **named)
        _, journaled = await self.store.transact(Keys(), lambda _: Decision(changes=(note,)))
        for one in journaled:
            for tell in list(self.listeners):
                tell(one)

    def progress(self, offset: int) -> None:
        for tell in list(self.listeners):
            tell(
                Progress(
                    attempt="d1.1",  # type: ignore[arg-type]
                    delegation="d1",
                    session="s1",
                    backend=BackendId("codex"),
                    offset=offset,
                    at=NOW,
                )
            )

    def end(self, delegation_id: str, *, text: str | None = None, **changes: Any) -> None:
        self.found[delegation_id] = msgspec.structs.replace(self.found[delegation_id], **changes)
        if text is not None:
            self.answers[delegation_id] = text
        self.ended.set()


class FakeHost:
    """A process that only notes what it is told."""

    version = "9.9"
    pid = 4242
    socket = "/run/fallbackd/control.sock"
    state_dir: str | None = "/state"
    path: str | None = "/usr/bin"

    def __init__(self) -> None:
        self.connections = 1
        self.is_draining = False
        self.state = ConfigState(path="/config.toml")
        self.told: list[str] = []
        self.troubled: tuple[Trouble, ...] = ()

    def config(self) -> ConfigState:
        return self.state

    opencode = None

    def troubles(self) -> tuple[Trouble, ...]:
        return self.troubled

    authority = PERSON
    """Of every caller."""

    def authority_of(self, connection: object) -> Authority:
        return self.authority

    async def check_config(
        self, *, path: str | None, text: str | None, directory: str | None = None
    ) -> Checked:
        if text == "bad":
            return Checked(path=path, errors=(Problem(path="", message="no TOML"),))
        return Checked(path=path)

    async def reload_config(self) -> bool:
        self.told.append("reload")
        return True

    async def drain(self) -> None:
        self.is_draining = True

    async def undrain(self) -> bool:
        self.is_draining = False
        return True

    def shut_down(self, *, stop_work: bool) -> None:
        self.told.append(f"shutdown {stop_work}")


def delegation(name: str, **fields: Any) -> Delegation:
    return Delegation(
        **{  # type: ignore[arg-type]
            "delegation": DelegationId(name),
            "session": SessionId("s1"),
            "state": "running",
            "requested": BackendId("codex"),
            "active": BackendId("codex"),
            "created_at": NOW,
            **fields,
        }
    )


def session(name: str) -> Session:
    return Session(
        session=SessionId(name),
        original=BackendId("codex"),
        current=BackendId("opencode"),
        created_at=NOW,
        last_used_at=NOW,
    )
