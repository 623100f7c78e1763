"""`delegate`, `wait` and `cancel`: what the daemon is asked, and what the agent reads."""

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.client.mcp.driver import LIMIT_S, STATELESS, Session, session
from tests.client.scripted import Failing, Peer, answering, serving

from fallbackd_client.mcp.protocol import LineReader, LineWriter
from fallbackd_client.mcp.server import Server
from fallbackd_client.mcp.tools import Offer
from fallbackd_client.wire.codes import BUSY

Params = dict[str, Any]
ACCEPTED = {"delegation": "d1", "state": "running", "active": "codex", "hops": []}
HOP = {"at": 1, "from": "codex", "to": "opencode", "trigger": "reactive", "reason": "usage_limit"}
DONE = {
    **ACCEPTED,
    "state": "succeeded",
    "served_by": "opencode",
    "fallback_from": "codex",
    "fallback_reason": "usage_limit: until 14:05",
    "hops": [HOP],
    "text": "the answer",
    "usage": {"input_tokens": 3, "output_tokens": 4, "cost_usd": None},
}
QUESTION = {
    "question": "q1",
    "delegation": "d1",
    "text": "codex is out. Use the paid API?",
    "options": [{"choice": "yes", "text": "use it"}, {"choice": "no", "text": "stop"}],
}
ASKING = {**ACCEPTED, "state": "awaiting_answer", "question": QUESTION}


def test_the_answer_comes_with_its_backend_and_the_reason(tmp_path: Path) -> None:
    answers = {"delegate": ACCEPTED, "delegation.wait": DONE}
    with serving(tmp_path / "s", answering(answers)) as daemon:
        with session(tmp_path / "s", cwd=tmp_path) as s:
            s.initialize()
            found = s.call("delegate", prompt="review", backend="codex", timeout_s=60)
        sent = daemon.params("delegate")
    assert found["isError"] is False
    shown = found["structuredContent"]
    assert shown["text"] == "the answer"
    assert shown["served_by"] == "opencode"
    assert shown["fallback_reason"] == "usage_limit: until 14:05"
    assert shown["message"] == "codex hit its usage limit; continuing with opencode."
    assert shown["usage"] == {"input_tokens": 3, "output_tokens": 4}
    assert json.loads(found["content"][0]["text"]) == shown
    assert sent["prompt"] == "review"
    assert sent["backend"] == "codex"
    assert sent["timeout_s"] == 60
    assert sent["cwd"] == str(tmp_path)
    assert sent["session"].startswith("mcp/a-client/")


def test_an_argument_that_is_filled_in_with_nothing_is_left_out(tmp_path: Path) -> None:
    with serving(tmp_path / "s", answering({"delegate": DONE})) as daemon:
        with session(tmp_path / "s", cwd=tmp_path) as s:
            s.initialize()
            s.call("delegate", prompt="x", backend="", model="", cwd="", session="", role=None)
        sent = daemon.params("delegate")
    assert not {"backend", "model", "role"} & set(sent)
    assert sent["cwd"] == str(tmp_path)
    assert sent["session"].startswith("mcp/a-client/")


def test_the_session_and_directory_of_claude_code_come_from_its_environment(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "below").mkdir(parents=True)
    with serving(tmp_path / "s", answering({"delegate": DONE})) as daemon:
        env = {"CLAUDE_CODE_SESSION_ID": "c0ffee", "CLAUDE_PROJECT_DIR": str(project)}
        with session(tmp_path / "s", cwd=tmp_path, **env) as s:
            s.call("delegate", {**STATELESS, "claudecode/toolUseId": "t1"}, prompt="x")
            first = daemon.params("delegate")
            s.call("delegate", {**STATELESS, "claudecode/toolUseId": "t1"}, prompt="x", cwd="below")
            second = daemon.params("delegate")
            s.call("delegate", {**STATELESS, "claudecode/toolUseId": "t2"}, prompt="x")
            third = daemon.params("delegate")
    assert first["session"] == "mcp/claude/c0ffee"
    assert first["cwd"] == str(project)
    assert second["cwd"] == str(project / "below")
    assert first["request_id"] == second["request_id"] != third["request_id"]


