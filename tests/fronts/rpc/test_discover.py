"""The contract describes itself: fields, words, errors, and an example of each method."""

from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest
from msgspec import Raw
from tests.support.front import front

from fallbackd.core.reasons import Reason
from fallbackd.fronts.rpc import discover
from fallbackd.fronts.rpc.discover import document
from fallbackd.fronts.rpc.dispatch import _CODES
from fallbackd_client.wire import codes
from fallbackd_client.wire.bounds import ReasonWord
from fallbackd_client.wire.envelope import Method
from fallbackd_client.wire.methods import METHODS
from fallbackd_client.wire.methods.rpc import ABOUT

DOCUMENT = document("0")


def properties() -> Iterator[tuple[str, Any]]:
    for method in DOCUMENT["methods"]:
        for one in method["params"]:
            yield f"{method['name']}({one['name']})", one
    for name, schema in DOCUMENT["components"]["schemas"].items():
        for field, described in schema.get("properties", {}).items():
            yield f"{name}.{field}", described


def test_every_parameter_and_field_is_described_by_a_sentence() -> None:
    found = dict(properties())
    assert "Delegation.state" in found
    assert "delegate(prompt)" in found
    bare = {name for name, one in found.items() if not one.get("description")}
    assert not bare, "write a string below the field, where it is declared"
    cut = {name for name, one in found.items() if not one["description"].endswith(".")}
    assert not cut


def test_every_method_has_an_example() -> None:
    assert not [one.name for one in METHODS if one.example is None]


@pytest.mark.parametrize("method", METHODS, ids=lambda one: one.name)
def test_an_example_is_what_the_method_takes_and_gives(method: Method[Any, Any]) -> None:
    assert method.example is not None
    params, result = method.example
    raw = Raw(msgspec.json.encode(params))
    assert method.unknown_fields(raw) == ()
    method.decode_params(raw)
    whole = msgspec.to_builtins(msgspec.convert(result, method.result))
    assert set(result) <= set(whole), "fields that the type does not have"


def test_every_reason_is_a_word_of_the_contract() -> None:
    [meta] = ReasonWord.__metadata__  # type: ignore[attr-defined]
    assert set(meta.extra_json_schema["enum"]) == {one.value for one in Reason}


def test_every_error_says_when_it_comes_and_what_its_data_holds() -> None:
    assert set(ABOUT) == set(codes.KINDS)
    errors = DOCUMENT["components"]["errors"].values()
    assert {one["code"] for one in errors} == set(codes.KINDS)
    for one in errors:
        assert one["message"].endswith(".")
        assert set(one["data"]) <= set(one["x-data"])
        assert one["data"]["kind"] in one["x-kinds"]
        assert all(text.endswith(".") for text in one["x-data"].values())


def test_each_method_names_the_errors_that_it_can_give_and_no_others() -> None:
    """That it gives no others is watched beside every daemon of a test (`rpc.undeclared_error`)."""
    named = {
        one["name"]: {error["$ref"].rpartition("/")[2] for error in one["errors"]}
        for one in DOCUMENT["methods"]
    }
    every = {"invalid_params", "internal", "too_many"}
    assert all(every <= kinds <= set(codes.KINDS.values()) for kinds in named.values())
    assert named["daemon.ping"] == every
    assert named["delegation.get"] == {*every, "unknown", "not_permitted"}
    assert {"busy", "draining", "not_permitted", "wait_over"} <= named["delegate"]
    assert "config_invalid" in named["config.reload"]


def test_every_narrower_word_of_a_refusal_is_described_at_its_code() -> None:
    for kind, code in _CODES.items():
        assert kind in (codes.KINDS[code], *ABOUT[code].kinds), kind


@pytest.mark.parametrize(
    ("method", "params", "what"),
    [
        ("delegate", {"prompt": "x", "bakend": "codex"}, "did you mean `backend`?"),
        ("delegate", {"prompt": "x", "wait": "finishd"}, "`wait` of delegate"),
        ("health", {"action": "pausee", "target": "codex"}, "`action` of health"),
        ("events.subscribe", {"kinds": ["health.move"]}, "did you mean 'health.moved'?"),
        ("classify", {"evidence": {"text": "x", "stream": "tty"}}, "`evidence.stream` of classify"),
        ("delegation.list", {"state": "done"}, "`state` of delegation.list"),
    ],
)
async def test_a_word_that_is_misspelt_or_unknown_is_refused_by_name(
    method: str, params: dict[str, Any], what: str
) -> None:
    async with front() as served, served.peer() as peer:
        error = (await peer.call(method, **params))["error"]
        assert error["code"] == codes.INVALID_PARAMS
        assert what in error["message"]


async def test_callers_that_ask_at_the_same_time_have_the_document_made_once() -> None:
    document.cache_clear()
    discover._made.clear()
    async with front() as served, AsyncExitStack() as peers:
        each = [await peers.enter_async_context(served.peer()) for _ in range(20)]
        for peer in each:
            await peer.ask(1, "rpc.discover")
        found = [await peer.line() for peer in each]
    assert {one["result"]["openrpc"] for one in found} == {"1.3.2"}
    assert document.cache_info().misses == 1


async def test_the_document_that_is_made_waits_for_no_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with front() as served, served.peer() as peer:
        first = await peer.call("rpc.discover")

        async def busy(*_: object, **__: object) -> None:
            raise AssertionError("all threads have work")

        monkeypatch.setattr(discover.anyio.to_thread, "run_sync", busy)
        again = await peer.call("rpc.discover")
    assert again["result"] == first["result"]
