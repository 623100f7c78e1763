"""A choice that only a person may make, from the socket and the command line, over a restart."""

from pathlib import Path

import anyio
import pytest
from tests.support.agents import THROTTLED, backend_script, ok
from tests.support.command import run_client
from tests.support.daemon import HANG_S, in_process, running
from tests.support.wire import next_events

from fallbackd_client.errors import RpcError


def court(bin_dir: Path) -> str:
    """A writer, and a judge whose only healthy candidate is of the writer's family."""
    return (
        backend_script(bin_dir, "writer", ok("a text"), more='family = "claude"')
        + backend_script(bin_dir, "other", THROTTLED, more='family = "gpt"')
        + backend_script(bin_dir, "same", ok("a verdict"), more='family = "claude"')
        + '[roles.build]\nkind = "creative"\nchain = ["writer"]\n'
        + '[roles.judge]\nkind = "adversarial"\nchain = ["other", "same"]\n'
        + 'must_differ_from = ["author"]\n'
    )


async def test_a_judge_of_the_author_s_family_is_a_question_that_a_person_answers(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, court(tmp_path / "bin")) as daemon:
        call = daemon.client.call
        written = await call(
            "delegate", {"prompt": "x", "role": "build", "session": "s", "wait": "finished"}
        )
        assert written["text"] == "a text"
        asked = await run_client(
            daemon.socket, "--json", "delegate", "x", "--role", "judge", "--session", "s"
        )
        assert asked.code == 75
        found = asked.json
        assert (found["state"], found["served_by"]) == ("awaiting_answer", None)
        assert [one["backend"] for one in found["attempts"]] == ["other"]
        name, question = found["delegation"], found["question"]["question"]
        assert found["question"]["kind"] == "must_differ"

        await daemon.kill()
        await daemon.start()
        listed = (await call("question.list"))["questions"]
        assert [one["question"] for one in listed] == [question]
        status = await call("status")
        assert [one["question"] for one in status["questions"]] == [question]
        assert status["delegations"]["awaiting_answer"] == 1
        shown = await run_client(daemon.socket, "questions")
        assert f"fallbackd-client answer {question} CHOICE" in shown.out
        again = await call("delegation.wait", {"delegation": name})
        assert again["state"] == "awaiting_answer"

        since = (await call("events.subscribe", {}))["seq"]
        answered = await run_client(
            daemon.socket, "answer", question, "use:same", "--note", "release today"
        )
        assert answered.code == 0, answered.err
        assert answered.out.startswith(f"{question}: use:same by user ")
        ended = await call("delegation.wait", {"delegation": name})
        wanted = ["question.answered", "delegation.ended"]
        told = await next_events(daemon.socket, 2, since=since, kinds=wanted)
        assert [one["kind"] for one in told] == wanted
        assert (ended["state"], ended["served_by"], ended["text"]) == (
            "succeeded", "same", "a verdict")  # fmt: skip
        record = ended["question"]
        assert (record["choice"], record["note"]) == ("use:same", "release today")
        assert record["answered_by"]["pid"] is not None
        second = await run_client(daemon.socket, "answer", question, "stop")
        assert second.code == 75
        assert "answered before" in second.err
        story = await call("explain", {"delegation": name})
        assert [one["choice"] for one in story["questions"]] == ["use:same"]
        assert any("asks" in one["text"] for one in story["decisions"])
        assert (await call("question.list"))["questions"] == []
        closed = (await call("question.list", {"closed": True, "session": "s"}))["questions"]
        assert [one["question"] for one in closed] == [question]


async def test_whoever_waits_is_told_of_the_question_and_may_wait_for_the_end_again(
    tmp_path: Path,
) -> None:
    bin_dir = tmp_path / "bin"
    config = (
        backend_script(bin_dir, "out", "exit 78")
        + backend_script(bin_dir, "free", ok("done"))
        + '[roles.judge]\nkind = "adversarial"\nchain = ["out", "free"]\n'
    )
    async with in_process(tmp_path, config) as daemon:
        call = daemon.client.call
        with anyio.fail_after(HANG_S):
            found = await call("delegate", {"prompt": "x", "role": "judge", "wait": "finished"})
            assert found["state"] == "awaiting_answer"
            question = found["question"]["question"]
            await call("question.answer", {"question": question, "choice": "use:free"})
            ended = await call("delegation.wait", {"delegation": found["delegation"]})
        assert ended["text"] == "done"
        for params, code in (
            ({"question": question, "choice": "stop"}, -32002),
            ({"question": "d1.q1", "choice": "stop"}, -32001),
            ({"question": "no question", "choice": "stop"}, -32001),
        ):
            with pytest.raises(RpcError) as error:
                await call("question.answer", params)
            assert error.value.code == code


async def test_open_questions_do_not_keep_the_daemon_from_ending(tmp_path: Path) -> None:
    async with running(tmp_path, court(tmp_path / "bin")) as daemon:
        found = await daemon.client.call(
            "delegate", {"prompt": "x", "role": "judge", "wait": "finished"}
        )
        assert found["state"] == "awaiting_answer"
        assert await daemon.stop() == 0
        await daemon.start()
        listed = (await daemon.client.call("question.list"))["questions"]
        assert [one["delegation"] for one in listed] == [found["delegation"]]


async def test_a_plan_that_is_used_up_makes_no_metered_call_without_consent(
    tmp_path: Path,
) -> None:
    bin_dir = tmp_path / "bin"
    paid = 'touch "$HOME/paid"\n' + ok("paid")
    config = (
        backend_script(bin_dir, "plan", THROTTLED, more='cost = "subscription"')
        + backend_script(bin_dir, "paid", paid, more='cost = "metered"')
        + '[chains]\nplan = ["paid"]\n'
    )
    async with in_process(tmp_path, config) as daemon:
        asked = {"prompt": "x", "backend": "plan", "wait": "finished"}
        found = await daemon.client.call("delegate", asked)
        assert found["state"] == "refused"
        assert found["retry_at"] is not None
        assert "allow_metered" in found["message"]
        assert [one["verdict"] for one in found["candidates"]] == ["tried", "consent"]
        assert not (tmp_path / "home" / "paid").exists()
        found = await daemon.client.call("delegate", {**asked, "allow_metered": True})
        assert (found["served_by"], found["text"]) == ("paid", "paid")
        rows = (await daemon.client.call("usage", {"backend": "paid"}))["usage"]
        assert {one["cost"] for one in rows} == {"metered"}
        assert {one["period"] for one in rows} == {"hour", "day", "week", "total"}
        with pytest.raises(RpcError) as error:
            await daemon.client.call("delegate", {**asked, "differs_from": ["nobody"]})
        assert error.value.code == -32602


async def test_work_handed_back_tells_a_script_to_do_it_itself(tmp_path: Path) -> None:
    config = (
        backend_script(tmp_path / "bin", "primary", THROTTLED)
        + '[roles.r]\nchain = ["primary", { backend = "in-session", tier = "in_session", '
        + 'model = "opus", effort = "high" }]\n'
    )
    async with in_process(tmp_path, config) as daemon:
        ran = await run_client(daemon.socket, "--json", "delegate", "x", "--role", "r")
        assert ran.code == 75
        found = ran.json
        assert found["handed_back"] == {"model": "opus", "effort": "high"}
        assert (found["tier_served"], found["served_by"]) == ("in_session", None)
        assert found["tiers_attempted"] == ["primary", "in_session"]