def test_the_session_and_directory_of_codex_come_with_each_call(tmp_path: Path) -> None:
    meta = {"x-codex-turn-metadata": {"session_id": "c1", "workspaces": {"/a/project": {}}}}
    with serving(tmp_path / "s", answering({"delegate": DONE})) as daemon:
        with session(tmp_path / "s", cwd=tmp_path) as s:
            s.initialize("2025-06-18")
            s.call("delegate", meta, prompt="x")
        sent = daemon.params("delegate")
    assert sent["session"] == "mcp/codex/c1"
    assert sent["cwd"] == "/a/project"


def test_a_directory_outside_of_the_project_is_refused_unless_a_root_holds_it(
    tmp_path: Path,
) -> None:
    project, other = tmp_path / "project", tmp_path / "other dir"
    project.mkdir()
    other.mkdir()
    (project / "link").symlink_to(other)
    with serving(tmp_path / "s", answering({"delegate": DONE})) as daemon:
        with session(tmp_path / "s", cwd=project) as s:
            s.initialize()
            for path in ("..", str(other), "link", "/", "a\0b"):
                found = s.call("delegate", prompt="x", cwd=path)
                assert found["isError"] is True
                assert "cwd" in found["content"][0]["text"]
            assert daemon.methods() == []
            s.initialize(roots={"listChanged": True})
            number = s.begin("delegate", prompt="x", cwd=str(other))
            asked = s.until("roots/list")
            s.say(id=asked["id"], result={"roots": [{"uri": f"file://{tmp_path}/other%20dir"}]})
            assert s.answer_to(number)["result"]["isError"] is False
        assert daemon.params("delegate")["cwd"] == str(other)


@pytest.mark.parametrize(
    ("standby", "expected"),
    [
        ({"expects_at": 4e9, "limit_at": 5e9}, "waits until 2096-10-02 07:06:40 (in "),
        (
            {"expects_at": None, "limit_at": 5e9},
            "a repair, is refused at 2128-06-11 08:53:20",
        ),
    ],
)
def test_work_may_wait_for_a_backend_and_its_handle_says_until_when(
    tmp_path: Path, standby: dict[str, float | None], expected: str
) -> None:
    waits = {**ACCEPTED, "state": "waiting", "standby": standby}
    answers = {"delegate": waits, "delegation.keep": waits, "delegation.wait": waits}
    with serving(tmp_path / "s", answering(answers)) as daemon:
        with session(tmp_path / "s", TZ="UTC") as s:
            s.initialize()
            found = s.call("delegate", prompt="x", wait_s=0, when_available=True)
        assert daemon.params("delegate")["when_available"] is True
    assert expected in found["structuredContent"]["message"]
    assert found["isError"] is False


@pytest.mark.parametrize("given", ["yes", 1])
def test_only_true_and_false_say_whether_work_may_wait_for_a_backend(
    tmp_path: Path, given: object
) -> None:
    with serving(tmp_path / "s", answering({})) as daemon, session(tmp_path / "s") as s:
        s.initialize()
        found = s.call("delegate", prompt="x", when_available=given)
        assert found["isError"] is True
        assert found["content"][0]["text"] == "`when_available` has to be a boolean"
        assert daemon.methods() == []


def test_work_that_takes_longer_is_handed_back_as_a_handle(tmp_path: Path) -> None:
    answers = {
        "delegate": ACCEPTED,
        "delegation.get": ACCEPTED,
        "delegation.keep": ACCEPTED,
        "delegation.wait": [{**ACCEPTED, "wait_over": True}, DONE],
    }
    with serving(tmp_path / "s", answering(answers)), session(tmp_path / "s") as s:
        s.initialize()
        found = s.call("delegate", prompt="x", wait_s=0)
        assert found["isError"] is False
        assert found["structuredContent"]["state"] == "running"
        assert "wait with delegation d1" in found["structuredContent"]["next"]
        later = s.call("wait", delegation="d1")
        assert later["structuredContent"]["text"] == "the answer"


