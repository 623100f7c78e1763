"""Sessions of an opencode server: what is done at the server about a turn that fails."""

from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support import wires
from tests.support.opencode import DIRECTORY
from tests.support.playbook import policy_of
from tests.support.watching import Watching, watching
from tests.support.wires import each_wire, only_version_1

from fallbackd.core.policy import Policy
from fallbackd.fronts.opencode.convert import At
from fallbackd.fronts.opencode.replay import Replay
from fallbackd.ports.opencode import Called

__all__ = ["each_wire"]
pytestmark = pytest.mark.usefixtures("each_wire")

SESSION = "ses_1"
FIRST = "msg_1f9b96055001aaaaaaaaaaaaaa"
SECOND = "msg_1f9b96056001bbbbbbbbbbbbbb"
LATER = "msg_2f9b96056001cccccccccccccc"


def policy(**defaults: Any) -> Policy:
    return policy_of(roles={"build": ["b/m", "c/m"]}, **defaults)


async def throttled(w: Watching) -> None:
    w.server.begins(SESSION, FIRST, "a/m")
    w.server.retries(SESSION, "Too many requests")
    await w.rest()


def texts(w: Watching) -> list[str]:
    return ["".join(part.get("text", "") for part in one["parts"]) for one in w.server.prompts]


async def test_the_message_is_sent_again_under_an_id_that_sorts_behind_all_others(
    tmp_path: Path,
) -> None:
    async with watching(tmp_path, policy()) as w:
        await throttled(w)
        (prompt,) = w.server.prompts
        assert prompt["messageID"] > FIRST
        assert prompt["messageID"][:16] == "msg_1f9b96055002"
        assert [path.rpartition("/")[2] for _, path, _ in w.server.calls] == [
            "abort",
            "revert",
            "prompt_async",
        ]


async def test_messages_that_wait_behind_the_failed_one_are_sent_again_too(
    tmp_path: Path,
) -> None:
    async with watching(tmp_path, policy()) as w:
        w.server.begins(SESSION, FIRST, "a/m", parts=[{"type": "text", "text": "one"}])
        w.server.begins(
            SESSION, SECOND, "a/m", parts=[{"type": "text", "text": "two"}], is_asked=False
        )
        w.server.retries(SESSION, "Too many requests")
        await w.rest()
        assert texts(w) == ["one", "two"]
        assert w.server.prompts[0]["messageID"] < w.server.prompts[1]["messageID"]


def asked_models(w: Watching) -> list[str]:
    return ["{providerID}/{modelID}".format(**one["model"]) for one in w.server.prompts]


@only_version_1
async def test_a_message_that_waits_keeps_the_model_that_was_chosen_for_it(tmp_path: Path) -> None:
    async with watching(tmp_path, policy()) as w:
        w.server.begins(SESSION, FIRST, "a/m", parts=[{"type": "text", "text": "one"}])
        two = [{"type": "text", "text": "two"}]
        w.server.begins(SESSION, SECOND, "d/m", parts=two, is_asked=False)
        w.server.retries(SESSION, "Too many requests")
        await w.rest()
        assert asked_models(w) == ["b/m", "d/m"]
        assert texts(w) == ["one", "two"]


async def test_a_compaction_that_waits_is_asked_for_again(tmp_path: Path) -> None:
    async with watching(tmp_path, policy()) as w:
        w.server.begins(SESSION, FIRST, "a/m")
        part = {"type": "compaction", "auto": False}
        w.server.begins(SESSION, SECOND, "a/m", parts=[part], is_asked=False)
        two = [{"type": "text", "text": "two"}]
        w.server.begins(SESSION, LATER, "d/m", parts=two, is_asked=False)
        w.server.retries(SESSION, "Too many requests")
        await w.rest()
        assert models(w) == ["b/m"]
        steps = [path.rpartition("/")[2] for _, path, _ in w.server.calls]
        assert steps == ["abort", "revert", "prompt_async", "summarize", "prompt_async"]
        ids = [one["info"]["id"] for one in w.server.messages[SESSION]]
        asked = [one["messageID"] for one in w.server.prompts]
        assert asked[0] < ids[-4] < asked[1]


