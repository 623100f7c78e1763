"""Questions: choices that wait for a person."""

from msgspec import Struct

from fallbackd_client.wire.bounds import CountLimit, Name, Note, SessionName
from fallbackd_client.wire.envelope import Method
from fallbackd_client.wire.shapes import Question


class QuestionListParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    session: SessionName | None = None
    closed: bool = False
    """Those too that were answered, or whose work has ended without an answer."""
    limit: CountLimit | None = None


class QuestionListResult(Struct, frozen=True, kw_only=True):
    questions: tuple[Question, ...] = ()
    """Newest first."""


QUESTION_LIST: Method[QuestionListParams, QuestionListResult] = Method(
    "question.list",
    params=QuestionListParams,
    result=QuestionListResult,
    read_only=True,
    summary="Choices that wait for a person; with `closed` those too that wait no more.",
)


class QuestionAnswerParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    question: Name
    choice: Name
    """One of the question's options."""
    note: Note | None = None
    """Kept with the answer."""


QUESTION_ANSWER: Method[QuestionAnswerParams, Question] = Method(
    "question.answer",
    params=QuestionAnswerParams,
    result=Question,
    read_only=False,
    summary="Answer a question with one of its choices; the delegation goes on, or ends, by it.",
)


METHODS = (
    QUESTION_LIST,
    QUESTION_ANSWER,
)
