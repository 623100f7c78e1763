"""Servers of opencode, and the plugin in them."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from fallbackd_client.wire.bounds import DirectoryPath, Name, RoleName, SessionName
from fallbackd_client.wire.envelope import Method
from fallbackd_client.wire.shapes import CandidateVerdict

Address = Annotated[str, Meta(min_length=1, max_length=2000)]


class OpencodeAnnounceParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    url: Address
    """Address of the server, `http://127.0.0.1:PORT`; only on this machine."""
    password: Annotated[str, Meta(min_length=1, max_length=1000)] | None = None
    """Password of the server; kept in memory only."""
    directory: DirectoryPath | None = None
    """Directory of its project."""
    version: Annotated[str, Meta(max_length=100)] | None = None
    """Version of opencode."""
    plugin: bool = False
    """The caller is the plugin: if the daemon cannot reach `url`, it calls back with
    `opencode.call`."""

    def __repr__(self) -> str:  # the password stays out of every log
        return f"Params(url={self.url!r}, directory={self.directory!r})"


class OpencodeAnnounceResult(Struct, frozen=True, kw_only=True):
    url: str
    """Address of the server."""
    known: bool
    """It was known before."""
    daemon: str
    """Version of the daemon."""
    via: Literal["url", "plugin"] = "url"
    """How the daemon follows its sessions."""
    protected: bool = True
    """A chain is configured there, so that failed turns can be moved to another model."""
    problem: str | None = None
    """Why its sessions are not protected, or what cannot be used of the files that configure it."""


OPENCODE_ANNOUNCE: Method[OpencodeAnnounceParams, OpencodeAnnounceResult] = Method(
    "opencode.announce",
    params=OpencodeAnnounceParams,
    result=OpencodeAnnounceResult,
    read_only=False,
    who="any",
    promises="nothing",
    errors=("draining", "not_permitted"),
    summary="A running opencode server says that it is there, to be watched.",
    example=(
        {"url": "http://127.0.0.1:4096", "directory": "/home/me/project"},
        {"url": "http://127.0.0.1:4096", "known": False, "daemon": "0.2.0"},
    ),
)


class OpencodeAnswerParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    call: Annotated[int, Meta(ge=1)]
    """Number of the `opencode.call` notification."""
    status: Annotated[int, Meta(ge=0, le=599)]
    """HTTP status; 0: there was no answer."""
    text: str = ""
    """The JSON of the answer, or a piece of it."""
    more: bool = False
    """Another piece follows."""


class OpencodeAnswerResult(Struct, frozen=True, kw_only=True):
    heard: bool
    """The daemon was waiting for it."""


OPENCODE_ANSWER: Method[OpencodeAnswerParams, OpencodeAnswerResult] = Method(
    "opencode.answer",
    params=OpencodeAnswerParams,
    result=OpencodeAnswerResult,
    read_only=False,
    who="any",
    promises="nothing",
    errors=("draining",),
    summary="A plugin of opencode answers a call of the daemon, in one or more pieces.",
    example=({"call": 1, "status": 200, "text": "[]"}, {"heard": True}),
)


class OpencodeEventParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    event: dict[str, Any]  # any JSON
    """The event as opencode sent it: `{id, type, properties}`."""
    directory: DirectoryPath | None = None
    """Directory of the project."""


class OpencodeEventResult(Struct, frozen=True, kw_only=True):
    heard: bool
    """False: this connection is not followed; call `opencode.announce` first."""


OPENCODE_EVENT: Method[OpencodeEventParams, OpencodeEventResult] = Method(
    "opencode.event",
    params=OpencodeEventParams,
    result=OpencodeEventResult,
    read_only=False,
    who="any",
    promises="nothing",
    errors=("draining",),
    summary="A plugin of opencode passes on an event of its sessions.",
    example=(
        {"event": {"id": "evt_1", "type": "session.idle", "properties": {"sessionID": "ses_1"}}},
        {"heard": True},
    ),
)


class OpencodeResolveParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    session: SessionName
    """Id of the opencode session."""
    model: Name
    """The `provider/model` of the message."""
    agent: RoleName | None = None
    """The opencode agent, which is a role here."""
    directory: DirectoryPath | None = None
    """Directory of the project."""
    server: Annotated[str, Meta(max_length=2000)] | None = None
    """Address of the server of the session."""


class OpencodeResolveResult(Struct, frozen=True, kw_only=True):
    model: str
    """The model to use; the same if nothing is to change."""
    redirected: bool
    """It is another model."""
    reason: str | None = None
    """Why another model is used."""
    retry_at: float | None = None
    """When the first model is expected to be available again, if no candidate is."""
    candidates: tuple[CandidateVerdict, ...] = ()
    """All candidates with their verdicts."""


OPENCODE_RESOLVE: Method[OpencodeResolveParams, OpencodeResolveResult] = Method(
    "opencode.resolve",
    params=OpencodeResolveParams,
    result=OpencodeResolveResult,
    read_only=False,
    who="any",
    promises="nothing",
    errors=("unknown", "draining"),
    summary="To which model a message of an opencode session is to be sent.",
    example=(
        {"session": "ses_1", "model": "anthropic/claude-sonnet-4"},
        {
            "model": "openrouter/google/gemini-3-pro",
            "redirected": True,
            "reason": "anthropic/claude-sonnet-4 is rate-limited",
            "retry_at": 1767269100.0,
        },
    ),
)


class OpencodeStatusParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    session: SessionName | None = None
    """The opencode session to show."""
    directory: DirectoryPath | None = None
    """Project whose files are read; null: that of the session."""
    verbose: bool = False
    """With usage for each time the session was on one model."""


class ServerLine(Struct, frozen=True, kw_only=True):
    url: str
    """Address of the server."""
    up: bool
    """Its events are followed."""
    announced: bool
    """It announced itself; false: it is configured."""
    version: str | None = None
    """Version of opencode."""
    problem: Annotated[str, Meta(description="Why it is not followed.")] | None = None
    """Why it is not followed."""


class PeriodLine(Struct, frozen=True, kw_only=True):
    """A time in which a session was on one model: from its first instant, without its last."""

    model: str
    """The model."""
    from_at: float
    """When the session moved to it."""
    to_at: float | None = None
    """When the session left it; null: it is still on it."""
    input_tokens: int = 0
    """Tokens of the prompts."""
    output_tokens: int = 0
    """Tokens of the answers."""
    cost_usd: float | None = None
    """Cost in US dollars, where opencode says it."""


class RescueLine(Struct, frozen=True, kw_only=True):
    """A change of the model that is under way."""

    step: str
    """How far it is."""
    from_: str = field(name="from")
    """The model that is left."""
    to: str
    """The next model."""
    reason: str
    """Why."""
    since_at: float
    """When it began."""


class OpencodeStatusResult(Struct, frozen=True, kw_only=True):
    servers: tuple[ServerLine, ...] = ()
    """The servers that are watched."""
    rescue: RescueLine | None = None
    """A change of model that is under way."""
    periods: tuple[PeriodLine, ...] = ()
    """Times on one model, with `verbose`."""
    text: str = ""
    """The same as Markdown, for a person in the session."""


OPENCODE_STATUS: Method[OpencodeStatusParams, OpencodeStatusResult] = Method(
    "opencode.status",
    params=OpencodeStatusParams,
    result=OpencodeStatusResult,
    read_only=True,
    who="person",
    errors=("unknown",),
    summary="The opencode servers that are watched, and the state of one session in words.",
    example=(
        {"session": "ses_1"},
        {
            "servers": [{"url": "http://127.0.0.1:4096", "up": True, "announced": True}],
            "text": "No change of model.",
        },
    ),
)


METHODS = (
    OPENCODE_ANNOUNCE,
    OPENCODE_ANSWER,
    OPENCODE_EVENT,
    OPENCODE_RESOLVE,
    OPENCODE_STATUS,
)
