import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.client.scripted import Failing, Peer, answering, serving

from fallbackd_client.client import Client
from fallbackd_client.errors import NoDaemon, ProtocolError, RequestTooLarge, RpcError
from fallbackd_client.wire.methods.daemon import DAEMON_PING, DaemonPingParams
from fallbackd_client.wire.methods.delegations import DELEGATION_GET, DelegationGetParams

PONG = {"version": "1", "pid": 7, "at": 1.0}


def patient(path: Path, **settings: Any) -> Client:
    """Does not really pause between tries."""
    return Client(str(path), sleep=lambda _: None, **settings)


def hang_up(peer: Peer) -> None:
    """Take one request, then go without an answer."""
    peer.read()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "control.sock"


def test_a_call_comes_back_with_its_result(path: Path) -> None:
    with (
        serving(path, answering({"status": {"daemon": {}}})) as server,
        Client(str(path)) as client,
    ):
        assert client.call("status", {"verbose": True}) == {"daemon": {}}
    assert server.params("status") == {"verbose": True}
    assert server.requests[0]["jsonrpc"] == "2.0"


def test_calls_share_one_connection_and_have_ids_of_their_own(path: Path) -> None:
    with serving(path, answering({"daemon.ping": PONG})) as server, Client(str(path)) as client:
        for _ in range(3):
            client.call("daemon.ping")
    assert server.accepted == 1
    assert len({request["id"] for request in server.requests}) == 3


def test_an_error_of_the_daemon_is_raised_and_leaves_the_connection(path: Path) -> None:
    refused = Failing(-32001, "no backend x", {"kind": "unknown"})
    script = answering({"health": refused, "daemon.ping": PONG})
    with serving(path, script) as server, Client(str(path)) as client:
        with pytest.raises(RpcError) as raised:
            client.call("health", {"action": "get", "target": "x"})
        assert client.call("daemon.ping") == PONG
    assert (raised.value.code, raised.value.kind) == (-32001, "unknown")
    assert server.accepted == 1


def test_answers_of_other_calls_and_notifications_are_passed_over(path: Path) -> None:
    def script(peer: Peer) -> None:
        request = peer.read()
        assert request is not None
        peer.event(kind="health.moved", at=1.0)
        peer.say({"id": 9999, "result": "of another"})
        peer.answer(request, "mine")

    with serving(path, script), Client(str(path)) as client:
        assert client.call("status") == "mine"


def test_an_answer_in_many_pieces_and_of_many_megabytes_is_whole(path: Path) -> None:
    text = "é" * (3 * 1024 * 1024)

    def script(peer: Peer) -> None:
        request = peer.read()
        assert request is not None
        line = b'{"jsonrpc":"2.0","id":%d,"result":"%s"}\n' % (request["id"], text.encode())
        for start in range(0, len(line), 700_001):
            peer.raw(line[start : start + 700_001])

    with serving(path, script), Client(str(path)) as client:
        assert client.call("status") == text


# --- repeated or not ---------------------------------------------------------------------------


def test_what_changes_nothing_is_repeated_after_a_loss(path: Path) -> None:
    script = answering({"status": "here"})
    with serving(path, hang_up, hang_up, script) as server, patient(path) as client:
        assert client.call("status") == "here"
    assert server.accepted == 3


def test_a_delegate_is_repeated_under_the_same_request_id(path: Path) -> None:
    script = answering({"delegate": {"delegation": "d1"}})
    with serving(path, hang_up, script) as server, patient(path) as client:
        assert client.call("delegate", {"prompt": "x"}) == {"delegation": "d1"}
    first, second = (request["params"]["request_id"] for request in server.requests)
    assert first == second
    assert len(first) == 32


def hold(peer: Peer) -> None:
    """Read, and answer nothing until the caller goes."""
    while peer.read() is not None:
        pass


