"""Servers of opencode, and the plugin in them."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from fallbackd_client.wire.bounds import DirectoryPath, Name, RoleName, SessionName
from fallbackd_client.wire.envelope import Method
from fallbackd_client.wire.shapes import CandidateVerdict

Address = Annotated[str, Meta(min_length=1, max_length=2000)]


class OpencodeAnnounceParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    url: Address
    """`http://127.0.0.1:PORT`: on this machine only."""
    password: Annotated[str, Meta(min_length=1, max_length=1000)] | None = None
    """Kept in memory, for as long as the daemon runs."""
    directory: DirectoryPath | None = None
    version: Annotated[str, Meta(max_length=100)] | None = None
    plugin: bool = False
    """
    The caller is a plugin of that opencode: where the daemon cannot reach the address, it sends
    events as `opencode.event`, and answers notifications `opencode.call` with `opencode.answer`.
    """

    def __repr__(self) -> str:  # the password stays out of every log
        return f"Params(url={self.url!r}, directory={self.directory!r})"


class OpencodeAnnounceResult(Struct, frozen=True, kw_only=True):
    url: str
    known: bool
    """It was known before."""
    daemon: str
    """Version of the daemon."""
    via: Literal["url", "plugin"] = "url"
    """How the daemon follows the sessions there."""


OPENCODE_ANNOUNCE: Method[OpencodeAnnounceParams, OpencodeAnnounceResult] = Method(
    "opencode.announce",
    params=OpencodeAnnounceParams,
    result=OpencodeAnnounceResult,
    read_only=False,
    summary="A running opencode server says that it is there, to be watched.",
)


class OpencodeAnswerParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    call: Annotated[int, Meta(ge=1)]
    """Number of the notification `opencode.call`."""
    status: Annotated[int, Meta(ge=0, le=599)]
    """Of HTTP; 0: no answer came."""
    text: str = ""
    """Its JSON, or a piece of it."""
    more: bool = False
    """Another piece follows."""


class OpencodeAnswerResult(Struct, frozen=True, kw_only=True):
    heard: bool


OPENCODE_ANSWER: Method[OpencodeAnswerParams, OpencodeAnswerResult] = Method(
    "opencode.answer",
    params=OpencodeAnswerParams,
    result=OpencodeAnswerResult,
    read_only=False,
    summary="A plugin of opencode answers a call of the daemon, in one or more pieces.",
)


class OpencodeEventParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    event: dict[str, Any]  # any JSON
    """`{id, type, properties}`, as opencode has it."""
    directory: DirectoryPath | None = None


class OpencodeEventResult(Struct, frozen=True, kw_only=True):
    heard: bool
    """False: this connection is not followed; announce it with `opencode.announce`."""


OPENCODE_EVENT: Method[OpencodeEventParams, OpencodeEventResult] = Method(
    "opencode.event",
    params=OpencodeEventParams,
    result=OpencodeEventResult,
    read_only=False,
    summary="A plugin of opencode passes on an event of its sessions.",
)


class OpencodeResolveParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    session: SessionName
    model: Name
    """`provider/model` that the message names."""
    agent: RoleName | None = None
    directory: DirectoryPath | None = None
    server: Annotated[str, Meta(max_length=2000)] | None = None
    """Address of the server on which the session lives."""


class OpencodeResolveResult(Struct, frozen=True, kw_only=True):
    model: str
    """The one to use: the same where nothing is to be changed."""
    redirected: bool
    reason: str | None = None
    """Why another one is used."""
    retry_at: float | None = None
    """When the first model is available again, if none is now and a time is known."""
    candidates: tuple[CandidateVerdict, ...] = ()


OPENCODE_RESOLVE: Method[OpencodeResolveParams, OpencodeResolveResult] = Method(
    "opencode.resolve",
    params=OpencodeResolveParams,
    result=OpencodeResolveResult,
    read_only=False,
    summary="To which model a message of an opencode session is to be sent.",
)


class OpencodeStatusParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    session: SessionName | None = None
    directory: DirectoryPath | None = None
    """Whose files are looked at; null: that of the session."""
    verbose: bool = False
    """With the usage of each time in which the session was on one model."""


class ServerLine(Struct, frozen=True, kw_only=True):
    url: str
    up: bool
    """Its events are followed."""
    announced: bool
    """By itself, not by the configuration."""
    version: str | None = None
    problem: Annotated[str, Meta(description="Why it is not followed.")] | None = None


class PeriodLine(Struct, frozen=True, kw_only=True):
    """A time in which a session was on one model: from its first instant, without its last."""

    model: str
    from_at: float
    to_at: float | None = None
    """Null: it goes on."""
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None


class RescueLine(Struct, frozen=True, kw_only=True):
    """A change of the model that is under way."""

    step: str
    from_: str = field(name="from")
    to: str
    reason: str
    since_at: float


class OpencodeStatusResult(Struct, frozen=True, kw_only=True):
    servers: tuple[ServerLine, ...] = ()
    rescue: RescueLine | None = None
    periods: tuple[PeriodLine, ...] = ()
    text: str = ""
    """Markdown, for a person in the session."""


OPENCODE_STATUS: Method[OpencodeStatusParams, OpencodeStatusResult] = Method(
    "opencode.status",
    params=OpencodeStatusParams,
    result=OpencodeStatusResult,
    read_only=True,
    summary="The opencode servers that are watched, and the state of one session in words.",
)


METHODS = (
    OPENCODE_ANNOUNCE,
    OPENCODE_ANSWER,
    OPENCODE_EVENT,
    OPENCODE_RESOLVE,
    OPENCODE_STATUS,
)