def test_progress_says_what_happens_and_rises(tmp_path: Path) -> None:
    moved = {**ACCEPTED, "active": "opencode", "hops": [HOP]}
    answers = {"delegate": ACCEPTED, "delegation.wait": [ACCEPTED, moved, DONE]}
    with serving(tmp_path / "s", answering(answers)), session(tmp_path / "s") as s:
        s.initialize()
        s.call("delegate", {"progressToken": "p"}, prompt="x")
    told = [one["params"] for one in s.told]
    assert [one["progressToken"] for one in told] == ["p", "p"]
    assert told[0]["message"].startswith("codex: running")
    assert (
        "codex hit its usage limit; continuing with opencode. opencode: running"
        in (told[1]["message"])
    )
    assert told[0]["progress"] < told[1]["progress"]


def test_work_that_failed_is_an_error_with_what_helps(tmp_path: Path) -> None:
    fix = {"kind": "not_permitted", "text": "log in with: codex login"}
    refused = {
        **ACCEPTED,
        "state": "refused",
        "failure": {"reason": "auth", "evidence": "401"},
        "candidates": [{"backend": "codex", "verdict": "tried", "fix": fix}],
    }
    with serving(tmp_path / "s", answering({"delegate": refused})), session(tmp_path / "s") as s:
        s.initialize()
        found = s.call("delegate", prompt="x")
    assert found["isError"] is True
    assert found["structuredContent"]["state"] == "refused"
    assert "codex: log in with: codex login" in found["structuredContent"]["message"]


def test_a_long_answer_is_cut_and_says_where_the_rest_is(tmp_path: Path) -> None:
    long = {**DONE, "text": "x" * 50_000}
    with serving(tmp_path / "s", answering({"delegate": long})), session(tmp_path / "s") as s:
        s.initialize()
        shown = s.call("delegate", prompt="x")["structuredContent"]
    assert len(shown["text"]) == 20_000
    assert "fallbackd-client show d1" in shown["next"]


def test_a_second_delegation_of_a_conversation_does_not_wait_for_the_first(tmp_path: Path) -> None:
    def delegate(params: Params) -> Any:
        if params["session"] == "mcp/claude/c1":
            return Failing(-32002, "in use", {"kind": "busy"})
        return DONE

    daemon = serving(tmp_path / "s", answering({"delegate": delegate}))
    with daemon as asked, session(tmp_path / "s", CLAUDE_CODE_SESSION_ID="c1") as s:
        s.initialize()
        assert s.call("delegate", prompt="x")["isError"] is False
        assert asked.params("delegate")["session"].startswith("mcp/claude/c1/")
        named = s.call("delegate", prompt="x", session="mcp/claude/c1")
        assert named["isError"] is True


def test_parallel_calls_that_are_sent_again_are_the_same_delegations(tmp_path: Path) -> None:
    """Another process of this server sends them again, and the conversation may be free by then."""
    known: dict[str, Params] = {}
    is_free = threading.Event()

    def delegate(params: Params) -> Any:
        first = known.get(params["request_id"])
        if first is not None:
            if first["session"] != params["session"]:
                return Failing(-32602, "was used for another request", {"kind": "request_id"})
            return first["answer"]
        if not is_free.is_set() and any(
            one["session"] == params["session"] for one in known.values()
        ):
            return Failing(BUSY, "in use", {"kind": "busy"})
        answer = {**DONE, "delegation": f"d{len(known) + 1}"}
        known[params["request_id"]] = {"session": params["session"], "answer": answer}
        return answer

    ids = [{"claudecode/toolUseId": name} for name in ("toolu_1", "toolu_2")]
    with serving(tmp_path / "s", answering({"delegate": delegate})):
        for _ in range(2):
            with session(tmp_path / "s", CLAUDE_CODE_SESSION_ID="c1") as s:
                s.initialize()
                found = [s.call("delegate", meta, prompt="x")["structuredContent"] for meta in ids]
            assert [one["delegation"] for one in found] == ["d1", "d2"]
            is_free.set()


def test_a_request_id_that_was_used_for_another_prompt_is_refused(tmp_path: Path) -> None:
    no = Failing(-32602, "was used for another request", {"kind": "request_id"})
    with serving(tmp_path / "s", answering({"delegate": no})), session(tmp_path / "s") as s:
        s.initialize()
        found = s.call("delegate", prompt="y", request_id="r")
    assert found["isError"] is True
    assert found["content"][0]["text"] == "was used for another request"