def test_a_reply_is_repeated_under_the_same_request_id(path: Path) -> None:
    script = answering({"delegation.reply": {"delegation": "d2"}})
    with serving(path, hang_up, script) as server, patient(path) as client:
        params = {"delegation": "d1", "prompt": "x"}
        assert client.call("delegation.reply", params) == {"delegation": "d2"}
    assert len({request["params"]["request_id"] for request in server.requests}) == 1


def test_a_request_that_may_have_been_taken_can_be_named_by_its_caller(path: Path) -> None:
    with serving(path, hold) as server, Client(str(path)) as client:
        with pytest.raises(NoDaemon) as raised:
            client.call("delegate", {"prompt": "x"}, timeout_s=0.05)
        with pytest.raises(NoDaemon) as looked:
            client.call("delegation.wait", {"delegation": "d1"}, timeout_s=0.05)
    (sent, _) = server.requests
    assert raised.value.request_id == sent["params"]["request_id"]
    assert f"request_id {raised.value.request_id!r}" in str(raised.value)
    assert looked.value.request_id is None


def test_a_request_that_was_never_sent_has_no_name(path: Path) -> None:
    with Client(str(path)) as client, pytest.raises(NoDaemon) as raised:
        client.call("delegate", {"prompt": "x"})
    assert raised.value.request_id is None
    assert "request_id" not in str(raised.value)


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("report", {"backend": "codex", "outcome": "failure"}),
        ("health", {"action": "mark", "target": "codex"}),
        ("resolve", {"lease": True}),
        ("config.reload", {}),
    ],
)
def test_what_changes_something_is_never_sent_twice(
    path: Path, method: str, params: dict[str, object]
) -> None:
    with serving(path, hang_up) as server, patient(path) as client:
        with pytest.raises(NoDaemon) as raised:
            client.call(method, params)
        assert server.accepted == 1
    assert raised.value.cause == "closed"
    assert len(server.requests) == 1


def test_repeating_ends_when_the_daemon_does_not_come_back(path: Path) -> None:
    clock = iter(range(1000))
    client = Client(
        str(path), reconnect_s=20, sleep=lambda _: None, monotonic=lambda: float(next(clock))
    )
    with serving(path, hang_up) as server, client, pytest.raises(NoDaemon) as raised:
        client.call("status")
    assert raised.value.cause == "closed"
    assert 1 < server.accepted < 20


def test_a_connection_that_died_while_idle_is_renewed_before_anything_is_sent(path: Path) -> None:
    gone = threading.Event()

    def one(peer: Peer) -> None:
        request = peer.read()
        assert request is not None
        peer.answer(request, PONG)
        peer.close()
        gone.set()

    script = answering({"report": "taken"})
    with serving(path, one, script) as server, patient(path) as client:
        client.call("daemon.ping")
        assert gone.wait(60)
        assert client.call("report", {"backend": "codex"}) == "taken"
    assert server.methods() == ["daemon.ping", "report"]


def test_a_daemon_that_restarts_is_found_again(path: Path) -> None:
    servers: list[Any] = []

    def restart(_: float) -> None:
        if len(servers) == 1:
            servers.append(serving(path, answering({"status": "again"})))
            servers[1].__enter__()

    client = Client(str(path), sleep=restart, connect_s=0)
    servers.append(serving(path, answering({"daemon.ping": PONG})))
    with servers[0]:
        client.call("daemon.ping")
    with client:
        assert client.call("status") == "again"
    servers[1].__exit__(None, None, None)


def test_a_daemon_that_dies_in_the_middle_of_its_answer_is_asked_again(path: Path) -> None:
    def half(peer: Peer) -> None:
        request = peer.read()
        assert request is not None
        peer.raw(b'{"jsonrpc":"2.0","id":%d,"result":{"delegation":"d1","te' % request["id"])

    losses: list[float] = []
    whole = answering({"delegate": {"delegation": "d1", "text": "all of it"}})
    with (
        serving(path, half, half, whole) as server,
        patient(path, on_loss=losses.append, reconnect_s=7) as client,
    ):
        answer = client.call("delegate", {"prompt": "x", "wait": "finished"})
    assert answer == {"delegation": "d1", "text": "all of it"}
    assert len({one["params"]["request_id"] for one in server.requests}) == 1
    assert losses == [7], "told once"


