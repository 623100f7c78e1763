import json

from tests.client.conftest import RunCli
from tests.client.scripted import Peer


def two_events(peer: Peer) -> None:
    request = peer.read()
    assert request is not None
    peer.answer(request, {"subscription": "s", "seq": 4})
    peer.event(
        seq=5, at=1.0, kind="health.moved", backend="codex\x1b[2J", until_at=2.0, reason=None
    )
    peer.event(seq=6, at=1.0, kind="session.notice", text="codex is\nlimited")
    peer.read()


def test_each_event_is_one_line(run_cli: RunCli) -> None:
    ran = run_cli(["events", "--count", "2"], two_events)
    first, second = ran.out.splitlines()
    assert ran.code == 0
    assert first.startswith("5 ")
    assert " health.moved backend=codex until_at=1970-01-01T" in first
    assert "reason" not in first
    assert second.endswith(' session.notice text="codex is limited"')


def test_flags_reach_the_subscription(run_cli: RunCli) -> None:
    ran = run_cli(
        [
            "events",
            "-f",
            "--count",
            "1",
            "--since",
            "3",
            "--kinds",
            "health.moved,session.notice",
            "--session",
            "s1",
        ],
        two_events,
    )
    assert ran.params("events.subscribe") == {
        "since": 3,
        "kinds": ["health.moved", "session.notice"],
        "session": "s1",
    }


def test_with_json_each_event_is_a_document(run_cli: RunCli) -> None:
    ran = run_cli(["events", "--count", "2", "--json"], two_events)
    assert [json.loads(line)["seq"] for line in ran.out.splitlines()] == [5, 6]
    assert "\x1b" not in ran.out


def test_that_the_journal_began_anew_is_said_beside_the_events(run_cli: RunCli) -> None:
    def begun_anew(peer: Peer) -> None:
        request = peer.read()
        assert request is not None
        peer.answer(request, {"subscription": "s", "seq": 4, "warning": "it began anew"})
        peer.event(seq=5, at=1.0, kind="health.moved")
        peer.read()

    ran = run_cli(["events", "--since", "900", "--count", "1", "--json"], begun_anew)
    assert ran.err == "warning: it began anew\n"
    assert [json.loads(line)["seq"] for line in ran.out.splitlines()] == [5]