async def test_a_message_that_waits_behind_a_failed_compaction_is_sent_again(
    tmp_path: Path,
) -> None:
    async with watching(tmp_path, policy()) as w:
        await finished(w)
        w.server.begins_compaction(SESSION, SECOND, "a/m")
        two = [{"type": "text", "text": "two"}]
        w.server.begins(SESSION, LATER, "a/m", parts=two, is_asked=False)
        w.server.retries(SESSION, "Too many requests")
        await w.rest()
        assert models(w) == ["b/m"]
        assert (asked_models(w), texts(w)) == (["b/m"], ["two"])


@only_version_1
async def test_the_variant_and_the_format_of_a_message_survive_its_rescue(tmp_path: Path) -> None:
    async with watching(tmp_path, policy()) as w:
        format_ = {"type": "json_schema", "schema": {"type": "object"}, "retryCount": 2}
        w.server.begins(SESSION, FIRST, "a/m", format=format_, variant="high")
        w.server.retries(SESSION, "Too many requests")
        await w.rest()
        (prompt,) = w.server.prompts
        assert (prompt["variant"], prompt["format"]) == ("high", format_)
        assert prompt["model"] == {"providerID": "b", "modelID": "m"}
        assert texts(w) == ["do it"]


FORMAT = {"type": "json_schema", "schema": {"type": "object"}, "retryCount": 2}


@only_version_1
async def test_a_message_that_is_not_listed_for_its_format_moves_as_its_events_have_shown_it(
    tmp_path: Path,
) -> None:
    async with watching(tmp_path, policy()) as w:
        await finished(w)
        w.server.begins(SESSION, SECOND, "a/m", format=FORMAT)
        w.server.retries(SESSION, "Too many requests")
        await w.rest()
        assert asked_models(w) == ["b/m"]
        two = [{"type": "text", "text": "two"}]
        w.server.begins(SESSION, LATER, "b/m", parts=two, is_asked=False)
        w.server.retries(SESSION, "Too many requests")
        await w.rest()
        assert texts(w) == ["do it", "do it", "two"]
        assert [one.get("format") for one in w.server.prompts] == [FORMAT, FORMAT, None]


@only_version_1
async def test_what_a_tool_may_have_written_behind_a_format_is_not_taken_back(
    tmp_path: Path,
) -> None:
    async with watching(tmp_path, policy()) as w:
        w.server.begins(SESSION, FIRST, "a/m", format=FORMAT)
        w.server.uses_tool(SESSION, "bash")
        w.server.retries(SESSION, "Too many requests")
        await w.rest()
        assert w.server.count("/revert") == 0
        assert texts(w)[0].startswith("Continue the task")


@only_version_1
async def test_a_program_that_waits_for_a_message_with_a_format_keeps_its_turn(
    tmp_path: Path,
) -> None:
    async with watching(tmp_path, policy()) as w:
        w.whose.awaits = True
        w.server.begins(SESSION, FIRST, "a/m", format=FORMAT)
        w.server.retries(SESSION, "Too many requests")
        await w.rest()
        assert w.server.calls == []


async def test_what_a_tool_may_have_written_is_not_taken_back(tmp_path: Path) -> None:
    async with watching(tmp_path, policy()) as w:
        w.server.begins(SESSION, FIRST, "a/m")
        w.server.uses_tool(SESSION, "bash")
        w.server.retries(SESSION, "Too many requests")
        await w.rest()
        assert w.server.count("/revert") == 0
        (text,) = texts(w)
        assert text.startswith("Continue the task above")


async def test_a_turn_that_only_read_is_taken_back(tmp_path: Path) -> None:
    async with watching(tmp_path, policy()) as w:
        w.server.begins(SESSION, FIRST, "a/m")
        w.server.uses_tool(SESSION, "grep")
        w.server.retries(SESSION, "Too many requests")
        await w.rest()
        assert w.server.count("/revert") == 1
        assert texts(w) == ["do it"]


async def test_with_on_partial_fail_a_turn_that_wrote_is_left_as_it_is(tmp_path: Path) -> None:
    async with watching(tmp_path, policy(on_partial="fail")) as w:
        w.server.begins(SESSION, FIRST, "a/m")
        w.server.uses_tool(SESSION, "write")
        w.server.retries(SESSION, "Too many requests")
        await w.rest()
        assert w.server.calls == []
        (text,) = w.told("failed")
        assert "undo the message" in text