def test_a_wait_that_is_repeated_is_shorter_by_what_has_passed(path: Path) -> None:
    now = iter(range(1000))
    client = Client(
        str(path), reconnect_s=600, sleep=lambda _: None, monotonic=lambda: float(next(now))
    )
    script = answering({"delegation.wait": {"delegation": "d1"}})
    with serving(path, hang_up, script) as server, client:
        client.call("delegation.wait", {"delegation": "d1", "timeout_s": 500})
    first, second = (one["params"]["timeout_s"] for one in server.requests)
    assert first == 500
    assert 400 < second < 500


def test_the_call_after_a_loss_waits_for_the_daemon_too(path: Path) -> None:
    """Of one that must not be repeated the caller hears, and asks something else."""
    back: list[Any] = []

    def come_back(_: float) -> None:
        if not back:
            back.append(serving(path, answering({"health": "marked"})))
            back[0].__enter__()

    client = Client(str(path), sleep=come_back, connect_s=0)
    mark = {"action": "mark", "target": "codex"}
    with serving(path, hang_up), client, pytest.raises(NoDaemon):
        client.call("health", mark)
    with client:
        assert client.call("health", mark) == "marked"
    back[0].__exit__(None, None, None)


def test_a_daemon_that_stayed_away_is_not_waited_for_again(path: Path) -> None:
    now = [0.0]
    naps: list[float] = []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        now[0] += seconds

    client = Client(str(path), sleep=sleep, connect_s=0, reconnect_s=5, monotonic=lambda: now[0])
    with serving(path, hang_up), client, pytest.raises(NoDaemon):
        client.call("config.reload")
    with client, pytest.raises(NoDaemon) as raised:
        client.call("status")
    assert raised.value.cause == "missing"
    assert 5 <= sum(naps) < 6.5
    naps.clear()
    with client, pytest.raises(NoDaemon):
        client.call("status")
    assert naps == []


# --- nobody there ------------------------------------------------------------------------------


def test_no_socket_is_said_at_once_and_how_to_start(path: Path) -> None:
    naps: list[float] = []
    with Client(str(path), sleep=naps.append) as client, pytest.raises(NoDaemon) as raised:
        client.call("status")
    assert raised.value.cause == "missing"
    assert str(path) in str(raised.value)
    assert "fallbackd-client service start" in str(raised.value)
    assert naps == []


