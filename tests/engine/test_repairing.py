"""Repairs of the requests of a delegation: what one attempt learns, and what is kept."""

import json
from typing import Any

from fallbackd.backends.http_calls import HTTP_KINDS
from fallbackd.backends.repairs import words_of
from fallbackd.backends.spec import Options
from fallbackd.core.ids import BackendId, DelegationId, SessionId
from fallbackd.core.policy import Policy
from fallbackd.core.protocol import Evidence, HttpRequest
from fallbackd.engine.environment import Settings
from fallbackd.engine.repairing import MOST, Asked, AttemptRepairs, KnownRepairs, repaired

SETTINGS = Settings(policy=Policy(), options={})
NO_MAX_TOKENS = "Unsupported parameter: 'max_tokens' is not supported with this model."
NO_COMPLETION_TOKENS = "Unsupported parameter: 'max_completion_tokens' is not supported here."
NO_THOUGHT = "Expected `thinking` or `redacted_thinking`, but found `text`"


def attempt(
    known: KnownRepairs,
    body: dict[str, Any],
    *,
    mode: Any = "chat_completions",
    delegation: str = "d1",
    session: str = "s1",
    settings: Settings = SETTINGS,
) -> tuple[dict[str, Any], AttemptRepairs]:
    """What an attempt sends, and its repairs."""
    call = HttpRequest(method="POST", url="http://x.example", body=json.dumps(body).encode())
    made, repairs = repaired(
        call,
        next(one for one in HTTP_KINDS if one.name == "openai-http"),
        Options(api_mode=mode),
        known=known,
        settings=settings,
        asked=Asked(backend=BackendId("a"), model="m", session=SessionId(session)),
        delegation=DelegationId(delegation),
    )
    assert isinstance(made, HttpRequest)
    assert repairs is not None
    return json.loads(made.body), repairs


def refused(text: str) -> Evidence:
    return Evidence(text=text, stream="http", http_status=400)


def test_a_repair_is_not_reversed_when_its_result_is_refused_too() -> None:
    known, body = KnownRepairs(), {"max_tokens": 9}
    _, first = attempt(known, body)
    assert words_of(first.learn(refused(NO_MAX_TOKENS))) == "max_tokens as max_completion_tokens"
    sent, second = attempt(known, body)
    assert sent == {"max_completion_tokens": 9}
    assert second.learn(refused(NO_COMPLETION_TOKENS)) == ()


def test_a_request_is_changed_as_the_configuration_says_before_what_was_learned() -> None:
    own = Options(
        omit=("top_p",),
        rename={"max_tokens": "max_completion_tokens"},
        default={"seed": 7, "user": "me"},
    )
    settings = Settings(policy=Policy(), options={BackendId("a"): own})
    known, body = KnownRepairs(), {"max_tokens": 9, "top_p": 1, "user": "caller"}
    sent, first = attempt(known, body, settings=settings)
    assert sent == {"max_completion_tokens": 9, "seed": 7, "user": "caller"}
    words = "max_tokens as max_completion_tokens, no top_p, seed by default"
    assert words_of(first.made) == words
    assert words_of(first.learn(refused("Unsupported parameter: 'seed'"))) == "no seed"
    attempt(known, body, settings=settings)[1].keep()
    sent, _ = attempt(known, body, settings=settings, delegation="d2")
    assert sent == {"max_completion_tokens": 9, "user": "caller"}


def test_a_delegation_makes_no_more_repairs_than_a_call_of_the_gateway() -> None:
    known, names = KnownRepairs(), ["temperature", "top_p", "seed", "user", "store", "metadata"]
    names += ["verbosity", "service_tier"]
    body = dict.fromkeys(names, 1)
    for number, name in enumerate(names):
        sent, repairs = attempt(known, body)
        assert len(sent) == len(names) - min(number, MOST)
        learned = repairs.learn(refused(f"Unsupported parameter: '{name}' is not supported."))
        assert bool(learned) == (number < MOST)


def test_another_delegation_is_not_repaired_before_a_repair_has_helped() -> None:
    known, body = KnownRepairs(), {"temperature": 1}
    attempt(known, body)[1].learn(refused("Unsupported parameter: 'temperature'"))
    assert attempt(known, body, delegation="d2")[0] == body
    attempt(known, body)[1].keep()
    assert attempt(known, body, delegation="d2")[0] == {}


def test_a_repair_of_a_conversation_is_made_once_and_kept_for_its_session() -> None:
    known, body = KnownRepairs(), {"thinking": {"type": "enabled"}, "messages": []}
    _, first = attempt(known, body, mode="messages")
    assert words_of(first.learn(refused(NO_THOUGHT))) == "no thinking"
    sent, second = attempt(known, body, mode="messages")
    assert sent == {"messages": []}
    assert second.learn(refused(NO_THOUGHT)) == ()
    second.keep()
    assert attempt(known, body, mode="messages", delegation="d2")[0] == {"messages": []}
    other, _ = attempt(known, body, mode="messages", delegation="d3", session="s2")
    assert other == body
