"""The daemon: whether it is there, at a glance, drained, ended."""

from msgspec import Struct, field

from fallbackd_client.wire.bounds import SessionName
from fallbackd_client.wire.envelope import Method
from fallbackd_client.wire.shapes import ConfigProblem, HealthEntry, Question, SessionView, UsageRow


class DaemonPingParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    pass


class DaemonPingResult(Struct, frozen=True, kw_only=True):
    version: str
    pid: int
    at: float
    state: str = "running"
    """running, draining."""


DAEMON_PING: Method[DaemonPingParams, DaemonPingResult] = Method(
    "daemon.ping",
    params=DaemonPingParams,
    result=DaemonPingResult,
    read_only=True,
    summary="Check that the daemon answers, and which one it is.",
)


class DaemonDrainParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    pass


class DaemonDrainResult(Struct, frozen=True, kw_only=True):
    state: str = "draining"
    running: int = 0
    """Delegations that have not ended."""


DAEMON_DRAIN: Method[DaemonDrainParams, DaemonDrainResult] = Method(
    "daemon.drain",
    params=DaemonDrainParams,
    result=DaemonDrainResult,
    read_only=False,
    summary="Take no new work, let running work end.",
)


class DaemonShutdownParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    stop_work: bool = False
    """Cancel what runs. False: wait for its end, and leave what takes longer to the next daemon."""


class DaemonShutdownResult(Struct, frozen=True, kw_only=True):
    state: str = "draining"
    running: int = 0
    """Delegations that have not ended."""


DAEMON_SHUTDOWN: Method[DaemonShutdownParams, DaemonShutdownResult] = Method(
    "daemon.shutdown",
    params=DaemonShutdownParams,
    result=DaemonShutdownResult,
    read_only=False,
    summary="Drain, then exit.",
)


class StatusParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    session: SessionName | None = None
    verbose: bool = False
    programs: bool = False
    """Tell too what is known of the programs of agents, installed or not."""


class Trouble(Struct, frozen=True, kw_only=True):
    """Something around the daemon that is not as it has to be, while it lasts."""

    kind: str
    message: str
    mend: str = ""
    """The command line that ends it, where there is one."""
    stops_work: bool = False
    """New work is refused until it has ended."""


class DaemonStatus(Struct, frozen=True, kw_only=True):
    version: str
    pid: int
    started_at: float
    uptime_s: float
    socket: str
    state: str = "running"
    """running, draining."""
    config_path: str | None = None
    config_errors: tuple[ConfigProblem, ...] = ()
    config_warnings: tuple[ConfigProblem, ...] = ()
    state_dir: str | None = None
    store: str | None = None
    connections: int = 0
    last_tick_at: float | None = None
    troubles: tuple[Trouble, ...] = ()
    path: str | None = None
    """The PATH on which it finds programs."""
    confinement: str | None = None
    """Whether the kernel holds agents to their permissions: on; off, partly or no, and why."""


class DelegationLine(Struct, frozen=True, kw_only=True):
    """A delegation that has not ended, in short."""

    delegation: str
    state: str
    created_at: float
    session: str | None = None
    requested: str | None = None
    active: str | None = None
    phase: str | None = None
    hops: int = 0


class DelegationCounts(Struct, frozen=True, kw_only=True):
    running: int = 0
    waiting: int = 0
    queued: int = 0
    awaiting_answer: int = 0
    """Those that wait for a person."""
    finished_total: int = 0
    by_state: dict[str, int] = field(default_factory=dict)
    """Ended ones by how they ended."""
    active: tuple[DelegationLine, ...] = ()


class Rung(Struct, frozen=True, kw_only=True):
    """One thing that can be known of a backend without spending anything."""

    name: str
    """program, login, models, quota, request."""
    ok: bool | None = None
    """Null: it cannot be known without a paid call."""
    detail: str = ""


class Readiness(Struct, frozen=True, kw_only=True):
    at: float
    """When it was looked at; up to 30 s ago."""
    rungs: tuple[Rung, ...] = ()


class Program(Struct, frozen=True, kw_only=True):
    """What is known of the program of an agent, and how far a login can be looked for."""

    name: str
    install: str = ""
    """Command that installs it; empty where its makers give none."""
    login: str = ""
    """Command that logs in."""
    files: tuple[str, ...] = ()
    """Where a login is kept, below the home directory."""
    variables: tuple[str, ...] = ()
    """Any of these is a login too."""
    settings: tuple[str, ...] = ()
    """Files whose presence means that the user has made own arrangements."""
    personal: str = ""
    """What became of logins with a personal account, and what to use instead."""


class StatusResult(Struct, frozen=True, kw_only=True):
    daemon: DaemonStatus
    health: dict[str, HealthEntry] = field(default_factory=dict)
    sessions: tuple[SessionView, ...] = ()
    delegations: DelegationCounts = DelegationCounts()
    questions: tuple[Question, ...] = ()
    session: SessionView | None = None
    """Where one was asked for."""
    usage: tuple[UsageRow, ...] | None = None
    """Of that session by period and backend, with `verbose`."""
    programs: tuple[Program, ...] | None = None
    readiness: dict[str, Readiness] | None = None
    """Of every backend, with `verbose` and without a session."""


STATUS: Method[StatusParams, StatusResult] = Method(
    "status",
    params=StatusParams,
    result=StatusResult,
    read_only=True,
    summary="The daemon, health, sessions and delegations at a glance.",
)


METHODS = (
    DAEMON_PING,
    DAEMON_DRAIN,
    DAEMON_SHUTDOWN,
    STATUS,
)
