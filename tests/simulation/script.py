"""What will happen: one number becomes backends with their outages, callers, disturbances."""

from random import Random
from typing import Any, Literal, NamedTuple

from tests.simulation.agents import Condition, Kind, Task

from fallbackd.backends.spec import Options
from fallbackd.core.ids import BackendId
from fallbackd.core.policy import Backend, Defaults, Entry, Policy, Role
from fallbackd.core.protocol import CredentialRef
from fallbackd.core.reasons import Reason
from fallbackd.engine.environment import Settings

Tells = Literal["nothing", "truth", "too_short", "too_long"]
Flavour = Literal["chaos", "outage"]

SESSIONS = ("s1", "s2", "s3")
PLACES = ("", "", "", "w", "w", "w/x", "v")
TROUBLE: tuple[Condition, ...] = (
    "throttled",
    "throttled",
    "plan_limit",
    "login_gone",
    "overloaded",
    "server_error",
    "unreachable",
    "missing",
    "hanging",
    "stalling",
    "crashing",
    "silent",
)
HOW_TO_DIE = ("kill", "kill", "kill_at", "kill_at", "kill_before", "kill_in_trial", "reboot")
MARKING: tuple[Condition, ...] = (
    "throttled",
    "plan_limit",
    "login_gone",
    "overloaded",
    "server_error",
)
"""Trouble that marks whoever has it, and states no time."""
STATES = frozenset({"throttled", "plan_limit"})


class Spell(NamedTuple):
    condition: Condition
    begin_s: float
    end_s: float
    tells: Tells = "nothing"


class Member(NamedTuple):
    """One backend, and what becomes of its provider."""

    backend: Backend
    options: Options
    kind: Kind
    spells: tuple[Spell, ...]
    takes_s: float
    """Of an answer, about."""


class Ask(NamedTuple):
    """One caller with one task."""

    at_s: float
    number: int
    task: Task
    fields: dict[str, Any]
    """Of `NewWork`."""
    place: str
    repeats: bool
    leaves_after_s: float | None
    """The caller hangs up then, and comes back later."""
    cancels_after_s: float | None


class Deed(NamedTuple):
    """Somebody or something else does something."""

    at_s: float
    what: str
    value: Any = None


class Script(NamedTuple):
    seed: int
    flavour: Flavour
    members: tuple[Member, ...]
    settings: Settings
    asks: tuple[Ask, ...]
    deeds: tuple[Deed, ...]
    outage: tuple[float, float] | None
    horizon_s: float
    tick_s: float
    disk_s: float
    """How long the disk may take, at most."""


def write(seed: int) -> Script:
    luck = Random(seed)
    flavour: Flavour = "outage" if seed % 4 == 3 else "chaos"
    horizon_s = luck.choice((900.0, 3600.0, 10_800.0, 28_800.0))
    outage = None
    if flavour == "outage":
        outage = (60.0, 60.0 + luck.choice((240.0, 900.0, 3600.0)))
        horizon_s = outage[1] + 60.0
    members = _members(luck, horizon_s, outage)
    settings = _settings(luck, members)
    asks = _asks(luck, members, settings, horizon_s, flavour)
    deeds = _deeds(luck, members, horizon_s, flavour)
    return Script(
        seed=seed,
        flavour=flavour,
        members=members,
        settings=settings,
        asks=asks,
        deeds=deeds,
        outage=outage,
        horizon_s=horizon_s,
        tick_s=luck.choice((30.0, 300.0, 300.0, 1800.0)) if horizon_s <= 3600 else 1800.0,
        disk_s=luck.choice((0.0, 0.0, 0.003, 0.2)),
    )


def _members(
    luck: Random, horizon_s: float, outage: tuple[float, float] | None
) -> tuple[Member, ...]:
    found = []
    quota = luck.random() < 0.3
    for number in range(luck.randint(3, 5)):
        name = f"b{number}"
        kind: Kind = luck.choice(("text", "jsonl", "codex"))
        command = (f"/sim/{name}", "--json")
        output = "text" if kind == "text" else "jsonl"
        backend = Backend(
            id=BackendId(name),
            kind="codex" if kind == "codex" else "generic-cli",
            plain_output=kind == "text",
            model=luck.choice((None, None, "m1")),
            provider=luck.choice((None, f"p{number}")),
            quota="plan" if quota and number < 2 else None,
            credentials=luck.choice(((), (), (), ("work",), ("work", "home"))),
            loopback=luck.random() < 0.15,
        )
        found.append(
            Member(
                backend=backend,
                options=Options(command=command, output=output, credentials=_refs(backend)),
                kind=kind,
                spells=_spells(luck, horizon_s, outage),
                takes_s=luck.choice((1.0, 5.0, 20.0, 70.0)),
            )
        )
    return tuple(found)


def _refs(backend: Backend) -> tuple[CredentialRef, ...]:
    return tuple(
        CredentialRef(label=label, source="env", name=f"KEY_{label}", into="KEY")
        for label in backend.credentials
    )


