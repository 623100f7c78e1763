"""Earlier turns in front of a prompt, in each HTTP dialect."""

from typing import Any

import msgspec
import pytest
from msgspec import structs

from fallbackd.backends import KINDS
from fallbackd.backends.http_answers import turns
from fallbackd.backends.spec import Options
from fallbackd.core.protocol import HttpRequest, Work
from fallbackd_conversations.turns import ToolUse, Utterance

TALK = (
    Utterance(role="user", text="one"),
    Utterance(
        role="assistant", text="two", tools=(ToolUse(name="shell", command="ls", outcome="done"),)
    ),
)
WORK = Work(prompt="three", prompt_path="/p", cwd="/c", scratch="/s", model="m", earlier=TALK)
TWO = "[ran: ls → ok]\n\ntwo"


def body(kind: str, mode: str) -> dict[str, Any]:
    call = KINDS[kind].start(
        structs.replace(WORK), Options(base_url="http://127.0.0.1:1", api_mode=mode)
    )
    assert isinstance(call, HttpRequest)
    found: dict[str, Any] = msgspec.json.decode(call.body)
    return found


@pytest.mark.parametrize(
    ("kind", "mode"), [("openai-http", "chat_completions"), ("anthropic-http", "messages")]
)
def test_earlier_turns_are_messages(kind: str, mode: str) -> None:
    assert body(kind, mode)["messages"] == [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": TWO},
        {"role": "user", "content": "three"},
    ]


def test_earlier_turns_are_items_of_the_responses_api() -> None:
    items = body("openai-http", "responses")["input"]
    assert [(one["role"], one["content"][0]) for one in items] == [
        ("user", {"type": "input_text", "text": "one"}),
        ("assistant", {"type": "output_text", "text": TWO}),
        ("user", {"type": "input_text", "text": "three"}),
    ]


def test_earlier_turns_are_contents_of_the_google_api() -> None:
    contents = body("google-http", "generate_content")["contents"]
    assert [(one["role"], one["parts"][0]["text"]) for one in contents] == [
        ("user", "one"),
        ("model", TWO),
        ("user", "three"),
    ]


def test_roles_alternate_whatever_was_said() -> None:
    talk = (TALK[0], TALK[0], TALK[1], TALK[0])
    assert list(turns(talk, "three")) == [
        ("user", "one\n\none"),
        ("assistant", TWO),
        ("user", "one\n\nthree"),
    ]
