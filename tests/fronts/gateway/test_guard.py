"""Who may ask."""

import pytest

from fallbackd.fronts.gateway.guard import deny

PORT = 41411
HOST = ("host", f"127.0.0.1:{PORT}")
OWN = ("authorization", "Bearer token")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        (f"127.0.0.1:{PORT}", None),
        (f"LocalHost:{PORT}", None),
        (f"[::1]:{PORT}", None),
        ("localhost", 403),
        (f"localhost.:{PORT}", 403),
        (f"evil.example:{PORT}", 403),
    ],
)
def test_the_host_is_this_machine_in_letters_of_any_case(host: str, status: int | None) -> None:
    denied = deny("GET", [("host", host), OWN], "", port=PORT, token="token")
    assert (denied and denied.status) == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([OWN, ("authorization", "Bearer of-a-proxy")], None),
        ([("authorization", "Basic eDp5"), OWN], None),
        ([("x-api-key", "other"), OWN], None),
        ([("x-api-key", "token"), ("x-api-key", "other")], None),
        ([("authorization", "Bearer a"), ("authorization", "Bearer b")], 401),
        ([("authorization", "Basic token")], 401),
        ([("x-api-key", "")], 401),
        ([], 401),
    ],
)
def test_one_header_that_holds_the_token_is_enough(
    headers: list[tuple[str, str]], status: int | None
) -> None:
    denied = deny("POST", [HOST, *headers], "", port=PORT, token="token")
    assert (denied and denied.status) == status
