"""A line in, a line out."""

import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.support.engine import FakeHost, ScriptedEngine

from fallbackd.core.authority import PERSON
from fallbackd.core.decision import Rejection
from fallbackd.engine.requests import Draining, Invalid, NotPermitted, Refused, Unknown
from fallbackd.fronts.rpc.discover import HANDLERS
from fallbackd.fronts.rpc.dispatch import Dispatcher, Later
from fallbackd.fronts.rpc.subscriptions import Subscriptions
from fallbackd_client.wire.methods import METHODS


class Peer:
    """The connection of one test: keeps what is written."""

    number = 1
    peer_pid = None
    client = None
    peer_uid = None
    backlog_bytes = 0
    is_open = True
    has_hung_up = False
    authority = PERSON

    def __init__(self, engine: ScriptedEngine) -> None:
        self.host = FakeHost()
        self.subscriptions = Subscriptions(engine)  # type: ignore[arg-type]
        self.sent: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.sent.append(data)

    async def until_drained(self) -> None: ...

    def start_soon(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None: ...

    def on_close(self, work: Callable[[], None]) -> None: ...


class Bench:
    def __init__(self) -> None:
        self.engine = ScriptedEngine()
        self.peer = Peer(self.engine)
        self.dispatcher = Dispatcher(self.engine, HANDLERS)  # type: ignore[arg-type]

    async def line(self, line: bytes | str) -> Any:
        data = line.encode() if isinstance(line, str) else line
        answer = self.dispatcher.take(data, self.peer)
        if isinstance(answer, Later):
            answer = await answer.run()
        if answer is None:
            return None
        assert answer.endswith(b"\n")
        assert answer.count(b"\n") == 1
        return json.loads(answer)

    async def call(self, method: str, **params: Any) -> Any:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return await self.line(json.dumps(body))


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_every_method_of_the_contract_has_a_handler() -> None:
    served = [one.method for one in HANDLERS]
    assert served == list(METHODS), "add it to HANDLERS, in the order of METHODS"


@pytest.mark.parametrize("request_id", [1, 0, -7, 1.5, "", "abc", None, 12345678901234567890123])
async def test_an_answer_carries_the_id_of_its_request(bench: Bench, request_id: Any) -> None:
    answer = await bench.line(
        json.dumps({"jsonrpc": "2.0", "id": request_id, "method": "daemon.ping"})
    )
    assert answer["id"] == request_id
    assert answer["result"]["pid"] == 4242
    assert "error" not in answer


async def test_a_notification_is_never_answered(bench: Bench) -> None:
    assert await bench.line('{"jsonrpc":"2.0","method":"daemon.ping"}') is None
    assert await bench.line('{"jsonrpc":"2.0","method":"no.such"}') is None
    assert await bench.line('{"jsonrpc":"2.0","method":"delegate","params":{}}') is None


async def test_a_blank_line_asks_for_nothing(bench: Bench) -> None:
    assert await bench.line("") is None
    assert await bench.line(" \r") is None


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"hello",
        b"GET / HTTP/1.1\r",
        b'{"jsonrpc":"2.0","id":1,"method":"daemon.ping"} trailing',
        b'{"jsonrpc":"2.0","method":"foobar, "params":"bar","baz]',
        b'{"jsonrpc":1,"method":"x", oops}',
        b"\xff\xfe\x00",
        b'[{"jsonrpc":"2.0"},',
        b"[" * 200_000,
        b'{"jsonrpc":"2.0","id":1,"method":"daemon.ping","params":'
        + b"[" * 100_000
        + b"]" * 100_000
        + b"}",
    ],
)
async def test_a_line_that_is_no_json_is_a_parse_error(bench: Bench, line: bytes) -> None:
    answer = await bench.line(line)
    assert answer["error"]["code"] == -32700
    assert answer["error"]["data"]["kind"] == "parse_error"
    assert answer["id"] is None


@pytest.mark.parametrize(
    "line",
    [
        "1",
        '"daemon.ping"',
        "{}",
        '{"jsonrpc":"1.0","id":1,"method":"daemon.ping"}',
        '{"id":1,"method":"daemon.ping"}',
        '{"jsonrpc":"2.0","id":1,"method":5}',
        '{"jsonrpc":"2.0","id":true,"method":"daemon.ping"}',
        '{"jsonrpc":"2.0","id":{},"method":"daemon.ping"}',
        "[]",
    ],
)
async def test_what_is_no_request_is_refused(bench: Bench, line: str) -> None:
    answer = await bench.line(line)
    assert answer["error"]["code"] == -32600
    assert answer["error"]["data"]["kind"] == "invalid_request"


async def test_a_bad_request_is_answered_under_its_id_where_it_has_one(bench: Bench) -> None:
    answer = await bench.line('{"jsonrpc":"1.0","id":"mine","method":"daemon.ping"}')
    assert answer["id"] == "mine"


async def test_bad_utf8_in_params_is_a_parse_error_under_its_id(bench: Bench) -> None:
    answer = await bench.line(
        b'{"jsonrpc":"2.0","id":3,"method":"delegation.get","params":{"delegation":"\xff"}}'
    )
    assert answer["id"] == 3
    assert answer["error"]["code"] == -32700


