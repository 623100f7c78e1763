"""How many tokens a request has, as it is estimated."""

import json
from typing import Any

import pytest

from fallbackd.backends.passage import TOKENS_PER_IMAGE, prompt_tokens

DATA = "A" * 300_000


def tokens(body: dict[str, Any]) -> int:
    return prompt_tokens(json.dumps(body).encode(), exact_from=10)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image", "source": {"type": "base64", "data": DATA}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + DATA}},
        {"type": "input_image", "image_url": "data:image/png;base64," + DATA},
        {"inlineData": {"mimeType": "image/png", "data": DATA}},
        {"inline_data": {"mime_type": "image/png", "data": DATA}},
    ],
)
def test_an_image_counts_alike_whatever_its_size(part: dict[str, Any]) -> None:
    found = tokens({"messages": [{"role": "user", "content": [part]}]})
    assert TOKENS_PER_IMAGE <= found < TOKENS_PER_IMAGE + 20


def test_text_counts_by_its_characters_wherever_it_stands() -> None:
    said = {"system": "x" * 3200, "messages": [{"content": [{"type": "text", "text": "ä" * 3200}]}]}
    assert 2000 <= tokens(said) <= 2010


def test_a_schema_of_a_tool_may_name_several_types() -> None:
    schema = {"type": "object", "properties": {"x": {"type": ["string", "null"]}}}
    assert tokens({"tools": [{"parameters": schema}], "messages": []}) < 20


def test_a_signature_is_no_text() -> None:
    assert tokens({"messages": [{"thinking": "x", "signature": DATA}]}) < 10


def test_a_short_body_and_one_that_cannot_be_read_count_by_their_length() -> None:
    assert prompt_tokens(b"{}" * 16, exact_from=10) == 10
    assert prompt_tokens(b"{" * 3200, exact_from=10) == 1000