async def test_a_subagent_is_left_to_its_parent_but_its_model_is_marked(tmp_path: Path) -> None:
    async with watching(tmp_path, policy()) as w:
        w.server.open("ses_child", parent=SESSION)
        w.server.begins("ses_child", FIRST, "a/m")
        w.server.retries("ses_child", "Too many requests")
        await w.rest()
        assert w.server.calls == []
        assert w.engine.snapshot().health["backend:a/m"].outage is not None  # type: ignore[index]


async def subagent(w: Watching) -> None:
    w.server.open("ses_child", parent=SESSION)
    w.server.begins("ses_child", FIRST, "a/m")
    w.server.statuses[SESSION] = {"type": "busy"}
    await w.rest()


@pytest.mark.parametrize("step", ["/abort", "/revert", "/prompt_async"])
async def test_a_user_who_stops_the_parent_ends_the_move_of_its_subagent(
    tmp_path: Path, step: str
) -> None:
    async with watching(tmp_path, policy()) as w:
        w.server.is_inside = True
        await subagent(w)

        def stop(path: str) -> None:
            if path.endswith(step):
                w.server.statuses.pop(SESSION, None)

        w.server.on_call = stop
        w.server.retries("ses_child", "Too many requests")
        await w.rest()
        assert "ses_child" not in w.server.statuses
        if step != "/prompt_async":
            assert w.server.prompts == []


async def test_the_stop_of_a_parent_is_found_in_the_log_while_it_still_ends(
    tmp_path: Path,
) -> None:
    async with watching(tmp_path, policy()) as w:
        w.server.is_inside, w.whose.stopped = True, 1
        await subagent(w)
        w.server.retries("ses_child", "Too many requests")
        await w.rest()
        assert w.server.prompts == []


def task_of(w: Watching, child: str) -> None:
    """The part of the parent that waits for a subagent; it fails as soon as that is stopped."""
    w.server.begins(SESSION, FIRST, "a/m")
    last = w.server.messages[SESSION][-1]
    state = {"status": "error", "error": "Task cancelled", "metadata": {"sessionId": child}}
    part = {"id": "prt_1", "messageID": last["info"]["id"], "type": "tool", "tool": "task"}
    last["parts"].append({**part, "state": state})


@only_version_1
async def test_a_subagent_that_would_wait_for_an_hour_is_stopped_and_that_is_told(
    tmp_path: Path,
) -> None:
    async with watching(tmp_path, policy()) as w:
        task_of(w, "ses_child")
        await subagent(w)
        w.server.retries("ses_child", "Too many requests", next=(w.clock.now() + 3600) * 1000)
        await w.rest()
        assert w.server.calls[0][1] == "/session/ses_child/abort"
        (text,) = w.told("failed")
        assert "in a subagent, which is stopped" in text
        message = (await w.session("ses_child")).message
        assert message is not None
        assert not message.running
        (part,) = w.server.messages[SESSION][-1]["parts"]
        error = part["state"]["error"]
        assert error == "Subagent failed: m [a] failed: rate_limit (Too many requests)"


async def test_the_retries_of_a_subagent_are_borne_until_patience_is_over(tmp_path: Path) -> None:
    async with watching(tmp_path, policy()) as w:
        task_of(w, "ses_child")
        await subagent(w)
        w.server.retries("ses_child", "Too many requests")
        await w.rest()
        w.clock.advance(4)
        w.server.retries("ses_child", "Too many requests", attempt=2)
        await w.rest()
        assert (w.server.calls, w.notices) == ([], [])
        w.clock.advance(2)
        w.server.retries("ses_child", "Too many requests", attempt=3)
        await w.rest()
        assert w.server.calls[0][1] == "/session/ses_child/abort"
        assert len(w.told("failed")) == 1


async def test_a_subagent_inside_of_opencode_is_moved_before_its_first_effect(
    tmp_path: Path,
) -> None:
    async with watching(tmp_path, policy()) as w:
        w.server.is_inside = True
        await subagent(w)
        w.server.retries("ses_child", "Too many requests")
        await w.rest()
        assert [path for _, path, _ in w.server.calls] == [
            "/fallbackd/child",
            "/session/ses_child/abort",
            "/session/ses_child/revert",
            "/session/ses_child/prompt_async",
        ]
        assert w.server.calls[0][2] == {"session": "ses_child", "state": "moving", "text": ""}
        assert (await w.session("ses_child")).current == "b/m"


