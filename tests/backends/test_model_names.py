"""The names that different hosts have for one model."""

import pytest

from fallbackd.backends.model_names import plain, spelled_like

ROUTER = "anthropic/claude-opus-4.1"
BEDROCK = "us.anthropic.claude-opus-4-1-20250805-v1:0"


@pytest.mark.parametrize(
    "name",
    [
        "claude-sonnet-4-5",
        "claude-sonnet-4-5-20250929",
        "anthropic/claude-sonnet-4.5",
        "anthropic/claude-sonnet-4.5:beta",
        "anthropic.claude-sonnet-4-5-20250929-v1:0",
        "eu.anthropic.claude-sonnet-4-5-20250929-v1:0",
        "claude-sonnet-4-5@20250929",
    ],
)
def test_the_names_of_one_model_are_known_as_the_same(name: str) -> None:
    assert plain(name) == "claude-sonnet-4-5"


@pytest.mark.parametrize(
    ("model", "own", "spelled"),
    [
        ("claude-sonnet-4-5", ROUTER, "anthropic/claude-sonnet-4.5"),
        ("claude-haiku-4-5-20251001", ROUTER, "anthropic/claude-haiku-4.5"),
        ("claude-opus-4-1", ROUTER, ROUTER),
        ("claude-opus-4-1-20250805", ROUTER, ROUTER),
        ("gpt-4.1-mini", "openai/gpt-4.1", "openai/gpt-4.1-mini"),
        ("gemini-2.5-flash", "google/gemini-2.5-pro", "google/gemini-2.5-flash"),
        ("gpt-5-mini", "openai/gpt-5", "openai/gpt-5-mini"),
        ("claude-sonnet-4-5", BEDROCK, "us.anthropic.claude-sonnet-4-5-20250929-v1:0"),
        ("claude-opus-4-1", BEDROCK, BEDROCK),
        ("claude-next-9", BEDROCK, "claude-next-9"),
        ("claude-next-9-20270101", BEDROCK, "us.anthropic.claude-next-9-20270101-v1:0"),
        ("anthropic/claude-sonnet-4.5", "claude-opus-4-1", "claude-sonnet-4-5"),
        ("openai/gpt-4.1", "gpt-5", "gpt-4.1"),
        ("gpt-4.1", "openai/gpt-5", "openai/gpt-4.1"),
        (BEDROCK, "claude-sonnet-4-5", "claude-opus-4-1"),
        ("claude-sonnet-4-5-20250929", "claude-sonnet-4-5", "claude-sonnet-4-5-20250929"),
        ("gpt-4.1", "gpt-4o", "gpt-4.1"),
    ],
)
def test_a_model_is_asked_for_in_the_way_of_its_host(model: str, own: str, spelled: str) -> None:
    assert spelled_like(model, own) == spelled
