"""Ids of delegations as people type them."""

from typing import Any

import pytest
from tests.client.conftest import RunCli

KNOWN = ["d1a206ccaac0e0aebfd7", "d1a206ccaab0b8dacb61", "d1a1ffffffff00000000"]


def listed(params: dict[str, Any]) -> dict[str, Any]:
    fitting = [k for k in KNOWN if k.startswith(params.get("prefix", ""))]
    return {"lines": [{"delegation": k} for k in fitting[: params["limit"]]]}


LIST = {"delegation.list": listed}
GET = {"delegation.get": lambda params: {"delegation": params["delegation"], "state": "running"}}


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("@last", KNOWN[0]),
        ("@-1", KNOWN[0]),
        ("@-3", KNOWN[2]),
        ("d1a1", KNOWN[2]),
        ("d1a206ccaac", KNOWN[0]),
        (KNOWN[1], KNOWN[1]),
        ("d9", "d9"),
        ("no-id", "no-id"),
    ],
)
def test_an_id_is_found_by_its_beginning_or_its_place(
    run_cli: RunCli, given: str, meant: str
) -> None:
    ran = run_cli(["show", given], {**LIST, **GET})
    assert ran.params("delegation.get") == {"delegation": meant}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("d1a206", "d1a206 fits several delegations"),
        ("d1a", "d1a fits several delegations"),
        ("@-4", "there is no @-4: the daemon knows 3 delegations"),
        ("@0", "@0 is not an id; use @last"),
        ("@-x", "@-x is not an id"),
        ("@", "@ is not an id"),
    ],
)
def test_what_fits_none_or_several_is_usage(run_cli: RunCli, given: str, words: str) -> None:
    ran = run_cli(["wait", given], {**LIST, **GET})
    assert ran.code == 2
    assert words in ran.err
    assert ran.server.methods() in ([], ["delegation.list"])


def test_a_whole_id_costs_no_extra_call(run_cli: RunCli) -> None:
    assert run_cli(["show", KNOWN[1]], {**LIST, **GET}).server.methods() == ["delegation.get"]
