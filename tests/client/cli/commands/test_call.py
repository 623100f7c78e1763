import json

import pytest
from tests.client.conftest import RunCli


@pytest.mark.parametrize(
    ("argv", "stdin", "params"),
    [
        (["call", "later.method"], b"", {}),
        (["call", "later.method", '{"a": [1]}'], b"", {"a": [1]}),
        (["call", "later.method", "-"], b'{"b": null}', {"b": None}),
    ],
)
def test_any_method_is_reached_with_json(
    run_cli: RunCli, argv: list[str], stdin: bytes, params: dict[str, object]
) -> None:
    ran = run_cli(argv, {"later.method": {"x": "\x1b"}}, stdin=stdin)
    assert ran.code == 0
    assert json.loads(ran.out) == {"x": "\x1b"}
    assert ran.params("later.method") == params


@pytest.mark.parametrize("text", ["{", "[1]", "1", "[" * 100_000])
def test_params_that_are_no_object_are_usage(run_cli: RunCli, text: str) -> None:
    ran = run_cli(["call", "status", text], {"status": 1})
    assert (ran.code, ran.server.methods()) == (2, [])


def test_an_unknown_method_is_said(run_cli: RunCli) -> None:
    ran = run_cli(["call", "nosuch"], {})
    assert ran.code == 2
    assert "nosuch" in ran.err
