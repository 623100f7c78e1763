"""Methods over a real engine: what is asked of it comes back in the shape that was promised."""

from pathlib import Path
from typing import Any

import pytest
from tests.support.agents import HANGING, THROTTLED, backend_script, chain, ok
from tests.support.daemon import InProcess, in_process
from tests.support.provider import provider
from tests.support.provider_frames import INPUT_TOKENS, OUTPUT_TOKENS

from fallbackd.core.ids import BackendId
from fallbackd.core.protocol import Usage
from fallbackd_client.errors import RpcError


async def refused(daemon: InProcess, method: str, **params: Any) -> int:
    with pytest.raises(RpcError) as error:
        await daemon.client.call(method, params)
    return error.value.code


def two(tmp_path: Path) -> str:
    first = backend_script(tmp_path / "bin", "first", THROTTLED, more='quota = "plan2"')
    return first + backend_script(tmp_path / "bin", "second", ok("done")) + chain("first", "second")


async def test_usage_counts_attempts_by_how_they_ended(tmp_path: Path) -> None:
    async with in_process(tmp_path, two(tmp_path)) as daemon:
        call = daemon.client.call
        params = {"prompt": "x", "backend": "first", "session": "s", "wait": "finished"}
        assert (await call("delegate", params))["served_by"] == "second"
        assert (await call("delegate", {**params, "session": "t"}))["served_by"] == "second"
        rows = {
            (one["backend"], one["period"]): (one["attempts"], one["successes"], one["failures"])
            for one in (await call("usage"))["usage"]
        }
        periods = ("hour", "day", "week", "total")
        assert rows == {
            **{("first", period): (1, 0, 1) for period in periods},
            **{("second", period): (2, 2, 0) for period in periods},
        }
        of_session = [
            (one["backend"], one["attempts"], one["successes"], one["failures"])
            for one in (await call("usage", {"session": "s"}))["usage"]
        ]
        assert sorted(of_session) == [("first", 1, 0, 1), ("second", 1, 1, 0)]
        status = await call("status", {"session": "s", "verbose": True})
        assert len(status["usage"]) == 2


async def test_the_tokens_of_the_hour_are_those_that_were_used_in_it(tmp_path: Path) -> None:
    async with provider() as p:
        text = (
            f'[backends.api]\nkind = "openai-http"\nbase_url = "{p.url("api")}/v1"\nmodel = "m"\n'
        )
        async with in_process(tmp_path, text) as daemon:
            call = daemon.client.call
            params = {"prompt": "x", "backend": "api", "session": "s", "wait": "finished"}
            assert (await call("delegate", params))["state"] == "succeeded"
            rows = {one["period"]: one for one in (await call("usage"))["usage"]}
            for period in ("hour", "day", "total"):
                used = rows[period]["input_tokens"], rows[period]["output_tokens"]
                assert used == (INPUT_TOKENS, OUTPUT_TOKENS)
            asked = {"session": "s", "since_at": 1.0}
            [warning] = (await call("usage", asked))["warnings"]
            assert warning.startswith("since_at has no effect")


@pytest.mark.parametrize(
    ("params", "words"),
    [({}, '[chains] "*" ='), ({"chain": ["off"]}, "says what to configure")],
)
async def test_a_refusal_without_a_time_says_what_to_do(
    tmp_path: Path, params: dict[str, Any], words: str
) -> None:
    off = '[backends.off]\nkind = "generic-cli"\ncommand = ["true"]\nenabled = false\n'
    off += '[chains]\n"*" = []\n'
    async with in_process(tmp_path, off) as daemon:
        with pytest.raises(RpcError) as refused:
            await daemon.client.call("resolve", params)
        assert words in str(refused.value)
        assert "Try again at" not in str(refused.value)


