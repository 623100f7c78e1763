"""Commands that wait go on when the daemon is restarted under them."""

from collections.abc import Callable
from typing import Any

from tests.client.conftest import RunCli
from tests.client.scripted import Peer, Script, answering

RUNNING = {"delegation": "d1", "state": "running", "created_at": 1.0, "attempts": []}
DONE = {**RUNNING, "state": "succeeded", "text": "the answer"}


def dying(answered: dict[str, Any], *, fatal: str, then: dict[str, Any]) -> Script:
    """The first connection ends when `fatal` is asked for; the later ones answer with `then`."""
    connections = 0

    def script(peer: Peer) -> None:
        nonlocal connections
        connections += 1
        if connections > 1:
            answering(then)(peer)
            return
        while (request := peer.read()) is not None and request["method"] != fatal:
            peer.answer(request, answered[request["method"]])

    return script


def asked(requests: list[dict[str, Any]], method: str) -> list[dict[str, Any]]:
    return [one["params"] for one in requests if one["method"] == method]


def test_delegate_asks_again_under_the_id_that_it_has_made_up(run_cli: RunCli) -> None:
    ran = run_cli(
        ["delegate", "x", "--cwd", "/"],
        dying({}, fatal="delegate", then={"delegate": RUNNING, "delegation.wait": DONE}),
    )
    assert (ran.code, ran.out) == (0, "the answer\n")
    first, second = asked(ran.server.requests, "delegate")
    assert first == second
    assert len(first["request_id"]) == 32
    assert "lost the daemon; waiting up to 60 s for it to return" in ran.err


def test_delegate_waits_on_for_what_was_accepted(run_cli: RunCli) -> None:
    script = dying({"delegate": RUNNING}, fatal="delegation.wait", then={"delegation.wait": DONE})
    ran = run_cli(["delegate", "x", "--cwd", "/"], script)
    assert (ran.code, ran.out) == (0, "the answer\n")
    assert ran.server.methods() == ["delegate", "delegation.wait", "delegation.wait"]


def test_wait_waits_on_for_the_rest_of_its_time(run_cli: RunCli) -> None:
    script = dying(
        {"delegation.get": RUNNING}, fatal="delegation.wait", then={"delegation.wait": DONE}
    )
    ran = run_cli(["wait", "d1", "--timeout", "500"], script)
    assert (ran.code, ran.out) == (0, "the answer\n")
    first, second = asked(ran.server.requests, "delegation.wait")
    assert first["timeout_s"] == 500
    assert 400 < second["timeout_s"] < 500


def test_a_log_that_is_followed_goes_on_at_its_offset(run_cli: RunCli) -> None:
    text = "one\ntwo\nthree\n"
    pieces = 0

    def piece(size: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
        def answer(params: dict[str, Any]) -> dict[str, Any]:
            part = text[params["offset"] : size]
            end = max(size, params["offset"])
            return {"attempt": "d1.1", "text": part, "next_offset": end, "ended": size == len(text)}

        return answer

    connections = 0

    def script(peer: Peer) -> None:
        nonlocal connections, pieces
        connections += 1
        if connections > 1:
            answering({"delegation.log": piece(len(text)), "delegation.get": DONE})(peer)
            return
        while (request := peer.read()) is not None and pieces < 2:
            pieces += 1
            peer.answer(request, piece(4 * pieces)(request["params"]))

    ran = run_cli(["log", "-f", "d1"], script)
    assert (ran.code, ran.out) == (0, text)
    assert [one["offset"] for one in asked(ran.server.requests, "delegation.log")][:4] == [
        *(0, 4, 8, 8),
    ]


def test_events_go_on_behind_the_last_one(run_cli: RunCli) -> None:
    connections = 0

    def script(peer: Peer) -> None:
        nonlocal connections
        connections += 1
        request = peer.read()
        assert request is not None
        peer.answer(request, {"subscription": "s", "seq": 4})
        for seq in (5, 6) if connections == 1 else (7,):
            peer.event(seq=seq, at=1.0, kind="health.moved")
        if connections > 1:
            peer.read()

    ran = run_cli(["events", "--since", "4", "--count", "3"], script)
    assert ran.code == 0
    assert [line.split()[0] for line in ran.out.splitlines()] == ["5", "6", "7"]
    assert [one["since"] for one in asked(ran.server.requests, "events.subscribe")] == [4, 6]
