from tests.client.conftest import RunCli

OPEN = {
    "question": "d1.q1",
    "delegation": "d1",
    "kind": "outage",
    "text": "codex is out. Who does it?",
    "options": [{"choice": "use:gemini", "text": "let gemini do it"}],
    "opened_at": 1.0,
}


def test_open_questions_are_shown_with_their_choices(run_cli: RunCli) -> None:
    ran = run_cli(["questions", "--session", "s1"], {"question.list": {"questions": [OPEN]}})
    assert ran.code == 0
    assert "d1.q1" in ran.out
    assert "use:gemini: let gemini do it" in ran.out
    assert "fallbackd-client answer d1.q1 CHOICE" in ran.out
    assert ran.params("question.list") == {"session": "s1"}


def test_questions_that_were_answered_are_shown_where_asked_for(run_cli: RunCli) -> None:
    answered = {
        **OPEN,
        "choice": "stop",
        "note": "not\x1b[31m today",
        "answered_by": {"uid": 1000, "pid": 7},
        "closed_at": 2.0,
    }
    ran = run_cli(["questions", "--all"], {"question.list": {"questions": [answered]}})
    assert "stop by user 1000 (pid 7)" in ran.out
    assert "CHOICE" not in ran.out
    assert "\x1b" not in ran.out
    assert ran.params("question.list") == {"closed": True}


def test_a_question_that_nobody_answered_is_shown_as_closed(run_cli: RunCli) -> None:
    closed = {**OPEN, "closed_at": 2.0}
    ran = run_cli(["questions", "--all"], {"question.list": {"questions": [closed]}})
    assert "d1.q1 was closed" in ran.out


def test_no_open_question_is_said(run_cli: RunCli) -> None:
    assert run_cli(["questions"], {"question.list": {"questions": []}}).out == "no open questions\n"
