import json
import re

from tests.client.conftest import RunCli
from tests.client.scripted import Failing

AT = 1_700_049_600.0
IDLE = {"delegation.list": {"lines": []}}
STATUS = {
    "daemon": {
        "version": "0.2.0",
        "pid": 42,
        "started_at": AT - 7380,
        "uptime_s": 7380.0,
        "socket": "/run/user/1/fallbackd/control.sock",
        "config_path": "/home/a/config.toml",
        "config_errors": [{"path": "defaults.settle_s", "message": "has to be at most 60"}],
        "state_dir": "/home/a/state",
    },
    "health": {
        "codex": {
            "state": "rate_limited",
            "reason": "usage_limit",
            "detail": "5 h window",
            "until_at": AT + 250,
            "count": 2,
            "scopes": [
                {"scope": "quota:chatgpt", "state": "rate_limited", "reason": "usage_limit"}
            ],
        },
        "opencode": {"state": "healthy", "unproven": True, "count": 0},
        "gemini": {"state": "broken", "reason": "not_installed"},
    },
    "sessions": [{"session": "s1", "original": "codex", "current": "opencode", "depth": 1}],
    "delegations": {
        "running": 1,
        "waiting": 0,
        "finished_total": 12,
        "active": [{"delegation": "d7", "state": "running", "active": "opencode", "session": "s1"}],
    },
    "questions": [],
}


def test_daemon_health_work_and_sessions_at_a_glance(run_cli: RunCli) -> None:
    ran = run_cli(["status"], {**IDLE, "status": STATUS})
    assert ran.code == 0
    assert ran.out.startswith("fallbackd 0.2.0 · pid 42 · up 2h 3m · /run/user/1/")
    assert "configuration error: defaults.settle_s: has to be at most 60" in ran.out
    assert re.search(r"^codex +rate_limited +2 +\S.* usage_limit: 5 h window$", ran.out, re.M)
    assert re.search(r"^opencode +healthy \(unproven\)$", ran.out, re.M)
    assert re.search(r"^not installed: gemini$", ran.out, re.M)
    assert "delegations: 1 running, 0 waiting, 12 finished" in ran.out
    assert re.search(r"^d7 +running +opencode +s1$", ran.out, re.M)
    assert "SESSION" not in ran.out.splitlines()[-1]


def test_no_colours_where_there_is_no_terminal(run_cli: RunCli) -> None:
    assert "\x1b" not in run_cli(["status"], {**IDLE, "status": STATUS}).out


def test_what_others_wrote_is_cleaned(run_cli: RunCli) -> None:
    hostile = {"co\x1b[2Jdex": {"state": "broken", "reason": "a\nb\u202e", "count": 1}}
    ran = run_cli(["status"], {**IDLE, "status": {**STATUS, "health": hostile}})
    assert re.search(r"^codex +broken +1 +a b$", ran.out, re.M)
    assert "\u202e" not in ran.out


def test_verbose_shows_scopes_and_is_asked_for(run_cli: RunCli) -> None:
    ran = run_cli(["status", "--verbose", "--session", "s1"], {**IDLE, "status": STATUS})
    assert ran.params("status") == {"verbose": True, "session": "s1"}
    assert re.search(r"^· quota:chatgpt +rate_limited +usage_limit$", ran.out, re.M)
    assert "state dir /home/a/state" in ran.out
    daemon = {**STATUS["daemon"], "confinement": "no: this kernel has no Landlock"}
    ran = run_cli(["status", "--verbose"], {**IDLE, "status": {**STATUS, "daemon": daemon}})
    assert "confinement no: this kernel has no Landlock" in ran.out


def test_one_session_with_its_hops_and_usage(run_cli: RunCli) -> None:
    hop = {"from": "codex", "to": "opencode", "trigger": "reactive", "reason": "rate_limit"}
    session = {"session": "s1", "current": "opencode", "hops": [hop], "notices": ["codex→opencode"]}
    usage = [{"backend": "codex", "period": "day", "attempts": 3, "input_tokens": 10}]
    answer = {**STATUS, "session": session, "usage": usage}
    ran = run_cli(["status", "--session", "s1"], {**IDLE, "status": answer})
    assert "codex is rate-limited; continuing with opencode." in ran.out
    assert "announced: codex→opencode" in ran.out
    assert re.search(r"^codex +day +3 +0 +10", ran.out, re.M)


def test_an_empty_daemon_has_a_status_too(run_cli: RunCli) -> None:
    ran = run_cli(["status"], {**IDLE, "status": {"daemon": {}, "health": {}}})
    assert ran.code == 0
    assert "no backends" in ran.out


def test_with_json_it_is_the_document_as_it_came(run_cli: RunCli) -> None:
    assert json.loads(run_cli(["status", "--json"], {**IDLE, "status": STATUS}).out) == STATUS


def test_watching_shows_it_again_and_again(run_cli: RunCli) -> None:
    ran = run_cli(
        ["status", "--watch"], {**IDLE, "status": [STATUS, STATUS, Failing(-32603, "over")]}
    )
    assert ran.code == 1
    assert ran.out.count("fallbackd 0.2.0") == 2


