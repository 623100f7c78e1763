from tests.client.conftest import RunCli
from tests.client.scripted import Failing


def test_an_answer_is_sent_and_said(run_cli: RunCli) -> None:
    answered = {"question": "d1.q1", "choice": "stop", "answered_by": {"uid": 1000, "pid": 7}}
    ran = run_cli(["answer", "d1.q1", "stop", "--note", "not today"], {"question.answer": answered})
    assert (ran.code, ran.out) == (0, "d1.q1: stop by user 1000 (pid 7)\n")
    assert ran.params("question.answer") == {
        "question": "d1.q1",
        "choice": "stop",
        "note": "not today",
    }


def test_a_second_answer_is_said_to_be_one(run_cli: RunCli) -> None:
    ran = run_cli(
        ["answer", "d1.q1", "stop"],
        {"question.answer": Failing(-32002, "d1.q1 was answered before: skip")},
    )
    assert ran.code == 75
    assert "answered before" in ran.err


def test_a_question_that_nobody_asked_is_said(run_cli: RunCli) -> None:
    ran = run_cli(["answer", "d9.q1", "stop"], {"question.answer": Failing(-32001, "no question")})
    assert ran.code == 2
    assert "no question" in ran.err
