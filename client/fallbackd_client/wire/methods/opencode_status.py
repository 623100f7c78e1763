"""`opencode.status`: the servers that are watched, and one session in words."""

from typing import Annotated

from msgspec import Meta, Struct, field

from fallbackd_client.wire.bounds import DirectoryPath, SessionName
from fallbackd_client.wire.envelope import Method


class Params(Struct, frozen=True, kw_only=True, omit_defaults=True):
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


class Result(Struct, frozen=True, kw_only=True):
    servers: tuple[ServerLine, ...] = ()
    rescue: RescueLine | None = None
    periods: tuple[PeriodLine, ...] = ()
    text: str = ""
    """Markdown, for a person in the session."""


METHOD: Method[Params, Result] = Method(
    "opencode.status",
    params=Params,
    result=Result,
    read_only=True,
    summary="The opencode servers that are watched, and the state of one session in words.",
)