async def test_a_subagent_that_has_written_is_not_moved_and_its_parent_is_given_the_reason(
    tmp_path: Path,
) -> None:
    async with watching(tmp_path, policy()) as w:
        w.server.is_inside = True
        await subagent(w)
        w.server.uses_tool("ses_child", "bash")
        w.server.retries("ses_child", "Too many requests", next=(w.clock.now() + 3600) * 1000)
        await w.rest()
        assert w.server.prompts == []
        first = w.server.calls[0]
        assert (first[1], first[2]["state"]) == ("/fallbackd/child", "failed")
        assert first[2]["text"] == "m [a] failed: rate_limit (Too many requests)"


async def test_patience_with_a_subagent_begins_anew_with_each_of_its_steps(tmp_path: Path) -> None:
    async with watching(tmp_path, policy()) as w:
        await subagent(w)
        w.server.retries("ses_child", "Too many requests")
        await w.rest()
        w.clock.advance(600)
        w.server.asks("ses_child", FIRST, "a/m")
        w.server.retries("ses_child", "Too many requests")
        await w.rest()
        assert w.server.calls == []


async def test_a_subagent_that_has_failed_is_told_once(tmp_path: Path) -> None:
    async with watching(tmp_path, policy()) as w:
        await subagent(w)
        for _ in range(2):
            w.server.fails("ses_child", 429, "Too many requests")
            await w.rest()
        assert w.server.calls == []
        (text,) = w.told("failed")
        assert "which has ended" in text


@pytest.mark.parametrize(("knobs", "steps"), [({}, 20), ({"loop_steps": 3}, 3)])
async def test_streams_that_end_without_an_end_are_no_progress(
    tmp_path: Path, knobs: dict[str, int], steps: int
) -> None:
    async with watching(tmp_path, policy(**knobs)) as w:
        w.server.begins(SESSION, FIRST, "a/m", is_asked=False)
        for number in range(steps):
            await w.rest()
            assert w.server.prompts == [], f"stopped after {number} steps"
            w.server.asks(SESSION, FIRST, "a/m")
            info = w.server.messages[SESSION][-1]["info"]
            info |= {"finish": "unknown", "time": {"created": 1.0, "completed": 2.0}}
            w.server.event("message.updated", sessionID=SESSION, info=info)
        await w.rest()
        assert len(w.server.prompts) == 1
        assert (await w.session()).hops[-1].reason == "stalled"


async def test_a_model_that_nobody_knows_is_left_before_it_has_written_anything(
    tmp_path: Path,
) -> None:
    async with watching(tmp_path, policy()) as w:
        w.server.begins(SESSION, FIRST, "a/m", is_asked=False)
        w.server.fails(SESSION, 404, "The model `m` does not exist")
        await w.rest()
        assert len(w.server.prompts) == 1
        assert (await w.session()).hops[-1].reason == "model_not_found"


NOT_FOUND = "Model not found: nope/m. Did you mean: more?"


def not_found(w: Watching) -> None:
    error = {"name": "UnknownError", "data": {"message": NOT_FOUND}}
    w.server.event("session.error", sessionID=SESSION, error=error)


@pytest.mark.parametrize("step", ["/message", "/abort", "/revert"])
async def test_an_error_that_is_said_twice_is_not_charged_to_the_next_model(
    tmp_path: Path, step: str
) -> None:
    async with watching(tmp_path, policy()) as w:

        def say_it_again(path: str) -> None:
            if path.endswith(step) and not w.server.prompts:
                not_found(w)

        w.server.on_call = say_it_again
        w.server.begins(SESSION, FIRST, "nope/m", is_asked=False)
        not_found(w)
        await w.rest()
        assert [one["model"]["providerID"] for one in w.server.prompts] == ["b"]
        assert (await w.session()).current == "b/m"
        assert "backend:b/m" not in w.engine.snapshot().health
        assert len(w.told("fallback")) == 1