async def test_usage_of_one_backend_and_of_one_that_nobody_knows(tmp_path: Path) -> None:
    async with in_process(tmp_path, two(tmp_path)) as daemon:
        assert await daemon.client.call("usage", {"backend": "first"}) == {
            "usage": [],
            "warnings": [],
        }
        assert await refused(daemon, "usage", backend="nobody") == -32001
        assert await refused(daemon, "usage", session="nobody") == -32001


@pytest.mark.parametrize("scope", ["quota:plan2", "backend:first", "model:first/any"])
async def test_a_configured_scope_without_a_record_is_healthy(tmp_path: Path, scope: str) -> None:
    async with in_process(tmp_path, two(tmp_path)) as daemon:
        for action in ("get", "resume"):
            found = await daemon.client.call("health", {"action": action, "target": scope})
            ((_, entry),) = found["health"].items()
            assert (entry["state"], entry["until_at"]) == ("healthy", None)
        for action in ("get", "resume"):
            assert await refused(daemon, "health", action=action, target="quota:other") == -32001


async def test_a_cleared_backend_without_its_program_is_named_nowhere(tmp_path: Path) -> None:
    gone = '[backends.gone]\nkind = "generic-cli"\ncommand = ["/nowhere/agent"]\n'
    there = backend_script(tmp_path / "bin", "there", ok("done"))
    async with in_process(tmp_path, gone + there + chain("gone", "there")) as daemon:
        call = daemon.client.call
        assert (await call("health", {"action": "clear", "target": "gone"}))["cleared"] == ["gone"]
        found = (await call("health"))["health"]["gone"]
        assert (found["state"], found["reason"]) == ("broken", "not_installed")
        assert (await call("resolve", {"backend": "gone"}))["backend"] == "there"


async def test_a_program_that_goes_away_is_seen_by_resolve_and_suggest(tmp_path: Path) -> None:
    config = backend_script(tmp_path / "bin", "first", ok("a"), more="suggestible = true")
    config += backend_script(tmp_path / "bin", "second", ok("b"), more="suggestible = true")
    async with in_process(tmp_path, config + chain("first", "second")) as daemon:
        call = daemon.client.call
        assert (await call("resolve", {"backend": "first"}))["backend"] == "first"
        (tmp_path / "bin" / "first").unlink()
        assert (await call("resolve", {"backend": "first"}))["backend"] == "second"
        (tmp_path / "bin" / "second").unlink()
        found = await call("suggest", {"goal": "g"})
        assert found["suggestion"] not in ("first", "second")
        assert {"first", "second"} <= set(found["unhealthy"])


async def test_an_attempt_is_named_by_its_number_or_its_id(tmp_path: Path) -> None:
    async with in_process(tmp_path, two(tmp_path)) as daemon:
        call = daemon.client.call
        done = await call("delegate", {"prompt": "x", "backend": "first", "wait": "finished"})
        name = done["delegation"]
        for attempt in (2, "2", f"{name}.2"):
            part = await call("delegation.log", {"delegation": name, "attempt": attempt})
            assert (part["attempt"], part["text"]) == (f"{name}.2", "done\n")
        part = await call("delegation.log", {"delegation": name, "max_bytes": 3})
        assert (part["text"], part["next_offset"]) == ("don", 3)


async def test_the_end_of_a_session_that_nobody_knows_is_an_error(tmp_path: Path) -> None:
    async with in_process(tmp_path, two(tmp_path)) as daemon:
        params = {"prompt": "x", "backend": "second", "session": "s", "wait": "finished"}
        await daemon.client.call("delegate", params)
        assert (await daemon.client.call("session.end", {"session": "s"}))["ended"]
        assert await refused(daemon, "session.end", session="s") == -32001


