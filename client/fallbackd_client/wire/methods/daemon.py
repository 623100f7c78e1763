"""The daemon: whether it is there, at a glance, drained, ended."""

from typing import Literal

from msgspec import Struct, field

from fallbackd_client.wire.bounds import CheckWord, DaemonStateWord, Permissions, SessionName
from fallbackd_client.wire.envelope import Method
from fallbackd_client.wire.methods.share import Sharing
from fallbackd_client.wire.shapes import (
    ConfigProblem,
    DelegationLine,
    HealthEntry,
    Question,
    SessionView,
    UsageRow,
)


class DaemonPingParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    pass


class DaemonPingResult(Struct, frozen=True, kw_only=True):
    version: str
    """Version of the daemon."""
    pid: int
    """Process id of the daemon."""
    at: float
    """Its clock."""
    state: DaemonStateWord = "running"
    """`running` or `draining`."""
    attempt: str | None = None
    """From inside which attempt the caller runs, by the processes above it."""
    permissions: Permissions | None = "full"
    """The most that the caller may delegate with; null: it may delegate nothing."""


DAEMON_PING: Method[DaemonPingParams, DaemonPingResult] = Method(
    "daemon.ping",
    params=DaemonPingParams,
    result=DaemonPingResult,
    read_only=True,
    who="any",
    summary="Check that the daemon answers, and which one it is.",
    example=({}, {"version": "0.2.0", "pid": 4711, "at": 1767268800.0}),
)


class DaemonDrainParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    pass


class DaemonDrainResult(Struct, frozen=True, kw_only=True):
    state: DaemonStateWord = "draining"
    """`draining`."""
    running: int = 0
    """Delegations that it waits for."""
    later: int = 0
    """Delegations that outlast it: they wait for a backend or for an answer."""
    waits_for: tuple[DelegationLine, ...] = ()
    """The delegations that it waits for, the first of them where there are many."""
    calls: int = 0
    """Calls of the gateway that have not ended, which it waits for too."""


DAEMON_DRAIN: Method[DaemonDrainParams, DaemonDrainResult] = Method(
    "daemon.drain",
    params=DaemonDrainParams,
    result=DaemonDrainResult,
    read_only=False,
    who="person",
    promises="nothing",
    errors=("draining",),
    summary="Stop accepting work and let running work finish.",
    example=({}, {"state": "draining", "running": 2}),
)


class DaemonUndrainParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    pass


class DaemonUndrainResult(Struct, frozen=True, kw_only=True):
    state: DaemonStateWord = "running"
    """`running`."""


DAEMON_UNDRAIN: Method[DaemonUndrainParams, DaemonUndrainResult] = Method(
    "daemon.undrain",
    params=DaemonUndrainParams,
    result=DaemonUndrainResult,
    read_only=False,
    who="person",
    promises="nothing",
    errors=("draining",),
    summary="Take new work again after a drain.",
    example=({}, {"state": "running"}),
)


class DaemonShutdownParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    stop_work: bool = False
    """Cancel running work; false: wait for it, and leave what takes too long to the next daemon."""


class DaemonShutdownResult(Struct, frozen=True, kw_only=True):
    state: DaemonStateWord = "draining"
    """`draining`."""
    running: int = 0
    """Delegations that it waits for."""
    later: int = 0
    """Delegations that outlast it: they wait for a backend or for an answer."""
    waits_for: tuple[DelegationLine, ...] = ()
    """The delegations that it waits for, the first of them where there are many."""
    calls: int = 0
    """Calls of the gateway that have not ended, which it waits for too."""


DAEMON_SHUTDOWN: Method[DaemonShutdownParams, DaemonShutdownResult] = Method(
    "daemon.shutdown",
    params=DaemonShutdownParams,
    result=DaemonShutdownResult,
    read_only=False,
    who="person",
    promises="nothing",
    errors=("draining",),
    summary="Drain, then exit.",
    example=({"stop_work": False}, {"state": "draining", "running": 0}),
)


class StatusParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    session: SessionName | None = None
    """Show this session in detail."""
    verbose: bool = False
    """With readiness of every backend, or usage of the session."""
    programs: bool = False
    """With what is known of agent programs, installed or not, and of toolchains."""


class Trouble(Struct, frozen=True, kw_only=True):
    """Something around the daemon that is not as it has to be, while it lasts."""

    kind: str
    """A stable word for it."""
    message: str
    """What is wrong, in a sentence."""
    fix: str = ""
    """Command that fixes it, where there is one."""
    stops_work: bool = False
    """New work is refused until it is fixed."""


class DaemonStatus(Struct, frozen=True, kw_only=True):
    version: str
    """Version of the daemon."""
    pid: int
    """Process id of the daemon."""
    started_at: float
    """When it was started."""
    uptime_s: float
    """Seconds since then."""
    socket: str
    """Path of its socket."""
    state: DaemonStateWord = "running"
    """`running` or `draining`."""
    config_path: str | None = None
    """The configuration file in use; null: none."""
    config_errors: tuple[ConfigProblem, ...] = ()
    """Why the file on disk was not taken."""
    config_warnings: tuple[ConfigProblem, ...] = ()
    """What in it is ignored or replaced by a default."""
    state_dir: str | None = None
    """Directory of its state."""
    store: str | None = None
    """How state is kept, such as `sqlite`."""
    connections: int = 0
    """Open connections."""
    last_tick_at: float | None = None
    """When it last looked after health and timers."""
    troubles: tuple[Trouble, ...] = ()
    """What is wrong around it, while it lasts."""
    path: str | None = None
    """The PATH on which it looks for programs."""
    confinement: str | None = None
    """Whether the kernel confines agents to their permissions: `on`, or `off`, `partly` or `no`
    with the reason."""
    kept_back: tuple[str, ...] = ()
    """Variables of its environment that look like keys and are given to no program."""