def test_what_the_daemon_refuses_is_told_to_the_model(tmp_path: Path) -> None:
    no = Failing(-32005, "delegations go 2 levels deep at most", {"kind": "nesting"})
    with serving(tmp_path / "s", answering({"delegate": no})), session(tmp_path / "s") as s:
        s.initialize()
        found = s.call("delegate", prompt="x")
    assert found["isError"] is True
    assert found["content"][0]["text"] == "delegations go 2 levels deep at most"


def running_until_cancelled(
    cancelled: threading.Event, accepted: Params = ACCEPTED
) -> Callable[[Peer], None]:
    def wait(_: Params) -> Any:
        return {**accepted, "wait_over": True}

    def cancel(_: Params) -> Any:
        cancelled.set()
        return {**ACCEPTED, "state": "cancelled"}

    answers = {
        "delegate": accepted,
        "delegation.get": accepted,
        "delegation.wait": wait,
        "delegation.cancel": cancel,
        "delegation.keep": ACCEPTED,
    }
    return answering(answers)


def test_a_cancelled_delegate_stops_the_work_and_is_not_answered(tmp_path: Path) -> None:
    cancelled = threading.Event()
    with serving(tmp_path / "s", running_until_cancelled(cancelled)), session(tmp_path / "s") as s:
        s.initialize()
        number = s.begin("delegate", {"progressToken": 1}, prompt="x")
        s.until("notifications/progress")
        s.say(method="notifications/cancelled", params={"requestId": number})
        assert cancelled.wait(LIMIT_S)
        assert s.request("ping")["result"] == {}
        s.told.clear()
        assert s.request("ping")["result"] == {}
        assert s.told == []


def test_a_delegate_that_is_cancelled_while_the_daemon_restarts_stops_the_work(
    tmp_path: Path,
) -> None:
    cancelled = threading.Event()

    def ends_with_the_request(peer: Peer) -> None:
        peer.read()
        peer.close()

    with session(tmp_path / "s") as s:
        with serving(tmp_path / "s", ends_with_the_request) as daemon:
            s.initialize()
            number = s.begin("delegate", {"progressToken": 1}, prompt="x")
            told = s.until("notifications/progress")
            assert told["params"]["message"].startswith("the daemon is being restarted")
            asked = daemon.params("delegate")
        s.say(method="notifications/cancelled", params={"requestId": number})
        s.request("ping")  # what was said before it is known by now
        with serving(tmp_path / "s", running_until_cancelled(cancelled)) as daemon:
            assert cancelled.wait(LIMIT_S)
            assert daemon.params("delegation.cancel") == {"request_id": asked["request_id"]}
            assert "delegate" not in daemon.methods()


def test_a_delegate_that_is_cancelled_while_its_form_is_open_stops_the_work(
    tmp_path: Path,
) -> None:
    cancelled = threading.Event()
    daemon = running_until_cancelled(cancelled, ASKING)
    with serving(tmp_path / "s", daemon), session(tmp_path / "s") as s:
        s.initialize(elicitation={})
        number = s.begin("delegate", prompt="x")
        asked = s.until("elicitation/create")
        s.say(method="notifications/cancelled", params={"requestId": number})
        assert s.until("notifications/cancelled")["params"]["requestId"] == asked["id"]
        assert cancelled.wait(LIMIT_S)


def test_a_cancelled_wait_leaves_the_work_alone(tmp_path: Path) -> None:
    cancelled = threading.Event()
    with serving(tmp_path / "s", running_until_cancelled(cancelled)) as daemon:
        with session(tmp_path / "s") as s:
            s.initialize()
            number = s.begin("wait", {"progressToken": 1}, delegation="d1")
            s.until("notifications/progress")
            s.say(method="notifications/cancelled", params={"requestId": number})
            params = {"name": "cancel", "arguments": {"delegation": "d1"}}
            found: Params = {"error": "its id is in use until the waiting has ended"}
            while "error" in found:
                s.say(id=number, method="tools/call", params=params)
                found = s.answer_to(number)
            assert found["result"]["structuredContent"]["state"] == "cancelled"
        assert daemon.methods().count("delegation.cancel") == 1