async def test_an_error_of_the_next_model_leads_on_from_its_first_instant(
    tmp_path: Path,
) -> None:
    async with watching(tmp_path, policy()) as w:
        w.server.unknown = {"b/m"}
        w.server.begins(SESSION, FIRST, "nope/m", is_asked=False)
        not_found(w)
        await w.rest()
        assert [one["model"]["providerID"] for one in w.server.prompts] == ["b", "c"]


async def test_a_retry_whose_words_are_the_providers_own_json_is_understood(
    tmp_path: Path,
) -> None:
    async with watching(tmp_path, policy()) as w:
        w.server.begins(SESSION, FIRST, "a/m")
        w.server.retries(SESSION, '{"type":"rate_limit_error","param":null}')
        await w.rest()
        assert (await w.session()).hops[-1].reason == "rate_limit"


async def test_a_wait_that_is_longer_than_the_servers_own_is_what_the_provider_stated(
    tmp_path: Path,
) -> None:
    async with watching(tmp_path, policy()) as w:
        w.server.begins(SESSION, FIRST, "a/m")
        now = w.clock.now()
        w.server.retries(SESSION, "Too many requests", next=(now + 3600) * 1000)
        await w.rest()
        outage = w.engine.snapshot().health["backend:a/m"].outage  # type: ignore[index]
        assert outage is not None
        assert outage.source == "provider"
        assert outage.until_at is not None
        assert 3590 < outage.until_at - now < 3610


async def test_a_user_who_stops_the_turn_is_not_overruled(tmp_path: Path) -> None:
    async with watching(tmp_path, policy()) as w:
        w.server.begins(SESSION, FIRST, "a/m")
        error = {"name": "MessageAbortedError", "data": {"message": "aborted"}}
        w.server.event("session.error", sessionID=SESSION, error=error)
        await w.rest()
        assert w.server.calls == []
        message = (await w.session()).message
        assert message is not None
        assert not message.running


async def test_a_turn_that_was_stopped_before_our_abort_is_the_users(tmp_path: Path) -> None:
    async with watching(tmp_path, policy()) as w:
        w.server.answers["/abort"] = Called(status=200, body=False)
        await throttled(w)
        assert w.server.prompts == []
        assert (await w.session()).rescue is None


async def test_a_session_that_is_gone_in_the_middle_is_forgotten(tmp_path: Path) -> None:
    async with watching(tmp_path, policy()) as w:

        def delete(path: str) -> None:
            if path.endswith("/revert"):
                del w.server.sessions[SESSION]

        w.server.on_call = delete
        await throttled(w)
        assert w.server.prompts == []
        assert await w.watched.session(SESSION) is None


# --- interrupted ---------------------------------------------------------------------------------


async def lost_at(w: Watching, step: str) -> None:
    """The server is gone when it is asked for a step."""

    def go_down(path: str) -> None:
        w.server.is_down = w.server.is_down or path.endswith(step)

    w.server.on_call = go_down
    await throttled(w)
    w.server.on_call = lambda _: None
    w.server.is_down = False
    w.server.calls.clear()


async def resumed(w: Watching) -> str:
    session = await w.session()
    assert session.rescue is not None
    at = At(link=w.link, session=SESSION, directory=DIRECTORY)
    end = await Replay(
        w.watched, at, w.around, session.rescue, track=w.sessions.track(SESSION)
    ).run()
    await w.rest()
    return end


async def test_a_rescue_stays_on_record_while_the_server_is_gone(tmp_path: Path) -> None:
    steps = {"/abort": "abort", "/revert": "revert", "/prompt_async": "prompt"}
    for step, on_record in steps.items():
        place = tmp_path / on_record
        place.mkdir()
        async with watching(place, policy()) as w:
            await lost_at(w, step)
            rescue = (await w.session()).rescue
            assert rescue is not None
            assert rescue.step == on_record
            assert await resumed(w) == "done"
            assert texts(w) == ["do it"]
            session = await w.session()
            assert (session.rescue, session.current, session.depth) == (None, "b/m", 1)


async def test_a_message_that_was_sent_already_is_not_sent_twice(tmp_path: Path) -> None:
    async with watching(tmp_path, policy()) as w:
        await lost_at(w, "/prompt_async")
        rescue = (await w.session()).rescue
        assert rescue is not None
        w.server.begins(SESSION, rescue.new_message, "b/m")
        assert await resumed(w) == "done"
        assert w.server.prompts == []
        assert (await w.session()).current == "b/m"


