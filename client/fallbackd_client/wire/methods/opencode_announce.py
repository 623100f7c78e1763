"""`opencode.announce`: a running opencode server says that it is there."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from fallbackd_client.wire.bounds import DirectoryPath
from fallbackd_client.wire.envelope import Method

Address = Annotated[str, Meta(min_length=1, max_length=2000)]


class Params(Struct, frozen=True, kw_only=True, omit_defaults=True):
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


class Result(Struct, frozen=True, kw_only=True):
    url: str
    known: bool
    """It was known before."""
    daemon: str
    """Version of the daemon."""
    via: Literal["url", "plugin"] = "url"
    """How the daemon follows the sessions there."""


METHOD: Method[Params, Result] = Method(
    "opencode.announce",
    params=Params,
    result=Result,
    read_only=False,
    summary="A running opencode server says that it is there, to be watched.",
)