def test_an_id_that_is_in_use_is_refused_for_the_second_call_only(tmp_path: Path) -> None:
    cancelled = threading.Event()
    with serving(tmp_path / "s", running_until_cancelled(cancelled)), session(tmp_path / "s") as s:
        s.initialize()
        params = {"name": "delegate", "arguments": {"prompt": "x", "wait_s": 2}}
        s.say(id="same", method="tools/call", params=params)
        s.say(id="same", method="tools/call", params=params)
        assert s.read()["error"]["code"] == -32600
        assert s.answer_to("same")["result"]["structuredContent"]["state"] == "running"


def asking(answered: Params, wait: Callable[[Params], Any] | None = None) -> Callable[[Peer], None]:
    """A daemon whose question is open until it was answered."""

    def now(_: Params) -> Any:
        return DONE if answered else ASKING

    def answer(params: Params) -> Any:
        if params["choice"] not in ("yes", "no"):
            return Failing(-32602, "not one of its choices")
        answered.update(params)
        return {**QUESTION, "choice": params["choice"]}

    return answering(
        {
            "delegate": ASKING,
            "delegation.get": now,
            "delegation.wait": wait or now,
            "question.answer": answer,
            "delegation.keep": ASKING,
        }
    )


def test_a_question_is_shown_by_a_client_that_can(tmp_path: Path) -> None:
    answered: Params = {}
    with serving(tmp_path / "s", asking(answered)), session(tmp_path / "s") as s:
        s.initialize(elicitation={"form": {}, "url": {}})
        number = s.begin("delegate", prompt="x")
        asked = s.until("elicitation/create")
        assert "Use the paid API?" in asked["params"]["message"]
        choices = asked["params"]["requestedSchema"]["properties"]["choice"]["enum"]
        assert choices == ["yes", "no"]
        s.say(id=asked["id"], result={"action": "accept", "content": {"choice": "yes"}})
        found = s.answer_to(number)["result"]
    assert found["structuredContent"]["text"] == "the answer"
    assert answered["question"] == "q1"
    assert answered["choice"] == "yes"


def test_the_client_hears_of_the_call_for_as_long_as_its_user_thinks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fallbackd_client.mcp.call.PROGRESS_EVERY_S", 0.0)
    (reading, asking_it), (hearing, writing) = os.pipe(), os.pipe()
    offer = Offer(may_change_health=False)
    lines = LineReader(reading), LineWriter(writing, reading)
    server = Server(*lines, path=str(tmp_path / "s"), offer=offer)
    thread = threading.Thread(target=server.serve)
    answered: Params = {}
    with (
        serving(tmp_path / "s", asking(answered)),
        open(asking_it, "wb") as stdin,
        open(hearing, "rb") as stdout,
    ):
        thread.start()
        process: Any = SimpleNamespace(stdin=stdin, stdout=stdout)
        s = Session(process)
        s.initialize(elicitation={})
        number = s.begin("delegate", {"progressToken": 1}, prompt="x")
        asked = s.until("elicitation/create")
        for _ in range(3):
            told = s.until("notifications/progress")["params"]["message"]
            assert told.startswith("waiting for your answer")
        s.say(id=asked["id"], result={"action": "accept", "content": {"choice": "yes"}})
        assert s.answer_to(number)["result"]["structuredContent"]["text"] == "the answer"
        stdin.close()
        thread.join(LIMIT_S)
    os.close(reading)
    os.close(writing)
    assert not thread.is_alive()


def test_work_is_followed_through_a_restart_of_the_daemon_while_its_form_is_open(
    tmp_path: Path,
) -> None:
    answered: Params = {}
    with session(tmp_path / "s") as s:
        with serving(tmp_path / "s", asking(answered)):
            s.initialize(elicitation={})
            number = s.begin("delegate", prompt="x")
            asked = s.until("elicitation/create")
        followed = threading.Event()

        def wait(_: Params) -> Any:
            followed.set()
            return DONE if answered else ASKING

        with serving(tmp_path / "s", asking(answered, wait)):
            assert followed.wait(LIMIT_S)
            s.say(id=asked["id"], result={"action": "accept", "content": {"choice": "yes"}})
            found = s.answer_to(number)["result"]
    assert found["structuredContent"]["text"] == "the answer"
    assert answered["choice"] == "yes"


