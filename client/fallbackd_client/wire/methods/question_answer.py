"""`question.answer`: a person has chosen. The first answer counts, and it is on record."""

from msgspec import Struct

from fallbackd_client.wire.bounds import Name, Note
from fallbackd_client.wire.envelope import Method
from fallbackd_client.wire.shapes import Question as Result


class Params(Struct, frozen=True, kw_only=True, omit_defaults=True):
    question: Name
    choice: Name
    """One of the question's options."""
    note: Note | None = None
    """Kept with the answer."""


METHOD: Method[Params, Result] = Method(
    "question.answer",
    params=Params,
    result=Result,
    read_only=False,
    summary="Answer a question with one of its choices; the delegation goes on, or ends, by it.",
)
