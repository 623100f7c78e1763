"""
Kinds of backends: values that say what to start and how to read the answer.

The law of backends: as pure as core, one file per kind, a file knows its vendor and nothing else.

Settings of an agent CLI are passed per run (flags, environment), never written into the user's
files. Its own retries stay on: it reports them, and patience bounds them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct, field

from fallbackd.classify.rules import Rule
from fallbackd.core.figures import Figures
from fallbackd.core.protocol import (
    Call,
    Chunk,
    CommandLine,
    CredentialRef,
    Evidence,
    Exit,
    HttpRequest,
    Inquiry,
    Observation,
    Outcome,
    OwnCopy,
    Work,
)


class SessionSeen(Struct, frozen=True, kw_only=True):
    """
    Attributes:
        turn: The agent's id of the turn that failed last.
        failure: What it says of that failure; None: its last turn did not fail.
        windows: The last figures of its plan; empty: none were given.
        worked_at: When its provider answered last, by a turn that ended well or by figures.
        model: Of its last turn.
    """

    turn: str | None = None
    failure: Evidence | None = None
    windows: Figures = ()
    worked_at: float | None = None
    model: str | None = None


class SessionFiles(Struct, frozen=True, kw_only=True):
    """
    Args:
        place: The directory below which they are, as `lib.directories` has it.
        read: Of the first bytes of a file, of lines at its end that may be new, and of the time.
    """

    place: str
    read: Callable[[bytes, Sequence[bytes], float], SessionSeen]


class PlanInquiry(Struct, frozen=True, kw_only=True):
    """
    A way to ask a program for the figures of its plan that sends no prompt to a model.

    Args:
        read: Of the answer, and of the time when it was asked for; empty: nothing is known.
    """

    inquiry: Inquiry
    read: Callable[[Mapping[str, Any], float], Figures]


class Parser(Protocol):
    """Reads one attempt. Small, pure, rebuilt from recorded chunks when need be."""

    def feed(self, chunk: Chunk) -> list[Observation]:
        """
        Read the next piece of output.

        Chunks break anywhere: inside a line, a UTF-8 sequence, an escape code. Lines of any
        length, truncated JSON, unknown events and fields are no error.
        """
        ...

    def finish(self, exit: Exit) -> Outcome:
        """Read the end. `Reply` only where the vendor's own signs say that there is an answer."""
        ...


class Options(Struct, frozen=True, kw_only=True):
    """Settings of a backend of any kind; a kind reads those that it knows."""

    command: tuple[str, ...] = ()
    """argv that replaces the profile's program and its fixed arguments; empty: the profile's."""
    model: str | None = None
    base_url: str | None = None
    lacks: str | None = None
    """
    Setting that an HTTP API lacks before anything is sent, in words: it has no address, and the one
    of its kind is not what the user meant.
    """
    stdin: str = "prompt"
    output: str = "text"
    prompt_in_argv: bool = False
    success_exit_codes: tuple[int, ...] = (0,)
    env: Mapping[str, str] = field(default_factory=dict)
    writable: tuple[str, ...] = ()
    """
    Places where its program may write beside the usual places; one with a `/` at its end is made.
    """
    serve: bool = True
    """opencode: use a shared `opencode serve` instead of `opencode run`."""
    resident: bool = True
    """Its program may stay after a prompt, where `[defaults]` allows any to."""
    headers: Mapping[str, str] = field(default_factory=dict)
    credentials: tuple[CredentialRef, ...] = ()
    """References, never secrets, in the order of the labels in `Backend.credentials`."""
    api_mode: str | None = None
    """Dialect of an HTTP API; None: chosen by kind and URL."""
    max_output_tokens: int | None = None
    embeddings: tuple[str, ...] = ()
    """Embedding models that its API has."""
    omit: tuple[str, ...] = ()
    """Fields of a request that are left out. See `repairs.configured`."""
    rename: Mapping[str, str] = field(default_factory=dict)
    default: Mapping[str, Any] = field(default_factory=dict)
    """Any JSON values."""
    connect_timeout_s: float | None = None
    read_timeout_s: float | None = None
    """Silence on the connection, bytes of any kind; the limits of the attempt are stricter."""
    insecure_http: bool | None = None
    """True: a key may leave over plain http to another machine."""
    tls_ca_file: str | None = None
    """Certificates that are trusted in place of the machine's."""
    tls_client_cert: str | None = None
    tls_client_key: str | None = None
    """Path of the key; None: it is in the file of the certificate."""
    tls_verify: bool | None = None
    """False: the connection can be intercepted."""


class NotConfigured(ValueError):
    """Raised with a sentence for people on what has to be configured first."""


class Login(Struct, frozen=True, kw_only=True):
    """
    Places where the CLI of a vendor finds a login. Without any of this it is certainly logged out.

    Only of the vendor's own program: a script of the same name may bring a login along.
    """

    package: str
    """Part of the path of the vendor's own program, where it is a script (`@openai/codex`)."""
    files: tuple[str, ...]
    """Each is a login. Places are as `lib.directories` has them."""
    settings: Mapping[str, tuple[str, ...]]
    """Files, and words in them with which the user may arrange for a login."""
    variables: tuple[str, ...]
    """Beginnings of the names of variables that may be a login."""
    home: str
    """The variable that says where the files are, which is none."""
    command: str
    """Command that logs in."""


