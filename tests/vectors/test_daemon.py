"""Cases that need a daemon: the command line, places, restarts, a configuration that changes."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.agents import OK, backend_script, chain, ok
from tests.support.clock import ManualClock
from tests.support.command import run_client
from tests.support.daemon import HANG_S, Daemon, in_process, running
from tests.support.provider import Provider, provider

Json = dict[str, Any]
FINISHED = {"prompt": "x", "wait": "finished"}
LIMITED = "cat >/dev/null; exit 75"
SPENT = "cat >/dev/null; echo 'error: disk quota of tenant 4711 is used up'; exit 1"
GATED = (
    'cat >/dev/null; while [ ! -e "$HOME/one" ]; do sleep 0.02; done; echo begun; '
    'while [ ! -e "$HOME/two" ]; do sleep 0.02; done; echo done'
)


# --- the command line ----------------------------------------------------------------------------


async def test_a_program_that_says_75_is_a_limit_for_the_caller_too(tmp_path: Path) -> None:
    """Case 002-501."""
    config = backend_script(tmp_path / "bin", "p", LIMITED)
    async with in_process(tmp_path, config, clock=ManualClock()) as daemon:
        ran = await run_client(
            daemon.socket, "--json", "delegate", "x", "--backend", "p", cwd=str(tmp_path)
        )
        assert ran.code == 75
        assert ran.json["state"] == "refused"
        found = (await daemon.client.call("health"))["health"]["p"]
        assert (found["state"], found["reason"]) == ("rate_limited", "rate_limit")
        assert found["until_at"] - found["since_at"] == pytest.approx(300)
        assert ran.json["retry_at"] == found["until_at"]
        assert 240 < found["seconds_remaining"] <= 300


async def test_what_a_program_prints_only_on_stdout_is_its_failure_s_evidence(
    tmp_path: Path,
) -> None:
    """Case field-745."""
    config = backend_script(tmp_path / "bin", "a", SPENT)
    async with in_process(tmp_path, config) as daemon:
        ran = await run_client(daemon.socket, "delegate", "x", "--backend", "a", cwd=str(tmp_path))
        assert ran.code != 0
        assert "tenant 4711" in ran.err
        (found,) = (await daemon.client.call("delegation.list"))["delegations"]
        assert "tenant 4711" in found["failure"]["evidence"]


async def test_callers_are_answered_when_they_asked_to_be(tmp_path: Path) -> None:
    """Case 002-517."""
    config = backend_script(tmp_path / "bin", "p", GATED)
    async with in_process(tmp_path, config) as daemon:
        ask = daemon.client.call
        accepted = await ask("delegate", {"prompt": "x", "backend": "p", "wait": "accepted"})
        assert accepted["state"] in ("queued", "running")
        settled = await ask("delegate", {"prompt": "x", "backend": "p", "settle_s": 0.3})
        assert settled["state"] == "running"
        (tmp_path / "home" / "one").touch()
        (tmp_path / "home" / "two").touch()
        finished = await ask("delegate", {**FINISHED, "backend": "p"})
        assert (finished["state"], finished["text"]) == ("succeeded", "begun\ndone")


async def test_a_pause_and_a_new_order_are_seen_from_the_command_line(tmp_path: Path) -> None:
    """Case field-738."""
    scripts = "".join(
        backend_script(tmp_path / "bin", name, ok(name)) for name in ("first", "a", "b")
    )
    async with running(tmp_path, scripts + chain("first", "a", "b")) as daemon:

        async def told(*arguments: str) -> Any:
            ran = await run_client(daemon.socket, "--json", *arguments)
            assert ran.code == 0, ran.err
            return ran.json

        async def chosen() -> str:
            found: str = (await told("resolve", "first"))["backend"]
            return found

        await told("health", "mark", "first", "--reason", "rate_limit", "--ttl", "1800")
        assert await chosen() == "a"
        daemon.config_path.write_text(scripts + chain("first", "b", "a"))
        with anyio.fail_after(HANG_S):
            while await chosen() != "b":
                await anyio.sleep(0.1)
        await told("health", "pause", "b", "--note", "by hand")
        assert await chosen() == "a"
        listed = (await told("health", "list"))["health"]["b"]
        assert (listed["state"], listed["note"]) == ("paused", "by hand")
        await told("health", "resume", "b")
        assert await chosen() == "b"
        assert (await told("config", "show"))["config"]["chains"]["first"] == ["b", "a"]


# --- work inside of work -------------------------------------------------------------------------

INSIDE = """
cat >/dev/null
mkdir -p {next}
{python} -m fallbackd_client.cli.main --json delegate x --backend {next} --session of-{next} \
    --cwd "$PWD/{next}" > {name}.out 2>&1