async def test_decisions_say_the_attempt_what_was_kept_and_what_followed(tmp_path: Path) -> None:
    async with in_process(tmp_path, two(tmp_path)) as daemon:
        call = daemon.client.call
        done = await call("delegate", {"prompt": "x", "backend": "first", "wait": "finished"})
        name = done["delegation"]
        steps = (await call("explain", {"delegation": name}))["decisions"]
        assert {one["attempt"] for one in steps} >= {f"{name}.1", f"{name}.2"}
        effects = [each for one in steps for each in one["effects"]]
        assert f"start {name}.1 on first" in effects
        assert f"start {name}.2 on second" in effects
        changes = [each for one in steps for each in one["changes"]]
        assert any("is marked rate_limited" in each for each in changes)
        assert f"{name} is succeeded, on second" in changes


async def test_what_a_call_of_the_gateway_used_is_listed_and_explained(tmp_path: Path) -> None:
    async with in_process(tmp_path, two(tmp_path)) as daemon:
        record = daemon.engine.exchanges.begin("1", api="messages", asked="team", at=1.0)
        used = Usage(input_tokens=12, output_tokens=5)
        record.answered(BackendId("first"), "m", used, at=2.0)
        daemon.engine.exchanges.end(record, "succeeded", at=3.0)
        call = daemon.client.call
        found = await call("exchange.list")
        (listed,) = found["exchanges"]
        assert found["known"] == 1
        told = await call("explain", {"delegation": record.exchange})
        for shown in (listed, told):
            assert shown["served_by"] == "first"
            assert (shown["usage"]["input_tokens"], shown["usage"]["output_tokens"]) == (12, 5)
        assert [one["event"] for one in told["decisions"]] == ["Answered"]


async def test_more_gateway_calls_are_known_than_are_listed(tmp_path: Path) -> None:
    async with in_process(tmp_path, two(tmp_path)) as daemon:
        for name in ("1", "2", "3"):
            daemon.engine.exchanges.begin(name, api="messages", asked="team", at=1.0)
        found = await daemon.client.call("exchange.list", {"limit": 1})
        assert (len(found["exchanges"]), found["known"]) == (1, 3)


async def test_a_gateway_call_that_is_not_known_is_said_to_be_one(tmp_path: Path) -> None:
    async with in_process(tmp_path, two(tmp_path)) as daemon:
        with pytest.raises(RpcError, match="no gateway call 'ex-1' is known") as error:
            await daemon.client.call("explain", {"delegation": "ex-1"})
        assert error.value.code == -32001
        assert "fallbackd-client gateway list" in str(error.value)


async def test_what_a_delegation_used_is_explained_as_it_is_shown(tmp_path: Path) -> None:
    async with provider() as p:
        text = (
            f'[backends.api]\nkind = "openai-http"\nbase_url = "{p.url("api")}/v1"\nmodel = "m"\n'
        )
        async with in_process(tmp_path, text) as daemon:
            call = daemon.client.call
            done = await call("delegate", {"prompt": "x", "backend": "api", "wait": "finished"})
            told = await call("explain", {"delegation": done["delegation"]})
            assert told["usage"] == done["usage"]
            assert told["usage"]["input_tokens"] == INPUT_TOKENS


def held(tmp_path: Path) -> str:
    return backend_script(tmp_path / "bin", "held", HANGING)


async def test_work_is_stopped_by_the_id_of_the_request_that_began_it(tmp_path: Path) -> None:
    async with in_process(tmp_path, held(tmp_path)) as daemon:
        call = daemon.client.call
        params = {"prompt": "x", "backend": "held", "wait": "accepted", "request_id": "r1"}
        begun = await call("delegate", params)
        stopped = await call("delegation.cancel", {"request_id": "r1"})
        assert (stopped["delegation"], stopped["state"]) == (begun["delegation"], "cancelled")
        again = await call("delegate", params)
        assert (again["delegation"], again["state"]) == (begun["delegation"], "cancelled")


