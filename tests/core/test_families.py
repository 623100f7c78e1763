"""Which family of models answers for a candidate."""

import pytest

from fallbackd.core.ids import BackendId
from fallbackd.core.policy import Backend, Policy
from fallbackd.core.routing.candidates import (
    UNKNOWN,
    differs,
    family_of,
    family_of_model,
    known_families,
)


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("claude-sonnet-4-5", "claude"),
        ("opus", "claude"),
        ("anthropic/claude-opus-4", "claude"),
        ("openrouter/google/gemini-3-pro", "gemini"),
        ("gpt-5.3-codex", "gpt"),
        ("o3-mini", "gpt"),
        ("o4", "gpt"),
        ("meta-llama/llama-4-scout", "llama"),
        ("codellama:13b", "llama"),
        ("qwen3-coder", "qwen"),
        ("qwq-32b", "qwen"),
        ("deepseek-r1-distill-qwen-32b", "deepseek"),
        ("moonshotai/kimi-k2", "kimi"),
        ("z-ai/glm-4.6", "glm"),
        ("x-ai/grok-4", "grok"),
        ("mistral/devstral-small", "mistral"),
        ("google/some-new-model", None),
        ("solo3", None),
        ("hermes", None),
    ],
)
def test_the_name_of_a_model_shows_its_family(model: str, family: str | None) -> None:
    assert family_of_model(model) == family


def test_what_is_configured_holds_for_the_model_of_the_backend_itself() -> None:
    own = Backend(id=BackendId("x"), kind="codex", family="mine", model="claude-tuned")
    assert family_of(own, "claude-tuned") == "mine"
    assert family_of(own, None) == "mine"
    assert family_of(own, "gpt-5") == "gpt"
    assert family_of(own, "who-knows") == "mine"


def test_an_unknown_family_differs_from_nothing() -> None:
    assert differs("gpt", frozenset({"claude"}))
    assert not differs("claude", frozenset({"claude"}))
    assert not differs(None, frozenset({"claude"}))
    assert not differs("gpt", frozenset({UNKNOWN}))
    assert differs(None, frozenset())


def test_families_of_the_configuration_may_be_named_too() -> None:
    mine = Backend(id=BackendId("x"), kind="codex", family="mine")
    assert {"mine", "gpt"} <= known_families(Policy(backends={mine.id: mine}))