async def test_a_session_that_went_on_by_itself_is_left_alone(tmp_path: Path) -> None:
    async with watching(tmp_path, policy()) as w:
        await lost_at(w, "/prompt_async")
        w.server.begins(SESSION, LATER, "a/m")
        assert await resumed(w) == "failed"
        assert w.server.calls == []
        assert "the session went on in the meantime" in w.told("failed")[0]


async def test_what_happened_while_nobody_listened_is_caught_up_with(tmp_path: Path) -> None:
    async with watching(tmp_path, policy()) as w:
        w.server.begins(SESSION, FIRST, "a/m")
        await w.rest()
        heard, w.server.hear = w.server.hear, lambda _: None
        w.server.retries(SESSION, "Too many requests")
        w.server.hear = heard
        if isinstance(w.link, wires.SecondLink):
            await w.link.wire.heard({"type": "server.connected"})
        await w.sessions.catch_up([await w.session()])
        await w.rest()
        assert len(w.server.prompts) == 1
        w.server.hear = lambda _: None
        w.server.answers_with(SESSION)
        await w.sessions.catch_up([await w.session()])
        message = (await w.session()).message
        assert message is not None
        assert not message.running


async def test_one_session_is_rescued_while_another_one_waits_for_its_server(
    tmp_path: Path,
) -> None:
    async with watching(tmp_path, policy()) as w:
        reached, release = anyio.Event(), anyio.Event()
        answer = w.server.call

        async def slow(method: str, path: str, **more: Any) -> Any:
            if path == f"/session/{SESSION}/abort":
                reached.set()
                await release.wait()
            return await answer(method, path, **more)

        w.server.call = slow  # type: ignore[method-assign]
        w.server.begins(SESSION, FIRST, "a/m")
        w.server.retries(SESSION, "Too many requests")
        await reached.wait()
        w.server.begins("ses_2", SECOND, "c/m")
        w.server.retries("ses_2", "Too many requests")
        with anyio.fail_after(60):
            while not (known := await w.watched.session("ses_2")) or known.current != "b/m":
                await anyio.sleep(0)
        release.set()
        await w.rest()
        assert len(w.server.prompts) == 2


# --- compactions -------------------------------------------------------------------------------


async def finished(w: Watching) -> None:
    """A turn that did something which must not be done twice."""
    w.server.begins(SESSION, FIRST, "a/m", parts=[{"type": "text", "text": "deploy"}])
    w.server.uses_tool(SESSION, "bash")
    w.server.answers_with(SESSION)
    await w.rest()


def models(w: Watching) -> list[str]:
    """Of the compactions that were asked for."""
    bodies = [body for _, path, body in w.server.calls if path.endswith("/summarize")]
    return [f"{body['providerID']}/{body['modelID']}" for body in bodies]


@pytest.mark.parametrize("auto", [False, True])
async def test_a_compaction_that_fails_is_repeated_and_the_finished_turn_stays(
    tmp_path: Path, auto: bool
) -> None:
    async with watching(tmp_path, policy()) as w:
        await finished(w)
        w.server.begins_compaction(SESSION, SECOND, "a/m", auto=auto)
        w.server.retries(SESSION, "Too many requests")
        await w.rest()
        assert w.server.prompts == []
        assert [body["messageID"] for _, path, body in w.server.calls if "/revert" in path] == [
            SECOND
        ]
        assert models(w) == ["b/m"]
        if isinstance(w.link, wires.SecondLink):  # it is asked to continue by a message
            asked = [one for one in w.link.face.asked if one.startswith("POST")]
            assert asked[-1].endswith("/synthetic" if auto else "/compact")
        else:
            assert w.server.calls[-1][2]["auto"] is auto
        ids = [one["info"]["id"] for one in w.server.messages[SESSION]]
        assert FIRST in ids
        session = await w.session()
        assert (session.rescue, session.current) == (None, "b/m")


async def test_compactions_that_fail_on_each_model_end(tmp_path: Path) -> None:
    async with watching(tmp_path, policy()) as w:
        await finished(w)
        w.server.begins_compaction(SESSION, SECOND, "a/m")
        for _ in range(3):
            w.server.fails(SESSION, 400, "Your request was flagged by our usage policies")
            await w.rest()
        assert models(w) == ["b/m", "c/m"]
        assert w.server.prompts == []


