"""
Types of what goes out to a backend and of what comes back.

A kind turns `Work` into a `Call`; a transport performs the call and hands back `Chunk`s, then
one `Exit`; the kind's parser reads chunks into `Observation`s and the exit into an `Outcome`.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

from msgspec import Struct, field

from fallbackd.core.figures import Figures
from fallbackd_conversations.turns import Utterance

Permissions = Literal["read", "workspace", "full"]
Mode = Literal["interactive", "batch"]


class CredentialRef(Struct, frozen=True, kw_only=True):
    """The place of a secret; never the secret. Resolved at the edge, just before its use."""

    label: str
    """Its name for people, in health and in the story."""
    source: Literal["env", "file", "command", "systemd"]
    name: str = ""
    """The variable, the path of the file, or the name of the systemd credential."""
    argv: tuple[str, ...] = ()
    """The command that prints it, without a shell."""
    field: str | None = None
    """Its place in a JSON document: names with dots between them (`tokens.access_token`)."""
    into: str | None = None
    """For programs: the variable that is set to it in the program, and nowhere else."""


CREDENTIAL = "{credential}"
"""Stands for the secret of the chosen credential in the templates of `secret_headers`."""


class Work(Struct, frozen=True, kw_only=True):
    """One prompt, as a kind needs it to build its call. Never stored, logged or shown."""

    prompt: str
    prompt_path: str
    """Private file that holds `prompt`, for CLIs that read a file."""
    cwd: str
    """Real path of the working directory."""
    scratch: str
    """Private directory of this attempt, for settings that are passed per run."""
    model: str | None = None
    effort: str | None = None
    credential: CredentialRef | None = None
    """The one that the core chose for this attempt; None: the backend's own login."""
    session: str = ""
    resume: str | None = None
    """The agent's own conversation that the prompt continues; None: it begins a new one."""
    history: str | None = None
    """A private file with a conversation in the agent's own format, which the prompt continues."""
    earlier: tuple[Utterance, ...] = ()
    """What was said before, for kinds that take it as messages."""
    permissions: Permissions = "workspace"
    runs_commands: bool = False
    """At `workspace`: commands are run without asking, but for those that leave the machine."""
    mode: Mode = "batch"
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables that the caller may set for this backend (`allow_env`), already checked."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Texts of the user's own settings that the kind asked for in `BackendKind.reads`."""
    inherited: Mapping[str, str] = field(default_factory=dict)
    """Variables of the daemon that the kind asked for in `BackendKind.reads_env`."""
    version: str = ""
    """What its program says of its version; empty: not known, or not asked for."""

    planted: tuple[str, ...] = ()
    """Files of `BackendKind.project` that an earlier attempt has changed: it is started without
    any file of these."""
    writable: tuple[str, ...] = ()
    """For a program with a sandbox of its own: directories that its commands may write to beside
    `cwd`."""
    repositories: tuple[str, ...] = ()
    """The same, of git: where the repository of `cwd` is kept. Its hooks and its configuration are
    run and obeyed later, so they stay closed."""

    def __repr__(self) -> str:  # prompts never reach a log
        return f"Work(prompt=<{len(self.prompt)} chars>, cwd={self.cwd!r}, model={self.model!r})"


class Toolchain(Struct, frozen=True, kw_only=True):
    """A tool that any program runs, and what it writes in the home."""

    name: str
    programs: tuple[str, ...]
    """Any of these on PATH: it is installed."""
    signs: tuple[str, ...] = ()
    """Files of a working directory that ask for it, which may bring a copy of its own."""
    writes: tuple[str, ...]
    """Directories, each with a `/` at its end; made where they are missing and it is wanted."""
    files: tuple[str, ...] = ()
    """Single files in a directory that is closed otherwise; made empty."""
    refused: str = ""
    """Commands of it that stay refused, for people; empty: none that are usual."""


class OwnCopy(Struct, frozen=True, kw_only=True):
    """A directory of a program's own, with what is in that of its user: see `runner.start`."""

    variable: str
    """It says where the directory is."""
    place: str
    """The user's place for it; places are as `lib.directories` has them."""
    below: str = ""
    """Of the directory that the variable names, where it is not that one."""
    shared: tuple[str, ...] = ()
    """Places in it that stay its user's."""
    fresh: tuple[str, ...] = ()
    """Places in it that begin empty."""