class DelegationCounts(Struct, frozen=True, kw_only=True):
    running: int = 0
    """Delegations that are running."""
    waiting: int = 0
    """Delegations that wait for a backend."""
    queued: int = 0
    """Delegations that wait for a place, a session or a directory."""
    awaiting_answer: int = 0
    """Delegations that wait for a person."""
    finished_total: int = 0
    """Delegations that have ended."""
    by_state: dict[str, int] = field(default_factory=dict)
    """Ended delegations by state."""
    active: tuple[DelegationLine, ...] = ()
    """Delegations that have not ended."""


class Rung(Struct, frozen=True, kw_only=True):
    """One thing that can be known of a backend without spending anything."""

    name: CheckWord
    """`program`, `login`, `models`, `quota` or `request`."""
    ok: bool | None = None
    """Whether it is in order; null: it cannot be known without a paid call."""
    detail: str = ""
    """What was found."""


class Readiness(Struct, frozen=True, kw_only=True):
    at: float
    """When it was checked, up to 30 s ago."""
    rungs: tuple[Rung, ...] = ()
    """The checks, from the program to a real request."""


class Program(Struct, frozen=True, kw_only=True):
    """The program of an agent, as far as it is known, and how far a login can be looked for."""

    name: str
    """Name of the program."""
    install: str = ""
    """Command that installs it; empty: its makers give none."""
    login: str = ""
    """Command that logs in."""
    files: tuple[str, ...] = ()
    """Files of a login, relative to the home directory."""
    variables: tuple[str, ...] = ()
    """Environment variables that are a login."""
    settings: tuple[str, ...] = ()
    """Files that show that the user has a setup of their own."""
    home: str = ""
    """Environment variable that moves all of these to another directory: another account."""
    home_replaces: str = ""
    """Directory, relative to the home directory, that the variable stands for; empty: all of it."""
    who: tuple[str, ...] = ()
    """Where the name of the account is, as FILE:FIELD.FIELD."""
    personal: str = ""
    """What became of personal accounts and what to use instead."""


class ToolchainView(Struct, frozen=True, kw_only=True):
    """A build or signing tool whose places a confined agent may write to at `workspace`."""

    name: str
    """Name of the tool."""
    signs: tuple[str, ...] = ()
    """Files of a repository that show that it is used there."""
    writes: tuple[str, ...] = ()
    """Directories that agents may write to."""
    refused: str = ""
    """Commands of the tool that stay refused below `full`; empty: none that are usual."""


class ResidentView(Struct, frozen=True, kw_only=True):
    """A program that stays after a prompt, and takes the next one without a start."""

    program: str
    """Name of the program."""
    cwd: str
    """Directory in which it works; empty: it is left from an earlier daemon."""
    state: Literal["starting", "ready", "working"]
    """`ready`: a prompt like its last one needs no start."""
    since_at: float
    """When its last prompt ended, or it was started."""
    memory_bytes: int | None = None
    """Memory that it holds, without its own children."""


class StatusResult(Struct, frozen=True, kw_only=True):
    daemon: DaemonStatus
    """The daemon itself."""
    health: dict[str, HealthEntry] = field(default_factory=dict)
    """Health of every configured backend."""
    sessions: tuple[SessionView, ...] = ()
    """Sessions, the last used first."""
    delegations: DelegationCounts = DelegationCounts()
    """Counts, and the delegations that have not ended."""
    questions: tuple[Question, ...] = ()
    """Open questions."""
    session: SessionView | None = None
    """The session that was asked for."""
    usage: tuple[UsageRow, ...] | None = None
    """Usage of that session, with `verbose`."""
    programs: tuple[Program, ...] | None = None
    """Known agent programs, with `programs`."""
    toolchains: tuple[ToolchainView, ...] | None = None
    """Tools whose places are open to confined agents, with `programs`."""
    readiness: dict[str, Readiness] | None = None
    """Checks of every backend, with `verbose` and without a session."""
    share: Sharing | None = None
    """How health is shared with other machines; null: it is not."""
    residents: tuple[ResidentView, ...] = ()
    """Programs that stay after a prompt; a process inside an attempt sees none."""


STATUS: Method[StatusParams, StatusResult] = Method(
    "status",
    params=StatusParams,
    result=StatusResult,
    read_only=True,
    who="any",
    errors=("unknown",),
    summary="The daemon, health, sessions and delegations at a glance.",
    example=(
        {},
        {
            "daemon": {
                "version": "0.2.0",
                "pid": 4711,
                "started_at": 1767265200.0,
                "uptime_s": 3600.0,
                "socket": "/run/user/1000/fallbackd/control.sock",
            },
            "health": {
                "codex": {
                    "state": "rate_limited",
                    "reason": "usage_limit",
                    "since_at": 1767268800.0,
                    "until_at": 1767272400.0,
                    "count": 1,
                    "source": "provider",
                    "seconds_remaining": 3600.0,
                },
                "opencode": {"state": "healthy"},
            },
            "delegations": {"finished_total": 12, "by_state": {"succeeded": 12}},
        },
    ),
)


METHODS = (
    DAEMON_PING,
    DAEMON_DRAIN,
    DAEMON_SHUTDOWN,
    DAEMON_UNDRAIN,
    STATUS,
)
