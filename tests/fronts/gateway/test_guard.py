"""Who may ask."""

import pytest

from fallbackd.core.authority import PERSON, Authority, nothing
from fallbackd.core.ids import AttemptId, DelegationId
from fallbackd.fronts.gateway.front import Denied, Headers, asks_as, token_for

PORT = 41411
HOST = ("host", f"127.0.0.1:{PORT}")
OWN = ("authorization", "Bearer token")
RUNNING = ("d1", "d2")


def inside(delegation: str) -> Authority:
    return Authority(
        who="attempt",
        attempt=AttemptId(f"{delegation}.1"),
        inside=(DelegationId(delegation),),
        allow_metered=False,
        env={},
    )


def asked(headers: Headers, *, asker: Authority | None = None) -> Authority | Denied:
    """By a process that may ask as `asker` through the Unix socket; None: over TCP."""

    def authority_in(attempt: str) -> Authority:
        delegation = attempt.partition(".")[0]
        return inside(delegation) if delegation in RUNNING else nothing("it has ended")

    return asks_as(
        "POST",
        headers,
        "",
        port=PORT if asker is None else None,
        asker=asker,
        token="token",
        authority_in=authority_in,
    )


def status_of(found: Authority | Denied) -> int | None:
    return found.status if isinstance(found, Denied) else None


def bearer(attempt: str, token: str = "token") -> tuple[str, str]:
    return "authorization", f"Bearer {token_for(attempt, token)}"


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
    assert status_of(asked([("host", host), OWN])) == status


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
    assert status_of(asked([HOST, *headers])) == status


def test_a_person_needs_a_token_at_the_port_alone() -> None:
    assert asked([HOST, OWN]) == asked([], asker=PERSON) == PERSON
    assert status_of(asked([HOST])) == 401


def test_the_token_of_an_attempt_gives_what_that_attempt_may() -> None:
    assert asked([HOST, bearer("d1.1")]) == inside("d1")
    assert asked([bearer("d1.1")], asker=inside("d1")) == inside("d1")


@pytest.mark.parametrize(
    "sent",
    [
        *(bearer("d3.1"), bearer("d1.1", token="another")),
        *(("x-api-key", token_for("d1.1", "token")[:-1]), ("x-api-key", "fallbackd-d1.1-\xff")),
    ],
)
def test_a_token_of_an_attempt_that_has_ended_or_that_was_forged_gives_nothing(
    sent: tuple[str, str],
) -> None:
    assert status_of(asked([HOST, sent])) == 401


@pytest.mark.parametrize("sent", [[], [bearer("d2.1")], [("x-api-key", "x")]])
def test_a_process_inside_an_attempt_needs_a_token(
    sent: list[tuple[str, str]],
) -> None:
    denied = asked(sent, asker=inside("d1"))
    assert isinstance(denied, Denied)
    assert denied.status == 401
    assert "inside delegation d1" in denied.message


def test_the_token_of_a_person_makes_a_process_inside_an_attempt_no_person() -> None:
    assert asked([OWN], asker=inside("d1")) == inside("d1")


def test_the_token_of_a_helper_server_gives_what_those_may_that_it_runs() -> None:
    assert asked([bearer("")], asker=inside("d1")) == inside("d1")
    assert status_of(asked([HOST, bearer("")])) == 401


def test_a_process_that_works_for_several_gets_the_least_of_them() -> None:
    several = Authority(
        who="attempt",
        attempt=AttemptId("d1.1"),
        inside=(DelegationId("d1"), DelegationId("d2")),
        allow_metered=False,
        permissions="read",
    )
    found = asked([bearer("d2.1")], asker=several)
    assert isinstance(found, Authority)
    assert (found.permissions, found.allow_metered) == ("read", False)


def test_a_process_about_which_nothing_can_be_told_gets_nothing() -> None:
    for sent in ([], [OWN], [bearer("d1.1")]):
        denied = asked(sent, asker=nothing("it has exited already"))
        assert isinstance(denied, Denied)
        assert denied.status == 403
        assert "it has exited already" in denied.message