def _spells(
    luck: Random, horizon_s: float, outage: tuple[float, float] | None
) -> tuple[Spell, ...]:
    if outage is not None:
        return (Spell(luck.choice(MARKING), outage[0], outage[1]),)
    spells: list[Spell] = []
    at_s = 0.0
    flaps = luck.random() < 0.2
    for _ in range(luck.choice((0, 1, 1, 2, 3)) if not flaps else 8):
        begin_s = at_s + luck.random() * (30.0 if flaps else horizon_s / 2)
        length_s = luck.choice((5.0, 20.0)) if flaps else luck.choice((60.0, 600.0, 4000.0))
        condition = "overloaded" if flaps else luck.choice(TROUBLE)
        tells: Tells = "nothing"
        if condition in STATES:
            tells = luck.choice(("nothing", "truth", "truth", "too_short", "too_long"))
        at_s = begin_s + length_s
        spells.append(Spell(condition, begin_s, at_s, tells))
    return tuple(spells)


def _settings(luck: Random, members: tuple[Member, ...]) -> Settings:
    names = [member.backend.id for member in members]

    def entries() -> tuple[Entry, ...]:
        picked = luck.sample(names, luck.randint(2, len(names)))
        return tuple(Entry(backend=name) for name in picked)

    chains = {"*": tuple(Entry(backend=name) for name in luck.sample(names, len(names)))}
    if luck.random() < 0.5:
        chains[names[0]] = entries()
    hops = luck.choice((None, None, frozenset({Reason.RATE_LIMIT, Reason.OVERLOADED})))
    policy = Policy(
        defaults=Defaults(
            max_running=luck.choice((64, 64, 3)),
            max_fallback_depth=luck.choice((3, 3, 1, 6)),
            stop_grace_s=luck.choice((0.5, 2.0)),
        ),
        backends={member.backend.id: member.backend for member in members},
        chains=chains,
        roles={"build": Role(name="build", chain=entries(), fallback_on=hops)},
    )
    return Settings(
        policy=policy, options={member.backend.id: member.options for member in members}
    )


def _asks(
    luck: Random,
    members: tuple[Member, ...],
    settings: Settings,
    horizon_s: float,
    flavour: Flavour,
) -> tuple[Ask, ...]:
    found = []
    at_s = 0.0
    count = luck.randint(3, 9)
    for number in range(count):
        # Some come together.
        if luck.random() < 0.7:
            at_s = luck.random() * horizon_s
        found.append(_ask(luck, members, number, at_s, flavour))
    return tuple(sorted(found))


def _ask(
    luck: Random, members: tuple[Member, ...], number: int, at_s: float, flavour: Flavour
) -> Ask:
    tasks: tuple[Task, ...] = ("plain", "plain", "plain", "prose", "fails", "writes")
    if flavour == "chaos":
        tasks = (*tasks, "poison", "nests", "nests")
    backend = luck.choice((None, *(member.backend.id for member in members)))
    fields = {
        "prompt": f"task {number}",
        "backend": backend,
        "role": luck.choice((None, None, "build")),
        "session": luck.choice((None, None, *SESSIONS)),
        "mode": luck.choice(("interactive", "batch")),
        "request_id": luck.choice((None, f"r{number}", f"r{number}", f"r{number}")),
        "failover": luck.random() < 0.9,
        "permissions": luck.choice(("workspace", "workspace", "read")),
        "timeout_s": luck.choice((None, None, None, 5.0, 60.0, 600.0)),
        "wait": luck.choice(("accepted", "settled", "finished")),
        "on_partial": luck.choice((None, None, "fail")),
    }
    return Ask(
        at_s=at_s,
        number=number,
        task=luck.choice(tasks),
        fields=fields,
        place=luck.choice(PLACES),
        repeats=luck.random() < 0.3,
        leaves_after_s=luck.choice((None, None, 0.001, 0.3, 20.0)),
        cancels_after_s=luck.choice((None, None, None, None, 0.01, 1.0, 30.0)),
    )


def _deeds(
    luck: Random, members: tuple[Member, ...], horizon_s: float, flavour: Flavour
) -> tuple[Deed, ...]:
    names = [member.backend.id for member in members]
    deeds: list[Deed] = []

    def add(what: str, value: Any = None) -> None:
        deeds.append(Deed(luck.random() * horizon_s, what, value))

    for _ in range(luck.choice((0, 0, 1, 1, 2))):
        how = luck.choice(HOW_TO_DIE)
        add(how, luck.randint(1, 6))
    if flavour == "outage":
        return tuple(sorted(deeds, key=lambda deed: deed.at_s))
    for _ in range(luck.randint(0, 3)):
        add("caller", (luck.choice(names), luck.choice((0.5, 30.0, 200.0, None))))
    what = luck.choice(("", "", "mark", "clear", "pause", "session_end", "session_compact"))
    if what:
        add(what, luck.choice(names) if "session" not in what else luck.choice(SESSIONS))
    if luck.random() < 0.15:
        add("stop", luck.choice((0.0, 0.0, 5.0, 100.0)))
    if luck.random() < 0.15:
        add("sleep", luck.choice((20.0, 600.0, 7200.0)))
    if luck.random() < 0.15:
        add("clock", luck.choice((-86_400.0, -300.0, 120.0, 7200.0)))
    if luck.random() < 0.15:
        add("no_route", luck.choice((10.0, 300.0)))
    if luck.random() < 0.2:
        add("reload", luck.choice(("order", "without", "model")))
    return tuple(sorted(deeds, key=lambda deed: deed.at_s))