async def test_half_a_character_is_read_as_a_mark_in_its_place(bench: Bench) -> None:
    """JavaScript writes it where a text was cut."""
    answer = await bench.call("delegate", prompt="cut \ud83d", backend="codex")
    assert answer["result"]
    (work,) = bench.engine.works
    assert work.prompt == "cut \ufffd"


async def test_a_batch_is_answered_by_an_array_without_its_notifications(bench: Bench) -> None:
    answer = await bench.line(
        json.dumps(
            [
                {"jsonrpc": "2.0", "id": 1, "method": "daemon.ping"},
                {"jsonrpc": "2.0", "method": "daemon.ping"},
                5,
                {"jsonrpc": "2.0", "id": 2, "method": "no.such"},
                {"jsonrpc": "2.0", "id": 3, "method": "status"},
            ]
        )
    )
    assert [one["id"] for one in answer] == [1, None, 2, 3]
    assert [one.get("error", {}).get("code") for one in answer] == [None, -32600, -32601, None]


async def test_a_batch_of_notifications_is_not_answered(bench: Bench) -> None:
    assert await bench.line('[{"jsonrpc":"2.0","method":"daemon.ping"}]') is None


async def test_a_batch_that_is_too_large_is_refused_whole(bench: Bench) -> None:
    answer = await bench.line("[" + ",".join(["1"] * 1001) + "]")
    assert answer["error"]["code"] == -32600


async def test_an_unknown_method_is_named(bench: Bench) -> None:
    answer = await bench.call("no.such")
    assert answer["error"]["code"] == -32601
    assert "no.such" in answer["error"]["message"]


async def test_an_unknown_field_is_ignored_with_a_warning(bench: Bench) -> None:
    answer = await bench.call("daemon.ping", colour="red")
    assert "`colour`" in answer["result"]["warning"]
    assert answer["result"]["pid"] == 4242


@pytest.mark.parametrize(
    ("params", "path"),
    [
        ({}, ""),
        ({"prompt": 5}, "prompt"),
        ({"prompt": "x", "timeout_s": -1}, "timeout_s"),
        ({"prompt": "x", "chain": [{"backend": "a", "tier": "top"}]}, "chain[0].tier"),
        ({"prompt": "x", "backend": "a", "platform": "b"}, "platform"),
        ({"prompt": "x", "session": "a\nb"}, "session"),
    ],
)
async def test_params_that_do_not_fit_are_named_with_their_path(
    bench: Bench, params: dict[str, Any], path: str
) -> None:
    answer = await bench.call("delegate", **params)
    assert answer["error"]["code"] == -32602
    assert answer["error"]["data"]["path"] == path
    assert bench.engine.works == []


async def test_params_have_to_be_an_object(bench: Bench) -> None:
    answer = await bench.line('{"jsonrpc":"2.0","id":1,"method":"status","params":[1]}')
    assert answer["error"]["code"] == -32602


async def test_a_name_that_cannot_be_shown_is_refused_in_words(bench: Bench) -> None:
    answer = await bench.call("delegate", prompt="x", session="a\x00b")
    said = "`session` of delegate: expected `str` without control and invisible characters."
    assert answer["error"]["message"].startswith(said)


def rejection(kind: Any) -> Refused:
    return Refused(Rejection(kind=kind, message="Say what to do.", data={"more": 1}))


@pytest.mark.parametrize(
    ("error", "code", "kind"),
    [
        (rejection("unknown_backend"), -32001, "unknown_backend"),
        (rejection("unknown_session"), -32001, "unknown_session"),
        (rejection("busy"), -32002, "busy"),
        (rejection("workspace"), -32002, "workspace"),
        (rejection("draining"), -32004, "draining"),
        (rejection("limit"), -32004, "limit"),
        (rejection("nesting"), -32005, "nesting"),
        (rejection("request_id"), -32602, "request_id"),
        (rejection("empty_chain"), -32602, "empty_chain"),
        (NotPermitted("Say what to do."), -32005, "not_permitted"),
        (Invalid("Say what to do."), -32602, "invalid_params"),
        (Unknown("Say what to do."), -32001, "unknown"),
        (Draining("Say what to do."), -32004, "draining"),
        (Draining("Say what to do.", kind="store"), -32004, "store"),
    ],
)
async def test_what_the_engine_refuses_becomes_its_error(
    bench: Bench, error: Exception, code: int, kind: str
) -> None:
    bench.engine.raises["delegate"] = error
    answer = await bench.call("delegate", prompt="x")
    assert answer["error"]["code"] == code
    assert answer["error"]["data"]["kind"] == kind
    assert answer["error"]["message"] == "Say what to do."


async def test_a_bug_is_an_error_with_an_id_and_without_a_traceback(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.engine.raises["delegate"] = KeyError("secret inner words")
    answer = await bench.call("delegate", prompt="x")
    assert answer["error"]["code"] == -32603
    assert "secret" not in json.dumps(answer)
    logged = capsys.readouterr()
    assert answer["error"]["data"]["bug"] in logged.out + logged.err
    assert (await bench.call("daemon.ping"))["result"]["pid"] == 4242
