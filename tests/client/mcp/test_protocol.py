"""What both eras of the protocol say to each message, without a daemon."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.benchmarks.procfs import memory_mib
from tests.client.mcp.driver import LIMIT_S, META, STATELESS, Session, session
from tests.client.scripted import Failing, answering, serving
from tests.support.daemon import ROOT

RESIDENT_MIB = 48.0
"""Less than one such line."""
TOOLS = ["delegate", "wait", "cancel", "status", "health", "suggest", "explain"]


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
def test_a_known_version_is_agreed_on(tmp_path: Path, version: str) -> None:
    with session(tmp_path / "none.sock") as s:
        found = s.initialize(version)
        assert found["protocolVersion"] == version
        assert found["serverInfo"]["name"] == "fallbackd"
        assert "delegate" in found["instructions"]


def test_an_unknown_version_is_answered_with_the_newest_of_that_era(tmp_path: Path) -> None:
    with session(tmp_path / "none.sock") as s:
        assert s.initialize("2031-01-01")["protocolVersion"] == "2025-11-25"


def test_discovery_names_the_versions_and_opens_no_session(tmp_path: Path) -> None:
    with session(tmp_path / "none.sock") as s:
        found = s.request("server/discover", {"_meta": STATELESS})["result"]
        assert found["resultType"] == "complete"
        assert found["supportedVersions"] == ["2026-07-28", "2025-11-25"]
        assert found["_meta"][META + "serverInfo"]["name"] == "fallbackd"
        listed = s.request("tools/list", {"_meta": STATELESS})["result"]
        assert listed["resultType"] == "complete"
        assert listed["cacheScope"] == "private"
        assert [one["name"] for one in listed["tools"]] == TOOLS


def test_a_version_of_the_later_era_that_is_not_spoken_is_refused(tmp_path: Path) -> None:
    with session(tmp_path / "none.sock") as s:
        meta = {META + "protocolVersion": "2029-01-01"}
        error = s.request("tools/list", {"_meta": meta})["error"]
        assert error["code"] == -32022
        assert error["data"] == {
            "supported": ["2026-07-28", "2025-11-25"],
            "requested": "2029-01-01",
        }


def test_what_the_later_era_has_removed_is_unknown_in_it(tmp_path: Path) -> None:
    with session(tmp_path / "none.sock") as s:
        assert s.request("ping")["result"] == {}
        assert s.request("ping", {"_meta": STATELESS})["error"]["code"] == -32601


def test_the_definitions_are_small_and_plain(tmp_path: Path) -> None:
    with session(tmp_path / "none.sock") as s:
        s.initialize()
        tools = s.request("tools/list")["result"]["tools"]
    assert [one["name"] for one in tools] == TOOLS
    text = json.dumps(tools, separators=(",", ":"))
    assert len(text) < 6_000
    for word in ("$ref", "oneOf", "anyOf", '"format"', "null"):
        assert word not in text
    assert {one["name"] for one in tools if one["annotations"]["readOnlyHint"]} == {
        "wait",
        "status",
        "health",
        "suggest",
        "explain",
    }


def error_of(s: Session, line: bytes) -> tuple[Any, int]:
    s.write(line)
    found = s.read()
    return found["id"], found["error"]["code"]


def test_each_bad_line_is_an_error_of_its_own(tmp_path: Path) -> None:
    with session(tmp_path / "none.sock") as s:
        s.initialize()
        assert error_of(s, b"{bad") == (None, -32700)
        assert error_of(s, b"\xff\xfe") == (None, -32700)
        assert error_of(s, b"[" * 100_000) == (None, -32700)
        assert error_of(s, b'{"jsonrpc":"2.0","id":NaN,"method":"ping"}') == (None, -32700)
        assert error_of(s, b"[]") == (None, -32600)
        assert error_of(s, b"7") == (None, -32600)
        assert error_of(s, b'{"jsonrpc":"1.0","id":4,"method":"ping"}') == (4, -32600)
        assert error_of(s, b'{"jsonrpc":"2.0","id":{},"method":"ping"}') == (None, -32600)
        assert error_of(s, b'{"jsonrpc":"2.0","id":5}') == (5, -32600)
        assert error_of(s, b'{"jsonrpc":"2.0","id":6,"method":"ping","params":3}') == (6, -32602)
        assert error_of(s, b'{"jsonrpc":"2.0","id":"a","method":"nope"}') == ("a", -32601)
        assert s.request("ping")["result"] == {}


def test_a_line_that_is_too_long_is_refused_by_its_id_and_skipped(tmp_path: Path) -> None:
    with session(tmp_path / "none.sock") as s:
        s.initialize()
        filler = b"x" * (64 * 1024 * 1024)
        call = b'{"method":"tools/call","params":{"name":"delegate","arguments":{"prompt":"'
        s.write(call + filler + b'"}},"jsonrpc":"2.0","id":77}')
        found = s.read()
        assert found["id"] == 77
        assert found["error"]["code"] == -32600
        assert "file" in found["error"]["message"]
        s.write(b'{"jsonrpc":"2.0","id":"first","method":"x","params":{"p":"' + filler + b'"}}')
        assert s.read()["id"] == "first"
        s.write(filler)
        assert s.read()["id"] is None
        assert memory_mib(s.process.pid)[0] < RESIDENT_MIB
        assert s.request("ping")["result"] == {}


def test_notifications_are_never_answered(tmp_path: Path) -> None:
    with session(tmp_path / "none.sock") as s:
        s.initialize()
        s.say(method="notifications/cancelled", params={"requestId": 12, "reason": "late"})
        s.say(method="notifications/cancelled", params={})
        s.say(method="notifications/nobody-knows", params={"a": 1})
        s.say(id="of-nobody", result={})
        assert s.request("ping")["result"] == {}
        assert s.told == []


def test_a_batch_is_answered_message_by_message(tmp_path: Path) -> None:
    with session(tmp_path / "none.sock") as s:
        s.initialize("2025-03-26")
        s.write(b'[{"jsonrpc":"2.0","id":"a","method":"ping"},3,{"jsonrpc":"2.0","method":"n"}]')
        assert s.read()["id"] == "a"
        assert s.read()["error"]["code"] == -32600


def test_without_a_daemon_tools_are_listed_and_a_call_says_how_to_start_it(tmp_path: Path) -> None:
    with session(tmp_path / "none.sock") as s:
        s.initialize()
        assert len(s.request("tools/list")["result"]["tools"]) == len(TOOLS)
        for name in ("status", "suggest"):
            found = s.call(name, **({"goal": "x"} if name == "suggest" else {}))
            assert found["isError"] is True
            assert "start it with" in found["content"][0]["text"]
            assert "fallbackd-client doctor" in found["content"][0]["text"]


def test_a_daemon_that_does_not_say_where_this_runs_is_asked_once_for_each_list(
    tmp_path: Path,
) -> None:
    failing = answering({"daemon.ping": Failing(-32603)})
    with serving(tmp_path / "s", failing) as daemon, session(tmp_path / "s") as s:
        s.initialize()
        for asked in (1, 2):
            assert len(s.request("tools/list")["result"]["tools"]) == len(TOOLS)
            assert daemon.methods() == ["daemon.ping"] * asked


@pytest.mark.parametrize(
    ("pong", "names", "levels"),
    [
        ({"permissions": "full"}, TOOLS, ["read", "workspace", "full"]),
        ({}, TOOLS, ["read", "workspace", "full"]),
        ({"attempt": "d1.1", "permissions": "full"}, TOOLS, ["read", "workspace", "full"]),
        ({"attempt": "d1.1", "permissions": "workspace"}, TOOLS, ["read", "workspace"]),
        ({"attempt": "d1.1", "permissions": "read"}, TOOLS, ["read"]),
        ({"permissions": None}, ["status", "health", "suggest"], []),
    ],
)
def test_the_tools_are_those_that_the_daemon_lets_this_process_call(
    tmp_path: Path, pong: dict[str, Any], names: list[str], levels: list[str]
) -> None:
    with (
        serving(tmp_path / "s", answering({"daemon.ping": pong})),
        session(tmp_path / "s", "--allow-health") as s,
    ):
        s.initialize()
        tools = {one["name"]: one for one in s.request("tools/list")["result"]["tools"]}
    assert list(tools) == names
    changes = tools["health"]["inputSchema"]["properties"]["action"]["enum"]
    assert ("clear" in changes) is (pong in ({}, {"permissions": "full"}))
    if levels:
        schema = tools["delegate"]["inputSchema"]
        assert schema["properties"]["permissions"]["enum"] == levels
        assert ("permissions" in schema["required"]) is (levels == ["read"])


@pytest.mark.parametrize(
    ("tool", "given", "words"),
    [
        ("delegate", {}, "needs the argument `prompt`"),
        ("delegate", {"prompt": 3}, "`prompt` has to be a string"),
        ("delegate", {"prompt": "x", "wait_s": True}, "`wait_s` has to be a number"),
        ("delegate", {"prompt": "x", "permissions": "root"}, "one of read, workspace, full"),
        ("delegate", {"prompt": "x", "env": {}}, "has no argument `env`"),
        ("health", {"action": "clear"}, "one of list"),
        ("wait", {"delegation": None}, "needs the argument `delegation`"),
        ("wait", {"delegation": ""}, "needs the argument `delegation`"),
        ("delegate", {"prompt": "x", "wait_s": 10**400}, "`wait_s` is too large"),
        ("delegate", {"prompt": "x", "wait_s": -5}, "`wait_s` has to be 0 or more"),
        ("delegate", {"prompt": "x", "timeout_s": -1e300}, "`timeout_s` is too large"),
        ("delegate", {"prompt": "x", "cwd": "a\0b"}, "`cwd` is not a path"),
        ("delegate", {"prompt": "x", "cwd": "\ud83d"}, "`cwd` is not a path"),
    ],
)
def test_a_wrong_argument_is_told_to_the_model(
    tmp_path: Path, tool: str, given: dict[str, Any], words: str
) -> None:
    with session(tmp_path / "none.sock") as s:
        s.initialize()
        found = s.call(tool, **given)
        assert found["isError"] is True
        assert words in found["content"][0]["text"]


def test_an_unknown_tool_is_an_error_of_the_protocol(tmp_path: Path) -> None:
    with session(tmp_path / "none.sock") as s:
        s.initialize()
        error = s.request("tools/call", {"name": "answer", "arguments": {}})["error"]
        assert error["code"] == -32602
        assert "delegate" in error["message"]


def test_the_end_of_the_input_ends_the_server(tmp_path: Path) -> None:
    with session(tmp_path / "none.sock") as s:
        s.initialize()
    assert s.process.returncode == 0


def test_a_client_that_closes_its_side_and_reads_nothing_is_left(tmp_path: Path) -> None:
    with session(tmp_path / "none.sock") as s:
        assert s.process.stdin is not None
        s.say(id="x" * 2**20, method="ping")  # a longer answer than a pipe holds
        s.process.stdin.close()
        assert s.process.wait(LIMIT_S) == 0


def test_without_an_input_it_says_so(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fallbackd_client.cli.main", "mcp"]
    env = {"PYTHONPATH": str(ROOT / "client"), "PATH": os.environ["PATH"]}
    closed = ["/bin/sh", "-c", 'exec "$@" <&-', "sh", *command]
    done = subprocess.run(closed, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("fallbackd-client: standard input and standard output have to be")