async def test_an_error_that_is_of_no_turn_replays_none(tmp_path: Path) -> None:
    async with watching(tmp_path, policy()) as w:
        await finished(w)
        w.server.fails(SESSION, None, "Agent not found: nope")
        await w.rest()
        assert w.server.calls == []
        assert w.notices == []


async def test_an_error_behind_which_the_turn_goes_on_is_not_its_failure(tmp_path: Path) -> None:
    async with watching(tmp_path, policy()) as w:
        w.server.begins(SESSION, FIRST, "a/m")
        error = {"name": "UnknownError", "data": {"message": "File not found: x.png"}}
        w.server.event("session.error", sessionID=SESSION, error=error)
        await w.rest()
        assert w.server.calls == []


async def test_a_turn_that_the_user_has_stopped_does_not_fail_later(tmp_path: Path) -> None:
    async with watching(tmp_path, policy()) as w:
        w.server.begins(SESSION, FIRST, "a/m")
        w.server.is_stopped(SESSION)
        error = {"name": "UnknownError", "data": {"message": "Command not found: nope"}}
        w.server.event("session.error", sessionID=SESSION, error=error)
        await w.rest()
        assert w.server.calls == []


# --- the user ----------------------------------------------------------------------------------


@pytest.mark.parametrize("wrote", [False, True])
@pytest.mark.parametrize("step", ["/abort", "/revert", "/prompt_async"])
async def test_a_user_who_stops_the_session_ends_its_rescue(
    tmp_path: Path, step: str, wrote: bool
) -> None:
    async with watching(tmp_path, policy()) as w:
        w.server.begins(SESSION, FIRST, "a/m")
        if wrote:
            w.server.uses_tool(SESSION, "bash")

        def stop(path: str) -> None:
            if path.endswith(step):
                w.server.on_call = lambda _: None
                w.server.is_stopped(SESSION)

        w.server.on_call = stop
        w.server.retries(SESSION, "Too many requests")
        await w.rest()
        session = await w.session()
        if wrote and step == "/revert":
            return  # there is no such step
        assert session.rescue is None
        assert session.message is not None
        assert not session.message.running
        if step == "/prompt_async":  # it was on its way: its answer is stopped
            assert w.server.calls[-1][1].endswith("/abort")
        else:
            assert session.current == "a/m"
            assert w.told("fallback") == []
            assert w.server.prompts == []
            assert "revert" not in w.server.sessions[SESSION]


@pytest.mark.parametrize("wrote", [False, True])
async def test_an_abort_that_no_event_tells_of_ends_the_rescue_by_the_log(
    tmp_path: Path, wrote: bool
) -> None:
    """Of two aborts at once the server tells as of one."""
    async with watching(tmp_path, policy()) as w:
        w.whose.stopped = 0
        w.server.begins(SESSION, FIRST, "a/m")
        if wrote:
            w.server.uses_tool(SESSION, "bash")

        def stop(path: str) -> None:
            if path.endswith("/abort"):
                w.whose.stopped = 2

        w.server.on_call = stop
        w.server.retries(SESSION, "Too many requests")
        await w.rest()
        assert w.server.prompts == []
        session = await w.session()
        assert (session.rescue, session.current) == (None, "a/m")
        assert "revert" not in w.server.sessions[SESSION]


async def test_our_own_abort_in_the_log_is_not_taken_for_the_users(tmp_path: Path) -> None:
    async with watching(tmp_path, policy()) as w:
        w.whose.stopped = 1
        await throttled(w)
        assert len(w.server.prompts) == 1


async def test_an_abort_is_found_however_late_its_event_comes(tmp_path: Path) -> None:
    async with watching(tmp_path, policy()) as w:
        prompt, late = w.server._prompt, anyio.Event()

        def accepted(session: str, body: Any) -> None:
            async def then() -> None:
                await anyio.sleep(0)
                w.server.idle(session)  # what was asked for before the next model is
                prompt(session, body)
                late.set()

            tasks.start_soon(then)

        w.server._prompt = accepted  # type: ignore[method-assign]
        async with anyio.create_task_group() as tasks:
            w.server.begins(SESSION, FIRST, "a/m")
            w.server.retries(SESSION, "Too many requests")
            await late.wait()
            await w.rest()
        assert w.server.calls[-1][1].endswith("/abort")
        assert w.server.statuses == {}


