import json
from typing import Any

import msgspec
import pytest
from msgspec import UNSET, Raw, Struct

from fallbackd_client.wire import envelope
from fallbackd_client.wire.envelope import Method, Request


class Params(Struct, frozen=True, kw_only=True):
    name: str
    count: int = 1


METHOD: Method[Params, int] = Method(
    "demo", params=Params, result=int, read_only=True, who="person", summary="For tests."
)


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (b'{"jsonrpc":"2.0","method":"m"}', UNSET),
        (b'{"jsonrpc":"2.0","method":"m","id":null}', None),
        (b'{"jsonrpc":"2.0","method":"m","id":7}', 7),
        (b'{"jsonrpc":"2.0","method":"m","id":"a"}', "a"),
        (b'{"jsonrpc":"2.0","method":"m","id":1.5}', 1.5),
    ],
)
def test_an_absent_id_is_told_from_a_null_one(line: bytes, wanted: object) -> None:
    request = msgspec.json.decode(line, type=Request)
    assert request.id == wanted


@pytest.mark.parametrize(
    "line",
    [
        b'{"method":"m"}',
        b'{"jsonrpc":"1.0","method":"m"}',
        b'{"jsonrpc":"2.0"}',
        b'{"jsonrpc":"2.0","method":1}',
        b'{"jsonrpc":"2.0","method":"m","id":[1]}',
        b"[]",
    ],
)
def test_what_is_no_request_is_refused(line: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(line, type=Request)


@pytest.mark.parametrize("raw", [UNSET, Raw(b"null")])
def test_params_that_are_absent_or_null_count_as_none_given(raw: Any) -> None:
    with pytest.raises(msgspec.ValidationError, match="name"):
        METHOD.decode_params(raw)


def test_an_error_in_params_names_the_field() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"\$\.count"):
        METHOD.decode_params(Raw(b'{"name":"x","count":"many"}'))


def test_unknown_fields_are_ignored_and_can_be_named() -> None:
    raw = Raw(b'{"name":"x","later":1,"another":{}}')
    assert METHOD.decode_params(raw) == Params(name="x")
    assert METHOD.unknown_fields(raw) == ("another", "later")


def test_an_answer_has_either_a_result_or_an_error() -> None:
    assert json.loads(envelope.encode_result(None, {"a": 1})) == {
        "jsonrpc": "2.0",
        "id": None,
        "result": {"a": 1},
    }
    assert json.loads(envelope.encode_error("x", -32602, "no")) == {
        "jsonrpc": "2.0",
        "id": "x",
        "error": {"code": -32602, "message": "no"},
    }


def test_a_null_result_is_sent_as_null() -> None:
    assert json.loads(envelope.encode_result(1, None))["result"] is None


def test_every_message_is_one_line() -> None:
    lines = [
        envelope.encode_notification("event", {"text": "a\nb"}),
        envelope.encode_result(1, "a\nb"),
    ]
    assert all(line.endswith(b"\n") and line.count(b"\n") == 1 for line in lines)
    assert "id" not in json.loads(lines[0])