def test_an_answer_that_is_lost_with_the_daemon_is_given_again(tmp_path: Path) -> None:
    answered: Params = {}

    def ends_with_the_answer(peer: Peer) -> None:
        while (request := peer.read()) is not None:
            if request["method"] == "question.answer":
                peer.close()
                break
            peer.answer(request, ASKING)

    scripts = ends_with_the_answer, asking(answered)
    with serving(tmp_path / "s", *scripts), session(tmp_path / "s") as s:
        s.initialize(elicitation={})
        number = s.begin("delegate", prompt="x")
        asked = s.until("elicitation/create")
        s.say(id=asked["id"], result={"action": "accept", "content": {"choice": "yes"}})
        assert s.answer_to(number)["result"]["structuredContent"]["text"] == "the answer"
    assert answered["choice"] == "yes"


def test_a_form_is_withdrawn_when_its_question_was_answered_elsewhere(tmp_path: Path) -> None:
    answered: Params = {}
    with serving(tmp_path / "s", asking(answered)), session(tmp_path / "s") as s:
        s.initialize(elicitation={})
        number = s.begin("delegate", prompt="x")
        asked = s.until("elicitation/create")
        answered["choice"] = "no"
        assert s.until("notifications/cancelled")["params"]["requestId"] == asked["id"]
        assert s.answer_to(number)["result"]["structuredContent"]["text"] == "the answer"


def test_a_question_that_is_declined_stays_open(tmp_path: Path) -> None:
    answered: Params = {}
    with serving(tmp_path / "s", asking(answered)), session(tmp_path / "s") as s:
        s.initialize(elicitation={})
        number = s.begin("delegate", prompt="x")
        asked = s.until("elicitation/create")
        s.say(id=asked["id"], result={"action": "decline"})
        found = s.answer_to(number)["result"]
    assert found["structuredContent"]["state"] == "awaiting_answer"
    assert answered == {}


def test_a_client_without_forms_gets_the_choices_as_a_result(tmp_path: Path) -> None:
    with serving(tmp_path / "s", asking({})), session(tmp_path / "s") as s:
        s.initialize()
        shown = s.call("delegate", prompt="x")["structuredContent"]
    assert shown["state"] == "awaiting_answer"
    assert shown["question"]["choices"] == {"yes": "use it", "no": "stop"}
    assert "fallbackd-client answer q1 yes|no" in shown["next"]


def test_the_later_era_asks_by_a_result_and_a_second_call(tmp_path: Path) -> None:
    meta = {**STATELESS, "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}}
    answered: Params = {}
    with serving(tmp_path / "s", asking(answered)) as daemon, session(tmp_path / "s") as s:
        found = s.call("delegate", meta, prompt="x")
        assert found["resultType"] == "input_required"
        # Its user may think for longer than a call without a caller is kept.
        assert daemon.methods() == ["delegate", "delegation.keep"]
        (name,) = found["inputRequests"]
        assert found["inputRequests"][name]["method"] == "elicitation/create"
        params = {"name": "delegate", "arguments": {"prompt": "x"}, "_meta": meta}
        state = found["requestState"]
        for response in (
            {"action": "cancel"},
            {"action": "accept", "content": {"choice": "all"}},
            {"action": "accept", "content": 3},
        ):
            again = {**params, "requestState": state, "inputResponses": {name: response}}
            shown = s.request("tools/call", again)["result"]
            assert shown["resultType"] == "complete"
            assert shown["structuredContent"]["state"] == "awaiting_answer"
        assert answered == {}
        accepted = {"action": "accept", "content": {"choice": "no"}}
        again = {**params, "requestState": state, "inputResponses": {name: accepted}}
        shown = s.request("tools/call", again)["result"]
        assert shown["structuredContent"]["text"] == "the answer"
        assert answered["choice"] == "no"
        assert daemon.methods().count("delegate") == 1
