import pytest

from fallbackd_client.calls import (
    MAX_DELAY_S,
    delay_s,
    encode_call,
    is_repeatable,
    patience_s,
    read_answer,
    read_message,
    with_request_id,
)
from fallbackd_client.errors import NoDaemon, NotSendable, ProtocolError, RequestTooLarge, RpcError


@pytest.mark.parametrize(
    ("method", "params", "wanted"),
    [
        ("status", {}, True),
        ("delegate", {"prompt": "x", "request_id": "r"}, True),
        ("delegation.reply", {"prompt": "x", "request_id": "r"}, True),
        ("delegation.reply", {"prompt": "x"}, False),
        ("delegate", {"prompt": "x"}, False),
        ("health", {}, True),
        ("health", {"action": "get", "target": "codex"}, True),
        ("health", {"action": "mark", "target": "codex"}, False),
        ("resolve", {}, True),
        ("resolve", {"lease": True}, False),
        ("report", {}, False),
        ("delegation.cancel", {"delegation": "d1"}, True),
        ("config.reload", {}, False),
        ("of.a.later.version", {}, False),
    ],
)
def test_only_what_is_safe_is_repeated(
    method: str, params: dict[str, object], wanted: bool
) -> None:
    assert is_repeatable(method, params) is wanted


def test_a_delegate_gets_an_id_of_its_own_and_keeps_a_given_one() -> None:
    params = {"prompt": "x"}
    first, second = with_request_id("delegate", params), with_request_id("delegate", params)
    assert first["request_id"] != second["request_id"]
    assert params == {"prompt": "x"}
    assert with_request_id("delegate", {"request_id": "mine"})["request_id"] == "mine"
    assert with_request_id("status", None) == {}


@pytest.mark.parametrize(
    ("method", "params", "wanted"),
    [
        ("status", {}, 30),
        ("delegate", {"wait": "accepted"}, 30),
        ("delegate", {}, 90),
        ("delegate", {"wait": "settled", "settle_s": 5}, 35),
        ("delegate", {"wait": "finished"}, None),
        ("delegate", {"wait": "finished", "wait_s": 10}, 40),
        ("delegation.wait", {}, None),
        ("delegation.wait", {"timeout_s": 10}, 40),
        ("delegation.cancel", {}, None),
    ],
)
def test_a_call_that_waits_for_work_gets_that_time_on_top(
    method: str, params: dict[str, object], wanted: float | None
) -> None:
    assert patience_s(method, params, 30) == wanted
    assert patience_s(method, params, None) is None


def test_delays_grow_to_a_bound() -> None:
    assert 0 < delay_s(1) <= 0.05
    assert all(MAX_DELAY_S / 2 <= delay_s(number) <= MAX_DELAY_S for number in (6, 50, 5000))


def test_what_does_not_fit_into_a_line_is_not_sent() -> None:
    with pytest.raises(RequestTooLarge, match="into a file"):
        encode_call(1, "delegate", {"prompt": "x" * (5 * 1024 * 1024)})


@pytest.mark.parametrize("value", ["\udc80", float("nan"), object()])
def test_what_is_no_json_is_not_sent(value: object) -> None:
    with pytest.raises(NotSendable, match="delegate"):
        encode_call(1, "delegate", {"prompt": value})


def test_text_with_half_a_character_is_refused_with_the_place() -> None:
    with pytest.raises(NotSendable, match=r"half a character.*name: \\udc80 of it"):
        encode_call(1, "delegate", {"prompt": "name: \udc80 of it"})


@pytest.mark.parametrize(
    "line", [b"HTTP/1.1 400 Bad Request", b"[1]", b"{}", b"\xff", b"[" * 100_000, b""]
)
def test_a_line_that_is_no_message_is_a_bad_reply(line: bytes) -> None:
    with pytest.raises(NoDaemon) as raised:
        read_message(line, "/x.sock")
    assert raised.value.cause == "bad_reply"


def test_an_error_keeps_code_message_and_word() -> None:
    error = {"code": -32002, "message": "m", "data": {"kind": "workspace"}}
    with pytest.raises(RpcError) as raised:
        read_answer({"error": error})
    assert (raised.value.code, raised.value.kind, str(raised.value)) == (-32002, "workspace", "m")
    with pytest.raises(RpcError) as raised:
        read_answer({"error": {"code": -32003, "message": "m"}})
    assert raised.value.kind == "refused"


@pytest.mark.parametrize("message", [{}, {"error": 1}, {"error": {}}])
def test_an_answer_that_is_none_is_a_protocol_error(message: dict[str, object]) -> None:
    with pytest.raises(ProtocolError):
        read_answer(message)


def test_a_delegate_says_from_inside_which_attempt_it_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("FALLBACKD_ATTEMPT", raising=False)
    monkeypatch.delenv("FALLBACKD_DELEGATION", raising=False)
    assert "parent" not in with_request_id("delegate", {"prompt": "x"})
    monkeypatch.setenv("FALLBACKD_DELEGATION", "d1")
    assert with_request_id("delegate", {"prompt": "x"})["parent"] == "d1"
    monkeypatch.setenv("FALLBACKD_ATTEMPT", "d1.2")
    assert with_request_id("delegate", {"prompt": "x"})["parent"] == "d1.2"
    assert with_request_id("delegate", {"prompt": "x", "parent": "d0"})["parent"] == "d0"
    assert "parent" not in with_request_id("status", {})