class Confinement(Struct, frozen=True, kw_only=True):
    """
    Bounds that the kernel sets to a program, where it can: it writes nowhere else, and reads all
    but what is hidden. Places are as `lib.directories` has them, filled in by the program's own
    environment.
    """

    cwd: str = ""
    """That of its command line where it may write to it, git's part elsewhere included."""
    writable: tuple[str, ...] = ()
    """Files and directories. One with a `/` at its end is made where it is missing."""
    folders: tuple[str, ...] = ()
    """Directories in which it may make directories, and no file."""
    toolchains: tuple[Toolchain, ...] = ()
    readable: tuple[str, ...] = ()
    """Although what they are in is hidden."""
    hidden: tuple[str, ...] = ()


class Residency(Struct, frozen=True, kw_only=True):
    """
    The way in which a program may stay after a prompt, and take the next one
    (`transports.resident`).
    """

    way: str
    """One of `backends.residents.WAYS`."""
    argv: tuple[str, ...]
    """Command line of a process that is to stay, without what may differ between two prompts."""
    continues: tuple[str, ...] = ()
    """Words behind it for the conversation that it continues."""
    may_stay: bool = True
    """False: this prompt has a process to itself; those of its conversation are ended before."""
    runs_alone: bool = True
    """False: the program takes a prompt in no other way, so it also is one where none may stay."""
    conversation: str | None = None
    """The one that the prompt continues; None: it begins one."""
    session: Mapping[str, Any] = field(default_factory=dict)
    """State in which it takes the prompt, in its own words."""
    reads: tuple[str, ...] = ()
    """Files that it obeys or logs in with: one that was changed ends it. Places are as `lib.homes`
    has them."""
    watches: bool = False
    """It obeys files of its directory as soon as they are written, also while it rests."""
    stored: str = ""
    """Where it stores `{conversation}`, as a pattern of such a place: another program that has
    written there ends it."""


class Rest(Struct, frozen=True, kw_only=True):
    """Limits of a program that stays between two turns."""

    idle_s: float | None = None
    """None: the daemon ends it."""
    alone_s: float = 0.0
    """Where the daemon has gone, which the program outlives."""


class CommandLine(Struct, frozen=True, kw_only=True, tag="command"):
    argv: tuple[str, ...]
    cwd: str
    cwd_id: str = ""
    """The directory that has to be there, see `lib.directories.identity`; empty: any."""
    stdin: bytes | None = None
    """Written, then closed. None: /dev/null."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Set on top of the scrubbed environment of the daemon."""
    unset: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ()
    """Variables of the daemon that it is given beside those for every program."""
    credential: CredentialRef | None = None
    """Set as its variable `into` by the transport, on top of `env`."""
    copies: tuple[OwnCopy, ...] = ()
    own_tmp: bool = False
    """`TMPDIR` is a directory of the attempt, removed when it is over."""
    confinement: Confinement | None = None
    holds_input: bool = False
    """Its stdin stays open behind `stdin`, for more."""
    rest: Rest | None = None
    """How long its runner lets it be without a turn. None: it has none."""
    residency: Residency | None = None
    """None: it takes this prompt alone."""

    def __repr__(self) -> str:
        return f"CommandLine({self.argv[:1]!r}, {len(self.argv) - 1} arguments)"


class Tls(Struct, frozen=True, kw_only=True):
    """
    Settings by which a server's certificate is judged, and our own is shown. Paths may begin with
    `~/`.
    """

    ca_file: str | None = None
    """None: what the machine trusts."""
    client_cert: str | None = None
    client_key: str | None = None
    verify: bool = True


class Inquiry(Struct, frozen=True, kw_only=True):
    """Lines for the input of a program that answers with one line of JSON among others."""

    argv: tuple[str, ...]
    """Behind the program."""
    lines: bytes
    is_answer: Callable[[Mapping[str, Any]], bool]
    env: Mapping[str, str] = {}
    """Variables beside those that the program has anyway."""


