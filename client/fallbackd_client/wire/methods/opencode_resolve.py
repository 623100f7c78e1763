"""`opencode.resolve`: to which model a message of an opencode session is to be sent."""

from typing import Annotated

from msgspec import Meta, Struct

from fallbackd_client.wire.bounds import DirectoryPath, Name, RoleName, SessionName
from fallbackd_client.wire.envelope import Method
from fallbackd_client.wire.shapes import CandidateVerdict


class Params(Struct, frozen=True, kw_only=True, omit_defaults=True):
    session: SessionName
    model: Name
    """`provider/model` that the message names."""
    agent: RoleName | None = None
    directory: DirectoryPath | None = None
    server: Annotated[str, Meta(max_length=2000)] | None = None
    """Address of the server on which the session lives."""


class Result(Struct, frozen=True, kw_only=True):
    model: str
    """The one to use: the same where nothing is to be changed."""
    redirected: bool
    reason: str | None = None
    """Why another one is used."""
    retry_at: float | None = None
    """Nobody is usable: the earliest return, where one is known."""
    candidates: tuple[CandidateVerdict, ...] = ()


METHOD: Method[Params, Result] = Method(
    "opencode.resolve",
    params=Params,
    result=Result,
    read_only=False,
    summary="To which model a message of an opencode session is to be sent.",
)