echo $? > {name}.code
echo {name} is done
"""


async def test_work_is_begun_inside_of_work_to_a_depth_of_two(tmp_path: Path) -> None:
    """Case 002-516."""
    more = 'allow_env = ["PYTHONPATH", "XDG_RUNTIME_DIR"]'
    config = "".join(
        backend_script(
            tmp_path / "bin",
            name,
            INSIDE.format(name=name, next=following, python=sys.executable),
            more=more,
        )
        for name, following in (("t", "u"), ("u", "v"), ("v", "w"))
    )
    config += backend_script(tmp_path / "bin", "w", ok("w"))
    async with running(tmp_path, config) as daemon:
        env = {name: daemon.env[name] for name in ("PYTHONPATH", "XDG_RUNTIME_DIR")}
        done = await daemon.client.call(
            "delegate", {**FINISHED, "backend": "t", "cwd": str(daemon.work_dir), "env": env}
        )
        assert done["state"] == "succeeded"
        found = (await daemon.client.call("delegation.list"))["delegations"]
        by_name = {one["requested"]: one for one in found}
        t, u, v = daemon.work_dir, daemon.work_dir / "u", daemon.work_dir / "u/v"
        told = {"t": t / "t.out", "u": u / "u.out", "v": v / "v.out"}
        assert set(by_name) == {"t", "u", "v"}, {n: p.read_text() for n, p in told.items()}
        assert by_name["u"]["parent"] == done["delegation"]
        assert (t / "t.code").read_text() == "0\n"
        assert (v / "v.code").read_text() == "77\n"
        assert "nest" in told["v"].read_text()


# --- credentials and configuration ---------------------------------------------------------------


def api(p: Provider, name: str, **more: Any) -> str:
    rows = {"kind": "openai-http", "base_url": f"{p.url(name)}/v1", "model": "m", **more}
    lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in rows.items())
    return f"[backends.{name}]\n{lines}\n"


async def test_a_key_that_another_program_has_replaced_is_sent(tmp_path: Path) -> None:
    """Case 002-431."""
    token = tmp_path / "token"
    token.write_text("old-key-0001")
    token.chmod(0o600)
    async with provider() as p:
        more = f'credentials = [{{ label = "a", file = {json.dumps(str(token))} }}]\n'
        async with in_process(tmp_path, api(p, "acme") + more) as daemon:
            await daemon.client.call("delegate", {**FINISHED, "backend": "acme"})
            fresh = tmp_path / "fresh"
            fresh.write_text("new-key-0002")
            fresh.chmod(0o600)
            os.replace(fresh, token)
            before = token.stat()
            done = await daemon.client.call("delegate", {**FINISHED, "backend": "acme"})
            assert done["state"] == "succeeded"
        assert [one.credential for one in p.calls("acme")] == ["old-key-0001", "new-key-0002"]
        assert (token.stat().st_mtime_ns, token.read_text()) == (
            before.st_mtime_ns,
            "new-key-0002",
        )


async def test_a_strategy_that_nobody_knows_is_said_and_the_first_key_is_used(
    tmp_path: Path,
) -> None:
    """Of case 002-406, and case 004-698: a password in an address is nowhere to be seen."""
    environ = {"KEY_A": "key-of-a-0001", "KEY_B": "key-of-b-0002"}
    keys = '[{ label = "a", env = "KEY_A" }, { label = "b", env = "KEY_B" }]'
    async with provider() as p:
        config = api(p, "acme", credential_strategy="nonsense") + f"credentials = {keys}\n"
        config += api(p, "ep").replace("http://", "http://user:hunter2@")
        config += backend_script(tmp_path / "bin", "p0", ok("of p0")) + chain("ep", "p0")
        p.behave("ep", "503")
        async with running(tmp_path, config, env=environ) as daemon:
            ask = daemon.client.call
            status = await ask("status")
            paths = [one["path"] for one in status["daemon"]["config_warnings"]]
            assert "backends.acme.credential_strategy" in paths
            done = await ask("delegate", {**FINISHED, "backend": "acme"})
            assert done["attempts"][0]["credential"] == "a"

            spared = await ask("delegate", {**FINISHED, "backend": "ep"})
            assert spared["served_by"] == "p0"
            shown = [
                done,
                spared,
                await ask("status", {"verbose": True}),
                await ask("health"),
                await ask("explain", {"delegation": spared["delegation"]}),
                await ask("config.get"),
                await ask("config.check"),
            ]
            assert "hunter2" not in json.dumps(shown)
            await daemon.stop()
            assert "hunter2" not in daemon.log()
            assert kept_with(daemon.state_dir, "hunter2") == []


def kept_with(place: Path, words: str) -> list[Path]:
    files = [one for one in place.rglob("*") if one.is_file()]
    assert files
    return [one for one in files if words.encode() in one.read_bytes()]


# --- places and output ---------------------------------------------------------------------------


async def test_state_is_where_the_environment_says_and_nothing_is_at_home(tmp_path: Path) -> None:
    """Case 002-533."""
    state = tmp_path / "p"
    # Of a confined agent the places of its own and of its tools are made, in the home.
    body = OK.format(answer="1")
    config = backend_script(tmp_path / "bin", "a", body, more="confine = false")
    async with running(tmp_path, config, env={"XDG_STATE_HOME": str(state)}) as daemon:
        before = everything(daemon.home)
        done = await daemon.client.call(
            "delegate", {**FINISHED, "backend": "a", "cwd": str(daemon.work_dir)}
        )
        assert done["state"] == "succeeded"
        assert await daemon.stop() == 0
        assert everything(daemon.home) == before
        assert (state / "fallbackd").stat().st_mode & 0o777 == 0o700
        assert Path(done["log_path"]).is_relative_to(state / "fallbackd")


def everything(place: Path) -> set[str]:
    return {str(one) for one in place.rglob("*")}


UNREAD = """
import os, sys
reader, writer = os.pipe()
os.dup2(writer, 1), os.dup2(writer, 2)
os.close(reader)
os.execv(sys.argv[1], sys.argv[1:])
"""


async def test_a_daemon_whose_output_nobody_reads_works_on(tmp_path: Path) -> None:
    """Case 002-534."""
    config = backend_script(tmp_path / "bin", "a", ok("done"))
    wrapper = (sys.executable, "-c", UNREAD)
    async with running(
        tmp_path, config, wrapper=wrapper, arguments=("--log-level", "debug")
    ) as daemon:
        done = await daemon.client.call("delegate", {**FINISHED, "backend": "a"})
        assert done["state"] == "succeeded"
        assert await daemon.client.call("daemon.ping")
        assert daemon.log() == ""


async def test_what_a_person_has_cleared_stays_clear_over_a_restart(tmp_path: Path) -> None:
    """Case field-760, with its store."""
    config = backend_script(tmp_path / "bin", "a", ok("1"), more='quota = "plan"')
    async with running(tmp_path, config) as daemon:
        report = {"http_status": 429, "body": {"error": {"type": "usage_limit_reached"}}}
        await daemon.client.call(
            "report", {"backend": "a", "outcome": "failure", "evidence": report}
        )
        assert (await entry(daemon, "a"))["state"] == "rate_limited"
        ran = await run_client(daemon.socket, "health", "clear", "a")
        assert ran.code == 0, ran.err
        await daemon.client.call("config.reload")
        await daemon.restart()
        found = await entry(daemon, "a")
        assert (found["state"], found["reason"], found["until_at"], found["count"]) == (
            *("healthy", None, None, 0),
        )
        assert all(one["state"] == "healthy" for one in found["scopes"])


async def entry(daemon: Daemon, name: str) -> Json:
    found: Json = (await daemon.client.call("health"))["health"][name]
    return found
