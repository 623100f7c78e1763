"""`question.list`: choices that wait for a person."""

from msgspec import Struct

from fallbackd_client.wire.bounds import CountLimit, SessionName
from fallbackd_client.wire.envelope import Method
from fallbackd_client.wire.shapes import Question


class Params(Struct, frozen=True, kw_only=True, omit_defaults=True):
    session: SessionName | None = None
    closed: bool = False
    """Those too that were answered, or whose work has ended without an answer."""
    limit: CountLimit | None = None


class Result(Struct, frozen=True, kw_only=True):
    questions: tuple[Question, ...] = ()
    """Newest first."""


METHOD: Method[Params, Result] = Method(
    "question.list",
    params=Params,
    result=Result,
    read_only=True,
    summary="Choices that wait for a person; with `closed` those too that wait no more.",
)