class HttpRequest(Struct, frozen=True, kw_only=True, tag="http"):
    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    secret_headers: Mapping[str, str] = field(default_factory=dict)
    """Header name → template, as `"Authorization": "Bearer {HERMES_API_KEY}"`: `{NAME}` is the
    value of an environment variable, `{credential}` the secret of `credential`. Filled in by the
    transport."""
    credential: CredentialRef | None = None
    """Whose secret `{credential}` stands for."""
    body: bytes = b""
    secret_fields: Mapping[str, str] = field(default_factory=dict)
    """The same for fields of a body that is one JSON object; put in when it is sent."""
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 180.0
    max_bytes: int = 32 * 1024 * 1024
    ends_with: tuple[bytes, ...] = ()
    """Marks in the body after which the answer is complete, even if the server holds the line."""
    tls: Tls | None = None
    own_listener: bool = False
    """On loopback, nothing is sent unless the server runs as our own user or as root."""
    once: bool = False
    """It may act: it leaves over a connection of its own, and is never sent a second time."""

    def __repr__(self) -> str:
        return f"HttpRequest({self.method} {self.url})"


class ServedPrompt(Struct, frozen=True, kw_only=True, tag="served"):
    """
    One prompt to a helper server that the daemon keeps alive (`opencode serve`).

    `server` starts it where none runs; servers are shared by equal `key`. The transport creates
    a session in `cwd`, posts the prompt, and hands on each event of that session as one line of
    JSON in the stream `event`; stopping aborts the turn and proves its tools gone.
    """

    key: str
    server: CommandLine
    cwd: str
    title: str
    prompt: str
    model: str | None = None
    """`provider/model`; None: the server's default."""
    agent: str | None = None
    session: str | None = None
    """The one that the prompt continues; None: a new one."""
    permissions: Permissions = "workspace"
    """What the server asks leave for is granted at `full` and rejected below."""
    otherwise: CommandLine | None = None
    """What does the same without a server, for where none comes up."""
    family: str = ""
    """What the keys of servers begin with that differ by their directory only: one of them that is
    unused makes room for the next. Empty: the server is for all directories."""

    def __repr__(self) -> str:
        return f"ServedPrompt({self.key!r}, model={self.model!r})"


Call = CommandLine | HttpRequest | ServedPrompt

StreamName = Literal["stdout", "stderr", "http", "event"]


class Chunk(Struct, frozen=True):
    """A piece of output as it came: not a line, not even whole characters."""

    stream: StreamName
    data: bytes
    at: float


class ProcessExit(Struct, frozen=True, kw_only=True, tag="process"):
    """
    `code` is null when the program was ended by `signal`; both are null when that is unknown.

    `gone` says that every process of the tree, re-sessioned grandchildren included, was seen to
    be gone. Nothing else may start in its place before.
    """

    code: int | None = None
    signal: int | None = None
    gone: bool
    at: float = 0.0
    stopped: bool = False
    """We asked it to stop before it ended."""
    note: str = ""
    left: tuple[str, ...] = ()
    """Names of programs in the background that were ended when it had ended by itself."""
    rebooted: bool = False
    """The machine was rebooted before its end was recorded."""
    unread_bytes: int = 0
    """Of its recorded output, since it was stopped: what it said in them is not known."""


class NotStarted(Struct, frozen=True, kw_only=True, tag="not_started"):
    """
    The operating system refused: `error` is its symbolic name (ENOENT, EACCES, E2BIG, …).

    `NO_SECRET` and `OLD_SECRET` are ours: the secret of the call's credential is not there, or has
    expired. `text` says where, never what was found. So is `WRONG_VERSION`.
    """

    error: str
    text: str
    path: str = ""
    gone: bool
    at: float = 0.0


class HttpResponse(Struct, frozen=True, kw_only=True, tag="response"):
    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    """Names in lower case."""
    gone: bool
    at: float = 0.0
    stopped: bool = False
    truncated: bool = False
    """The body ended before its announced end, or was longer than `max_bytes`."""


FOREIGN_LISTENER = "ForeignListener"
"""`NoAnswer.exception` where the server on loopback is of another user. Nothing was sent."""
DAEMON_LOST = "DaemonLost"
"""`NoAnswer.exception` where the daemon that made the request ended before the response did."""
WRONG_VERSION = "WRONG_VERSION"
"""`NotStarted.error` where the program is of a version that is not supported."""


class NoAnswer(Struct, frozen=True, kw_only=True, tag="no_answer"):
    """No HTTP response: `exception` is the type name that the HTTP library raised."""

    exception: str
    text: str
    gone: bool
    at: float = 0.0
    stopped: bool = False