def test_what_is_wrong_with_the_records_is_shown_without_being_asked_for(run_cli: RunCli) -> None:
    aside = "sqlite; damaged file set aside as /s/fallbackd.db.corrupt-1. Remove it when"
    for store in (aside, "sqlite: the disk is full"):
        daemon = {**STATUS["daemon"], "store": store}
        ran = run_cli(["status"], {**IDLE, "status": {**STATUS, "daemon": daemon}})
        assert f"\nstore {store}\n" in ran.out
        ran = run_cli(["status", "--verbose"], {**IDLE, "status": {**STATUS, "daemon": daemon}})
        assert ran.out.count(f"store {store}\n") == 1
    daemon = {**STATUS["daemon"], "store": "sqlite"}
    assert "store" not in run_cli(["status"], {**IDLE, "status": {**STATUS, "daemon": daemon}}).out


def test_what_troubles_the_daemon_is_shown_with_what_mends_it(run_cli: RunCli) -> None:
    trouble = {
        "kind": "disk",
        "message": "the disk is full",
        "fix": "df -h /s",
        "stops_work": True,
    }
    daemon = {**STATUS["daemon"], "troubles": [trouble]}
    ran = run_cli(["status"], {**IDLE, "status": {**STATUS, "daemon": daemon}})
    assert "the disk is full; no new work is accepted\n  $ df -h /s\n" in ran.out


def test_what_ended_last_is_shown_with_why_it_went_elsewhere(run_cli: RunCli) -> None:
    ended = {"state": "succeeded", "served_by": "opencode", "ended_at": AT, "created_at": AT}
    work = [{"delegation": f"d{n}", **ended} for n in range(8, 0, -1)]
    work[0]["fallback_reason"] = "usage_limit: codex failed; continuing with opencode."
    listed = {"delegation.list": lambda params: {"lines": work[: params["limit"]]}}
    ran = run_cli(["status"], {"status": STATUS, **listed})
    assert ran.params("delegation.list")["ended"] is True
    assert re.search(
        r"^d8 +succeeded +opencode +\d.* ago +codex hit its usage limit$", ran.out, re.M
    )
    assert re.findall(r"^d(\d) +succeeded", ran.out, re.M) == ["8", "7", "6", "5", "4"]


def test_verbose_shows_absent_backends_and_sessions_too(run_cli: RunCli) -> None:
    ran = run_cli(["status", "--verbose"], {**IDLE, "status": STATUS})
    assert re.search(r"^gemini +broken +not_installed$", ran.out, re.M)
    assert re.search(r"^s1 +opencode +codex +1$", ran.out, re.M)


def test_what_is_not_set_up_comes_with_the_way_to_learn_why(run_cli: RunCli) -> None:
    lacks = {"state": "broken", "reason": "not_configured", "detail": "no key: K is not set"}
    health = {"codex": {"state": "healthy"}, "hermes-api": lacks}
    known = {**IDLE, "status": {**STATUS, "health": health}}
    assert "doctor" not in run_cli(["status"], known).out, "of a server that hardly anybody has"
    health["gpt"] = lacks
    shown = run_cli(["status"], known).out
    assert "not set up: hermes-api, gpt\n  $ fallbackd-client doctor " in shown


def test_a_version_that_is_not_supported_is_not_called_a_missing_setup(run_cli: RunCli) -> None:
    entry = {"state": "broken", "reason": "not_configured", "detail": "version"}
    health = {"codex": {"state": "healthy"}, "opencode": entry}
    shown = run_cli(["status"], {**IDLE, "status": {**STATUS, "health": health}}).out
    assert "not supported in this version: opencode" in shown
    assert "not set up" not in shown


def test_handing_the_work_back_is_no_backend_to_look_at(run_cli: RunCli) -> None:
    health = {"codex": {"state": "healthy"}, "in-session": {"state": "healthy"}}
    known = {**IDLE, "status": {**STATUS, "health": health}}
    assert "in-session" not in run_cli(["status"], known).out
    health["in-session"] = {"state": "paused"}
    assert re.search(r"^in-session +paused", run_cli(["status"], known).out, re.M)


def test_an_id_that_is_shown_is_of_one_delegation_alone(run_cli: RunCli) -> None:
    """Also where the one began within moments of the other, and one runs that has not ended."""
    first, second = "d1a20b67f01aaaaaaaaa", "d1a20b67f02bbbbbbbbb"
    one = {"state": "running", "requested": "codex", "created_at": AT}
    daemon = {**STATUS, "delegations": {"running": 1, "active": [{"delegation": second, **one}]}}
    ended = {"state": "succeeded", "served_by": "codex", "ended_at": AT, "created_at": AT}
    listed = {"delegation.list": {"lines": [{"delegation": first, **ended}]}}
    ran = run_cli(["status"], {"status": daemon, **listed})
    shown = re.findall(r"^(d[0-9a-f]+) +(running|succeeded)", ran.out, re.M)
    assert shown == [(second[:12], "running"), (first[:12], "succeeded")]
