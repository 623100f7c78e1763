"""What a path asks for, and in whose words an error at it is told."""

import pytest

from fallbackd.fronts.gateway.incoming import HeadIn
from fallbackd.fronts.gateway.routes import asked, mode_of, nothing_at, route_of


@pytest.mark.parametrize("version", ["v1beta", "v1alpha", "v1"])
@pytest.mark.parametrize(
    ("named", "model"),
    [
        ("team", "team"),
        ("chain:team", "chain:team"),
        ("qwen3:8b", "qwen3:8b"),
        ("vendor/x", "vendor/x"),
        ("vendor%2Fx", "vendor/x"),
        ("vendor/x:free", "vendor/x:free"),
        ("a:generateContent", "a:generateContent"),
    ],
)
def test_the_action_of_google_stands_behind_the_last_colon(
    version: str, named: str, model: str
) -> None:
    sides = ("countTokens", "embedContent", "batchEmbedContents")
    for action in ("generateContent", "streamGenerateContent", *sides):
        path = f"/{version}/models/{named}:{action}"
        route = route_of(path)
        assert route is not None
        assert (route.mode, route.model) == ("generate_content", model)
        assert route.is_streamed == (action == "streamGenerateContent")
        assert route.side == (action if action in sides else "")
        assert mode_of(path) == "generate_content"


@pytest.mark.parametrize(
    "path",
    [
        "/v1beta/models/team",
        "/v1beta/models/team:predict",
        "/v1beta/models/:generateContent",
        "/v1beta/models:generateContent",
        "/v1beta/models/team:generateContent/more",
    ],
)
def test_another_action_of_google_is_no_route(path: str) -> None:
    assert route_of(path) is None


@pytest.mark.parametrize(
    ("path", "mode"),
    [
        ("/v1beta/models", "generate_content"),
        ("/v1beta/", "generate_content"),
        ("/v1alpha/nothing", "generate_content"),
        ("/v1/models/team:embedContent", "generate_content"),
        ("/v1/models", "chat_completions"),
        ("/v1/models/team", "chat_completions"),
        ("/v1betas", "chat_completions"),
        ("/v1/messages/batches", "messages"),
        ("/v1/responses/compact", "responses"),
    ],
)
def test_an_error_is_told_in_the_words_of_the_api_of_its_path(path: str, mode: str) -> None:
    assert mode_of(path) == mode


def test_nothing_is_offered_for_a_path_that_is_like_no_other() -> None:
    assert nothing_at("/v2/things", 41411).message == "nothing is at /v2/things"


@pytest.mark.parametrize(
    ("path", "near", "base"),
    [
        ("/chat/completions", "/v1/chat/completions", "http://127.0.0.1:41411/v1"),
        ("/v1/v1/messages", "/v1/messages", "http://127.0.0.1:41411"),
        ("/v1/v1/messages/count_tokens", "/v1/messages/count_tokens", "http://127.0.0.1:41411"),
        ("/api/v1/responses/", "/v1/responses", "http://127.0.0.1:41411/v1"),
        ("/models", "/v1/models", "http://127.0.0.1:41411/v1"),
        ("/v1/v1beta/models/m:generateContent", "/v1beta/models/m:generateContent", "41411"),
    ],
)
def test_a_wrong_base_url_is_answered_with_the_right_one(path: str, near: str, base: str) -> None:
    refusal = nothing_at(path, 41411)
    assert refusal.status == 404
    assert f"; {near} is answered" in refusal.message
    assert refusal.message.endswith(base)
    assert mode_of(path) == mode_of(near)


@pytest.mark.parametrize(("n", "is_single"), [("", True), (',"n":1', True), (',"n":2', False)])
def test_one_answer_is_known_from_several(n: str, is_single: bool) -> None:
    head = HeadIn(method="POST", path="/v1/chat/completions", query="", headers=[], port=None)
    route = route_of(head.path)
    assert route is not None
    found = asked(route, head, b'{"model":"m"%b}' % n.encode())
    assert found.is_single is is_single