class Setup(Struct, frozen=True, kw_only=True):
    """Texts of `doctor` about the program of a kind, and places where it looks for a login."""

    install: str = ""
    """Command that installs it; empty where its makers give none."""
    login: str = ""
    """Command that logs in."""
    files: tuple[str, ...] = ()
    """Files of a login, below the home directory; empty: that it has none is no finding."""
    variables: tuple[str, ...] = ()
    """Any of these is a login too."""
    settings: tuple[str, ...] = ()
    """Files whose presence means that the user has made own arrangements."""
    home: str = ""
    """Variable that names another directory for all of it, which makes it another account; empty:
    it has none."""
    home_replaces: str = ""
    """Directory below the home directory that it stands for; empty: the home directory."""
    who: tuple[str, ...] = ()
    """
    Places of the name of the account: `FILE:FIELD.FIELD`, a file below the home directory; a field
    may be a JSON Web Token.
    """
    personal: str = ""
    """
    Fate of logins with a personal account, which `files` hold, and what to use instead; empty: they
    work.
    """


ApiMode = Literal["chat_completions", "responses", "messages", "generate_content", "hermes_chat"]


class Endpoint(Struct, frozen=True, kw_only=True):
    """Facts of a kind about its API."""

    base_url: str
    """Address where nothing is configured."""
    mode: ApiMode | None = None
    """Mode where the URL states none; None: chosen by its host and the model."""
    model: str | None = None
    keys: tuple[str, ...] = ()
    """Variables that hold a key for this kind on any host; sent if one is set."""
    vendors: tuple[str, ...] = ()
    """Names of the provider at `base_url`, in lower case, besides its host."""
    is_hermes: bool = False
    """A Hermes agent: it may speak `hermes_chat`, at a port that any user may have taken first."""


class Footprint(Struct, frozen=True, kw_only=True):
    """Places of a program's own files. Places are as `lib.directories` has them."""

    writes: tuple[str, ...] = ()
    """Its settings, sessions, caches; one with a `/` at its end is made where it is missing."""
    copies: tuple[OwnCopy, ...] = ()
    """Directories of which it is given its own, since what it writes there is beside settings."""
    folders: tuple[str, ...] = ()
    """Directories in which it makes directories, and no file. Made where they are missing."""
    keys: tuple[str, ...] = ()
    """Its secrets: no other agent may read them."""
    confines_itself: bool = False
    """True for a program with a sandbox of its own that does not work inside of another one."""


class ProjectFiles(Struct, frozen=True, kw_only=True):
    """
    Files that a program reads of the directory that it works in, and of those above it, that runs
    commands, loads code, or says where its login is sent.
    """

    places: tuple[str, ...]
    """Files and directories below each of these directories."""
    can_be_left_out: bool = False
    """`start` heeds `Work.planted`: the program is started without all of them."""


class BackendKind(Struct, frozen=True, kw_only=True):
    """Everything that the daemon and `doctor` know of a kind; nothing else lists kinds."""

    name: str
    start: Callable[[Work, Options], Call]
    """May raise `NotConfigured`, or another `ValueError` with a sentence for the caller (a NUL in
    the prompt, say)."""
    parser: Callable[[Options], Parser]
    rules: tuple[Rule, ...] = ()
    """Failure signatures of this vendor; the common ones follow behind them."""
    models: Callable[[Work, Options], HttpRequest] | None = None
    """Asks for the list of models, unbilled; `http_calls.read_models` reads it."""
    program: Callable[[Options], str | None] = lambda _: None
    """The executable that must be on PATH; None for what is not a program."""
    setup: Setup = Setup()
    unsupported: Callable[[str, Options], str] = lambda _, __: ""
    """
    Explains why its program cannot be used, from the line that it prints about its version; empty:
    it can.
    """
    endpoint: Endpoint | None = None
    """API over HTTP; None: it is a program."""
    keeps_to_reading: bool = False
    """Its program has a read-only mode that is enforced."""
    is_plain: Callable[[Options], bool] = lambda _: False
    """Checks whether it prints nothing before the end."""
    reads: tuple[str, ...] = ()
    """The user's own settings files whose text `start` wants in `Work.files`. Places are as
    `lib.directories` has them."""
    logins: tuple[str, ...] = ()
    """Files that a new login writes: a change ends what a bad login has marked."""
    reads_env: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    """Variables of the daemon that its program is given beside those for every program: its own
    settings and logins. Names as `backends.variables` has them; not where another backend has its
    key in one, unless `setup` says that it is this program's login."""
    named: Mapping[str, str] = {}
    """The user's own settings files that name further ones, and the pattern of a name in each."""
    resumes: Callable[[Options], bool] = lambda _: False
    """Checks whether `start` can continue the conversation that `Work.resume` names."""
    resumes_anywhere: bool = False
    """Also from another working directory than the one in which it was held."""
    greets: bool = False
    """
    True for a program that prints at once that it has begun; silence means that it cannot read its
    conversation.
    """
    forks: bool = False
    """Two of its programs that continue one conversation lose each other's turns without a word."""
    counts_conversation: bool = False
    """The usage that it reports is that of the whole conversation."""
    takes_messages: Callable[[Options], bool] = lambda _: False
    """Checks whether `start` sends `Work.earlier` in front of the prompt."""
    imports: Callable[[str, str, Options, int], CommandLine] | None = None
    """
    Takes a file with a conversation in, for a directory, as that line of the program does. None: it
    is a file there already.
    """
    drops: Callable[[str, Options], CommandLine] | None = None
    """Removes a conversation that was taken in, by its id."""
    login: Login | None = None
    """Its login; None: it cannot be checked from outside."""
    structured: bool = False
    """Its output shows `ProviderAnswered` by itself; else success at exit is the first sign."""
    footprint: Callable[[Options], Footprint] = lambda _: Footprint()
    """Footprint of a program."""
    project: ProjectFiles = ProjectFiles(places=())
    plan: PlanInquiry | None = None
    sessions: SessionFiles | None = None
    """Files in which it writes the sessions of a person; None: that cannot be followed."""