async def test_a_turn_that_is_over_is_not_aborted(tmp_path: Path) -> None:
    async with watching(tmp_path, policy()) as w:
        w.server.begins(SESSION, FIRST, "a/m")
        w.server.fails(SESSION, 401, "Incorrect API key provided")
        await w.rest()
        assert w.server.count("/abort") == 0
        assert len(w.server.prompts) == 1


# --- programs that wait --------------------------------------------------------------------------


async def test_a_turn_that_a_program_waits_for_is_told_and_left_as_it_is(tmp_path: Path) -> None:
    async with watching(tmp_path, policy()) as w:
        w.whose.awaits = True
        w.server.begins(SESSION, FIRST, "a/m")
        w.server.retries(SESSION, "Too many requests")
        await w.rest()
        w.server.retries(SESSION, "Too many requests", attempt=2)
        await w.rest()
        assert w.server.calls == []
        (text,) = w.told("failed")
        assert "a program waits for this turn: it is left to the retries of opencode" in text
        assert w.engine.snapshot().health["backend:a/m"].outage is not None  # type: ignore[index]


async def test_a_turn_whose_program_has_got_its_error_is_not_gone_on_with(tmp_path: Path) -> None:
    async with watching(tmp_path, policy()) as w:
        w.whose.awaits = True
        w.server.begins(SESSION, FIRST, "a/m")
        await w.rest()
        w.whose.awaits = False  # it has its answer
        w.server.fails(SESSION, 401, "Incorrect API key provided")
        await w.rest()
        assert w.server.calls == []


@pytest.mark.parametrize(("still", "rescues"), [(False, 1), (True, 0), (None, 0)])
async def test_a_request_that_was_answered_before_the_turn_ended_did_not_wait_for_it(
    tmp_path: Path, still: bool | None, rescues: int
) -> None:
    async with watching(tmp_path, policy()) as w:
        w.whose.awaits = True  # a second project is loaded meanwhile
        w.server.begins(SESSION, FIRST, "a/m")
        await w.rest()
        w.whose.awaits = still
        w.server.retries(SESSION, "Too many requests")
        await w.rest()
        assert len(w.server.prompts) == rescues


async def test_every_turn_of_a_command_that_ends_with_it_is_left_but_the_next_is_redirected(
    tmp_path: Path,
) -> None:
    async with watching(tmp_path, policy()) as w:
        w.server.pid, w.whose.owners = 77, {77: "program"}
        await w.around.look()
        await throttled(w)
        assert w.server.calls == []
        assert (await w.watched.redirect(w.where("ses_2"), model="a/m")).model == "b/m"


async def test_a_subagent_of_a_turn_that_a_program_waits_for_is_moved_from_inside(
    tmp_path: Path,
) -> None:
    async with watching(tmp_path, policy()) as w:
        w.whose.awaits = w.server.is_inside = True
        await subagent(w)
        w.server.retries("ses_child", "Too many requests")
        await w.rest()
        assert [one["model"]["providerID"] for one in w.server.prompts] == ["b"]


async def test_what_the_user_writes_during_a_rescue_is_not_overtaken(tmp_path: Path) -> None:
    async with watching(tmp_path, policy()) as w:

        def write(path: str) -> None:
            if path.endswith("/revert"):
                w.server.on_call = lambda _: None
                w.server.begins(SESSION, LATER, "c/m", parts=[{"type": "text", "text": "no"}])

        w.server.on_call = write
        await throttled(w)
        assert w.server.prompts == []
        assert (await w.session()).rescue is None
        assert "the session went on in the meantime" in w.told("failed")[0]


@pytest.mark.parametrize("step", ["/abort", "/revert", "/prompt_async"])
async def test_a_rescue_that_was_interrupted_for_long_is_left_to_the_user(
    tmp_path: Path, step: str
) -> None:
    async with watching(tmp_path, policy()) as w:
        await lost_at(w, step)
        w.clock.advance(61)
        assert await resumed(w) == "overtaken"
        assert w.server.calls == []
        assert (await w.session()).rescue is None
        (text,) = w.told("failed")
        assert "it was interrupted, and began 1m 1s ago" in text