async def test_a_request_that_was_cancelled_before_it_came_begins_nothing(tmp_path: Path) -> None:
    async with in_process(tmp_path, held(tmp_path)) as daemon:
        call = daemon.client.call
        with pytest.raises(RpcError, match="nothing is begun") as unknown:
            await call("delegation.cancel", {"request_id": "r1"})
        assert unknown.value.kind == "unknown"
        params = {"prompt": "x", "backend": "held", "wait": "accepted"}
        with pytest.raises(RpcError, match="send it with another id") as withdrawn:
            await call("delegate", {**params, "request_id": "r1"})
        assert withdrawn.value.kind == "withdrawn"
        assert (await call("delegation.list"))["delegations"] == []
        other = await call("delegate", {**params, "request_id": "r2"})
        assert (await call("delegation.cancel", {"request_id": "r2"}))["state"] == "cancelled"
        assert other["state"] != "cancelled"


async def test_a_session_is_stopped_with_what_waits_in_it(tmp_path: Path) -> None:
    async with in_process(tmp_path, held(tmp_path)) as daemon:
        call = daemon.client.call
        params = {"prompt": "x", "backend": "held", "wait": "accepted", "session": "s"}
        first, *rest = [await call("delegate", params) for _ in range(3)]
        beside = await call("delegate", {**params, "session": "t"})
        stopped = await call("delegation.cancel", {"session": "s"})
        assert (stopped["delegation"], stopped["state"]) == (first["delegation"], "cancelled")
        for one in rest:
            found = await call("delegation.get", {"delegation": one["delegation"]})
            assert (found["state"], found["attempts"]) == ("cancelled", [])
        found = await call("delegation.get", {"delegation": beside["delegation"]})
        assert (found["state"], found["prompt"], found.get("cwd")) == ("running", "x", None)
        assert (await call("delegation.cancel", {"session": "s"}))["state"] == "cancelled"
        await call("delegation.cancel", {"session": "t"})
        assert await refused(daemon, "delegation.cancel", session="other") == -32001


@pytest.mark.parametrize("named", [{}, {"session": "s", "request_id": "r"}])
async def test_what_is_cancelled_is_named_in_one_way(tmp_path: Path, named: dict[str, str]) -> None:
    async with in_process(tmp_path, held(tmp_path)) as daemon:
        assert await refused(daemon, "delegation.cancel", **named) == -32602


async def test_a_session_keeps_the_chain_that_its_first_prompt_had(tmp_path: Path) -> None:
    """Nothing was named, and no agent is installed but one of the person's own."""
    own = backend_script(tmp_path / "bin", "own", ok("done"))
    async with in_process(tmp_path, own, env={"PATH": "/usr/bin:/bin"}) as daemon:
        call = daemon.client.call
        params = {"prompt": "x", "session": "s", "wait": "finished"}
        one = await call("delegate", params)
        two = await call("delegate", {**params, "prompt": "y"})
        reply = await call("delegation.reply", {"delegation": one["delegation"], "prompt": "z"})
        three = await call("delegation.wait", {"delegation": reply["delegation"]})
        for each in (one, two, three):
            assert (each["state"], each["served_by"]) == ("succeeded", "own"), each["message"]
        found = await call("resolve", {"session": "s"})
        assert found["backend"] == "own"


async def test_a_session_keeps_a_chain_that_its_first_prompt_named(tmp_path: Path) -> None:
    bin_dir = tmp_path / "bin"
    config = backend_script(bin_dir, "limited", THROTTLED) + backend_script(bin_dir, "b", ok("b"))
    config += backend_script(bin_dir, "c", ok("c")) + chain("limited", "c")
    async with in_process(tmp_path, config) as daemon:
        call = daemon.client.call
        params = {"prompt": "x", "session": "s", "wait": "finished"}
        one = await call("delegate", {**params, "chain": ["limited", "b"]})
        two = await call("delegate", {**params, "prompt": "y"})
        assert (one["served_by"], two["served_by"]) == ("b", "b")
        three = await call("delegate", {**params, "prompt": "z", "backend": "limited"})
        four = await call("delegate", {**params, "prompt": "z2"})
        assert (three["served_by"], four["served_by"]) == ("c", "c")