Exit = ProcessExit | NotStarted | HttpResponse | NoAnswer


# --- what a parser says while output comes -----------------------------------------------------


class Output(Struct, frozen=True, tag="output"):
    """Something was printed that proves nothing but life (a start banner, a log line)."""


class Conversation(Struct, frozen=True, kw_only=True, tag="conversation"):
    """The program named the conversation that it keeps, by which it can be resumed."""

    id: str


class ProviderAnswered(Struct, frozen=True, tag="answered"):
    """Only a provider's reply can have caused this (a token, a tool call, usage)."""


class Evidence(Struct, frozen=True, kw_only=True):
    """Raw material of a failure, before classification. The wire shape of `classify`."""

    text: str = ""
    stream: str = "unknown"
    """stdout, stderr, jsonl, http, exception, unknown."""
    exit_code: int | None = None
    signal: int | None = None
    http_status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    exception: str | None = None
    code: str | None = None
    """The vendor's own machine-readable word, where its structured output has one."""
    answered: bool = False
    """`ProviderAnswered` was seen before."""
    empty: bool = False
    """The program ended well without an answer."""


class Retrying(Struct, frozen=True, kw_only=True, tag="retrying"):
    """The CLI says that its provider failed and that it tries again by itself."""

    evidence: Evidence
    wait_s: float | None = None
    """Time that it will wait, where it says so."""


class ToolStarted(Struct, frozen=True, kw_only=True, tag="tool_started"):
    key: str
    """Tool and arguments, key order ignored: equal keys are an identical step."""
    name: str
    effects: Literal["none", "possible"] = "possible"
    """A tool that writes may be refused: what was done is seen in the directory alone."""
    outside: str = ""
    """What it does that no directory shows and that cannot be taken back, in a word or two:
    `git push`; empty: nothing that is known."""
    all_or_nothing: bool = False
    """If it fails, it has done nothing outside."""
    call: str = ""
    """The vendor's id of this call, to be found again at its end."""


class ToolEnded(Struct, frozen=True, kw_only=True, tag="tool_ended"):
    call: str = ""
    failed: bool = False
    """True if it was refused, or did not succeed."""


class AgentStep(Struct, frozen=True, kw_only=True, tag="step"):
    """One turn of the agent's own loop that is not a tool call (an empty message, say)."""

    key: str


class Usage(Struct, frozen=True, kw_only=True, tag="usage"):
    """Totals so far of this attempt; a later one replaces an earlier one."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None

    def __add__(self, other: "Usage") -> "Usage":
        cost_usd = self.cost_usd
        if other.cost_usd is not None:
            cost_usd = other.cost_usd if cost_usd is None else cost_usd + other.cost_usd
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cost_usd=cost_usd,
        )


class AgentText(Struct, frozen=True, tag="agent_text"):
    """
    A text that the agent has written for the person who asked: a piece as it came, to be put behind
    the one before. Where a program reports whole messages, each ends with a line feed.
    """

    text: str
    again: bool = False
    """A repetition of what a broken stream had said: it shows no progress."""


class Phase(Struct, frozen=True, tag="phase"):
    """A word for people about what the agent does now (`thinking`, `waiting`, …)."""

    word: str


class GivenUp(Struct, frozen=True, kw_only=True, tag="given_up"):
    """The agent reported its own terminal failure; its process may linger."""

    evidence: Evidence


class FiguresSeen(Struct, frozen=True, kw_only=True, tag="figures"):
    """The program said how much of its plan is used."""

    figures: Figures


Observation = (
    Output
    | FiguresSeen
    | Conversation
    | ProviderAnswered
    | Retrying
    | ToolStarted
    | ToolEnded
    | AgentStep
    | Usage
    | AgentText
    | Phase
    | GivenUp
)


# --- how it ended ------------------------------------------------------------------------------


class Reply(Struct, frozen=True, kw_only=True):
    text: str
    usage: Usage = Usage()
    warnings: tuple[str, ...] = ()
    """Notes on what is missing in it, for people."""
    may_be_notice: bool = False
    """Text that no structure calls an answer of the model: it may be a notice of a limit."""

    def __repr__(self) -> str:
        return f"Reply(<{len(self.text)} chars>)"


Outcome = Reply | Evidence