def test_a_socket_that_nobody_listens_on_is_refused(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as left_over:
        left_over.bind(str(path))
    with Client(str(path), connect_s=0) as client, pytest.raises(NoDaemon) as raised:
        client.call("status")
    assert raised.value.cause == "refused"


def test_a_refused_first_connection_is_tried_again_for_a_moment(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as left_over:
        left_over.bind(str(path))
    started: list[Any] = []

    def start(_: float) -> None:
        if not started:
            path.unlink()
            started.append(serving(path, answering({"report": "taken"})))
            started[0].__enter__()

    with Client(str(path), sleep=start, connect_s=60) as client:
        assert client.call("report") == "taken"
    started[0].__exit__(None, None, None)


def test_a_socket_one_may_not_use_is_told_apart(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    # The tests may run as root, who may use every socket.
    monkeypatch.setattr(socket.socket, "connect", refuse)
    with Client(str(path)) as client, pytest.raises(NoDaemon) as raised:
        client.call("status")
    assert raised.value.cause == "not_permitted"


def test_a_plain_file_and_a_path_too_long_are_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with Client(str(tmp_path / "file"), connect_s=0) as client, pytest.raises(NoDaemon) as raised:
        client.call("status")
    assert raised.value.cause == "refused"
    with Client("/" + "x" * 300) as client, pytest.raises(NoDaemon) as raised:
        client.call("status")
    assert raised.value.cause == "unusable"


def test_an_answer_that_does_not_come_is_a_timeout_and_its_connection_is_not_used_again(
    path: Path,
) -> None:
    over = threading.Event()

    def silent(peer: Peer) -> None:
        request = peer.read()
        assert over.wait(60)
        assert request is not None
        peer.answer(request, "late")

    script = answering({"status": "in time"})
    with serving(path, silent, script) as server, Client(str(path), timeout_s=60) as client:
        with pytest.raises(NoDaemon) as raised:
            client.call("status", timeout_s=0.05)
        over.set()
        assert client.call("status") == "in time"
    assert raised.value.cause == "timeout"
    assert server.accepted == 2


@pytest.mark.parametrize("line", [b"HTTP/1.1 400 Bad Request\r\n", b"[1,2]\n", b"\xff\xfe\n"])
def test_something_else_that_listens_there_is_a_bad_reply(path: Path, line: bytes) -> None:
    def script(peer: Peer) -> None:
        peer.read()
        peer.raw(line)

    with serving(path, script), Client(str(path)) as client, pytest.raises(NoDaemon) as raised:
        client.call("status")
    assert raised.value.cause == "bad_reply"


def test_a_line_without_an_end_is_given_up(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fallbackd_client.client.MAX_ANSWER_BYTES", 1_000_000)

    def script(peer: Peer) -> None:
        peer.read()
        for _ in range(100):
            peer.raw(b"x" * 100_000)

    with serving(path, script), Client(str(path)) as client, pytest.raises(ProtocolError):
        client.call("status")


def test_what_the_daemon_says_before_it_closes_is_heard(path: Path) -> None:
    def script(peer: Peer) -> None:
        peer.say({"id": None, "error": {"code": -32008, "message": "too many connections"}})

    with serving(path, script), Client(str(path)) as client, pytest.raises(RpcError) as raised:
        client.call("report")
    assert raised.value.code == -32008


def test_a_request_beyond_the_limit_is_not_sent(path: Path) -> None:
    script = answering({"daemon.ping": PONG})
    with serving(path, script) as server, Client(str(path)) as client:
        with pytest.raises(RequestTooLarge):
            client.call("delegate", {"prompt": "x" * (5 * 1024 * 1024)})
        client.call("daemon.ping")
    assert server.methods() == ["daemon.ping"]


# --- threads, types ----------------------------------------------------------------------------


def test_threads_that_share_a_client_get_their_own_answers(path: Path) -> None:
    wrong: list[object] = []

    def work(client: Client, mark: int) -> None:
        for number in range(40):
            text = f"{mark}.{number}." + "x" * (mark * 997)
            if client.call("status", {"text": text}) != text:
                wrong.append(text)

    script = answering({"status": lambda params: params["text"]})
    with serving(path, script) as server, Client(str(path)) as client:
        threads = [threading.Thread(target=work, args=(client, mark)) for mark in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert wrong == []
    assert len(server.requests) == 240


def test_a_typed_request_comes_back_typed(path: Path) -> None:
    answers = {
        "daemon.ping": {**PONG, "of_a_later_version": 1},
        "delegation.get": {"delegation": "d1", "state": "succeeded", "created_at": 1, "text": "ok"},
    }
    with serving(path, answering(answers)), Client(str(path)) as client:
        pong = client.request(DAEMON_PING, DaemonPingParams())
        found = client.request(DELEGATION_GET, DelegationGetParams(delegation="d1"))
    assert (pong.pid, found.text, found.hops) == (7, "ok", ())


def test_an_answer_that_does_not_fit_its_type_is_a_protocol_error(path: Path) -> None:
    script = answering({"daemon.ping": {"pid": "seven"}})
    with serving(path, script), Client(str(path)) as client, pytest.raises(ProtocolError):
        client.request(DAEMON_PING, DaemonPingParams())


# --- events ------------------------------------------------------------------------------------


def subscribed(peer: Peer, seq: int) -> dict[str, Any]:
    request = peer.read()
    assert request is not None
    peer.answer(request, {"subscription": "s", "seq": seq})
    params: dict[str, Any] = request["params"]
    return params


def test_events_go_on_behind_the_last_one_after_a_loss(path: Path) -> None:
    def first(peer: Peer) -> None:
        subscribed(peer, 4)
        peer.event(seq=5, at=1.0, kind="health.moved")
        peer.event(at=1.0, kind="attempt.output", offset=1)
        peer.event(seq=6, at=1.0, kind="health.moved")

    def second(peer: Peer) -> None:
        subscribed(peer, 8)
        for seq in (6, 7, 8):  # one that was had already
            peer.event(seq=seq, at=1.0, kind="health.moved")
        peer.read()

    with serving(path, first, second) as server, patient(path) as client:
        events = client.events(kinds=["health.moved"], session="s1")
        found = [next(events).get("seq") for _ in range(5)]
        events.close()
    assert found == [5, None, 6, 7, 8]
    assert server.requests[0]["params"] == {"kinds": ["health.moved"], "session": "s1"}
    assert server.requests[1]["params"]["since"] == 6


def test_events_that_come_before_the_answer_are_not_lost(path: Path) -> None:
    def script(peer: Peer) -> None:
        request = peer.read()
        assert request is not None
        peer.event(seq=1, at=1.0, kind="health.moved")
        peer.event(seq=2, at=1.0, kind="health.moved")
        peer.answer(request, {"subscription": "s", "seq": 2})
        peer.read()

    with serving(path, script), patient(path) as client:
        events = client.events(since=0)
        assert [next(events)["seq"], next(events)["seq"]] == [1, 2]
        events.close()


def test_a_dropped_subscriber_subscribes_again(path: Path) -> None:
    def first(peer: Peer) -> None:
        subscribed(peer, 1)
        peer.event(seq=2, at=1.0, kind="health.moved")
        peer.event(at=1.0, kind="subscription.dropped")
        peer.read()

    def second(peer: Peer) -> None:
        subscribed(peer, 3)
        peer.event(seq=3, at=1.0, kind="health.moved")
        peer.read()

    with serving(path, first, second), patient(path) as client:
        events = client.events()
        assert [next(events)["seq"], next(events)["seq"]] == [2, 3]
        events.close()


def test_events_go_on_after_the_records_were_lost_and_begin_anew(path: Path) -> None:
    def first(peer: Peer) -> None:
        subscribed(peer, 40)
        peer.event(seq=41, at=1.0, kind="health.moved")

    def second(peer: Peer) -> None:
        subscribed(peer, 2)
        peer.event(seq=3, at=1.0, kind="health.moved")
        peer.read()

    with serving(path, first, second), patient(path) as client:
        events = client.events()
        assert [next(events)["seq"], next(events)["seq"]] == [41, 3]
        events.close()


def test_a_subscription_that_nobody_answers_is_given_up(path: Path) -> None:
    with serving(path, hang_up) as server, patient(path) as client:
        with pytest.raises(NoDaemon) as raised:
            next(client.events())
        assert server.accepted == 1
    assert raised.value.cause == "closed"


def test_a_subscription_that_is_refused_is_raised(path: Path) -> None:
    script = answering({"events.subscribe": Failing(-32008)})
    with serving(path, script), patient(path) as client, pytest.raises(RpcError):
        next(client.events())


def test_the_path_comes_from_the_environment(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "FALLBACKD_SOCKET", str(path))
    with serving(path, answering({"daemon.ping": PONG})), Client() as client:
        assert client.call("daemon.ping") == PONG
        assert client.path == str(path)
