"""Questions: choices that wait for a person."""

from msgspec import Struct

from fallbackd_client.wire.bounds import CountLimit, Name, Note, SessionName
from fallbackd_client.wire.envelope import Method
from fallbackd_client.wire.shapes import Question


class QuestionListParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    session: SessionName | None = None
    """Only of this session."""
    closed: bool = False
    """With questions that are closed."""
    limit: CountLimit | None = None
    """At most this many, newest first."""


class QuestionListResult(Struct, frozen=True, kw_only=True):
    questions: tuple[Question, ...] = ()
    """The questions, newest first."""


QUESTION_LIST: Method[QuestionListParams, QuestionListResult] = Method(
    "question.list",
    params=QuestionListParams,
    result=QuestionListResult,
    read_only=True,
    who="person",
    errors=("unknown",),
    summary="Choices that wait for a person; with `closed` those too that wait no more.",
    example=(
        {},
        {
            "questions": [
                {
                    "question": "d4f0c2a91b7e.q1",
                    "delegation": "d4f0c2a91b7e",
                    "kind": "outage",
                    "text": "codex is unavailable (usage_limit). How should the review continue?",
                    "options": [
                        {"choice": "use:claude", "text": "let claude do it"},
                        {"choice": "wait", "text": "wait for codex"},
                        {"choice": "stop", "text": "cancel it"},
                    ],
                    "opened_at": 1767268800.0,
                    "role": "judge",
                }
            ]
        },
    ),
)


class QuestionAnswerParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    question: Name
    """Id of the question."""
    choice: Name
    """One of its options, such as `wait`, `stop` or `use:codex`."""
    note: Note | None = None
    """A note that is kept with the answer."""


QUESTION_ANSWER: Method[QuestionAnswerParams, Question] = Method(
    "question.answer",
    params=QuestionAnswerParams,
    result=Question,
    read_only=False,
    who="person",
    promises="record",
    errors=("unknown", "busy", "draining"),
    summary="Answer a question with one of its choices; the delegation acts on it.",
    example=(
        {"question": "d4f0c2a91b7e.q1", "choice": "use:claude"},
        {
            "question": "d4f0c2a91b7e.q1",
            "delegation": "d4f0c2a91b7e",
            "kind": "outage",
            "text": "codex is unavailable (usage_limit). How should the review continue?",
            "options": [
                {"choice": "use:claude", "text": "let claude do it"},
                {"choice": "wait", "text": "wait for codex"},
                {"choice": "stop", "text": "cancel it"},
            ],
            "opened_at": 1767268800.0,
            "role": "judge",
            "answered_at": 1767268830.0,
            "answered_by": {"uid": 1000, "pid": 4812},
            "choice": "use:claude",
            "closed_at": 1767268830.0,
        },
    ),
)


METHODS = (
    QUESTION_LIST,
    QUESTION_ANSWER,
)
