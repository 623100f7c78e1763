"""Which conversation a request belongs to, by the marks of the clients that there are."""

import json
from typing import Any

import pytest

from fallbackd.backends.passage import Passage
from fallbackd.fronts.gateway.routes import session_of

ASKED = Passage(mode="messages", model="m", is_streamed=True)
FIRST = {"role": "user", "content": "a question"}
SAID = {"role": "assistant", "content": "an answer"}
MORE = {"role": "user", "content": "and then?"}


def session(body: Any, **headers: str) -> str | None:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return session_of(named, ASKED, json.dumps(body).encode())


def test_what_the_caller_names_goes_before_what_its_program_sends() -> None:
    named = session({}, x_fallbackd_session="mine")
    assert named is not None
    assert session({"user": "u"}, x_fallbackd_session="mine", x_session_id="theirs") == named
    assert session({}, x_session_id="theirs") not in (None, named)


def test_a_subagent_has_a_conversation_of_its_own() -> None:
    main = session({}, x_claude_code_session_id="s")
    agents = {session({}, x_claude_code_session_id="s", x_claude_code_agent_id=one) for one in "ab"}
    assert len({main, *agents}) == 3


@pytest.mark.parametrize(
    "body",
    [
        {"prompt_cache_key": "k"},
        {"metadata": {"user_id": '{"device_id": "d", "session_id": "s"}'}},
        {"metadata": {"user_id": "user_1_account__session_2"}},
        {"user": "u"},
    ],
)
def test_fields_of_a_body_name_a_conversation_whatever_is_asked(body: dict[str, Any]) -> None:
    found = session({**body, "messages": [FIRST]})
    assert found is not None
    assert session({**body, "messages": [MORE]}) == found


def test_what_differs_with_each_call_of_a_session_does_not_count() -> None:
    def of(device: str) -> str | None:
        user_id = json.dumps({"device_id": device, "session_id": "s"})
        return session({"metadata": {"user_id": user_id}})

    assert of("one") == of("other")


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda said: {"messages": [{"role": "system", "content": "all alike"}, *said]},
        lambda said: {"input": said},
        lambda said: {"contents": [{**one, "role": _google(one["role"])} for one in said]},
    ],
)
def test_a_conversation_without_marks_is_known_by_how_it_began(wrapped: Any) -> None:
    found = session(wrapped([FIRST, SAID, MORE]))
    assert found is not None
    assert session(wrapped([FIRST, SAID, MORE, SAID, FIRST])) == found
    assert session(wrapped([MORE, SAID, FIRST])) != found


def _google(role: str) -> str:
    return "model" if role == "assistant" else role


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [FIRST]},
        {"messages": [{"role": "system", "content": "all alike"}, FIRST]},
        {"input": "a question"},
        {"messages": "no list", "metadata": 3, "input": {"role": "user"}},
        [],
    ],
)
def test_a_request_that_stands_alone_has_no_conversation(body: Any) -> None:
    assert session(body) is None


def test_a_question_beside_a_conversation_belongs_to_none() -> None:
    asked = Passage(mode="messages", model="m", is_streamed=False, side="count_tokens")
    assert session_of({"x-session-id": "s"}, asked, b"{}") is None
