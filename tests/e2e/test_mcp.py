"""The real agent CLIs call `delegate` of the MCP server and read another backend's answer."""

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from tests.e2e.mcp_clients import (
    ANSWER,
    CLIENTS,
    HELPER,
    command_of,
    configure,
    delegating,
    run_client,
    told_model,
)  # fmt: skip
from tests.e2e.scenes import HANG_S, scene
from tests.support.agents import backend_script


@pytest.mark.parametrize("name", CLIENTS)
async def test_an_agent_reads_the_answer_of_another_backend(tmp_path: Path, name: str) -> None:
    helper = HELPER[name]
    async with scene(tmp_path) as s:
        s.provider.behave(helper, "ok", text=ANSWER)
        delegating(s, name)
        output = await run_client(name, s)
        assert ANSWER in told_model(s, name), output + s.daemon.log()
        (done,) = (await s.daemon.client.call("delegation.list"))["delegations"]
        assert done["served_by"] == helper
        assert done["session"].startswith("mcp/")


LONG_S = 170.0


async def test_work_of_nearly_three_minutes_is_no_silence_to_any_client(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        sleeps = f"cat >/dev/null; sleep {LONG_S:.0f}; echo {ANSWER}"
        # Silent to its end, which is no failure of a backend that says so.
        slow = backend_script(tmp_path / "bin", "slow", sleeps, more="first_answer_s = 600")
        await configure(s, slow)
        outputs: dict[str, str] = {}

        async def run(name: str) -> None:
            delegating(s, name, backend="slow", permissions="read", session=f"of {name}")
            outputs[name] = await run_client(name, s, timed=False)

        async with anyio.create_task_group() as tasks:
            for name in CLIENTS:
                tasks.start_soon(run, name)
        for name in CLIENTS:
            assert ANSWER in told_model(s, name), (name, outputs[name])


async def test_clients_that_are_interrupted_leave_nothing_running(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        endless = backend_script(
            tmp_path / "bin",
            "endless",
            "cat >/dev/null; exec sleep 3600",
            more="first_answer_s = 3600",
        )
        await configure(s, endless)

        async def work_of(name: str, *, is_over: bool) -> dict[str, Any]:
            with anyio.fail_after(HANG_S):
                while True:
                    found = await s.daemon.client.call("delegation.list", {"session": name})
                    for one in found["delegations"]:
                        if (one["ended_at"] is not None) is is_over:
                            return dict(one)
                    await anyio.sleep(0.2)

        async def interrupt(name: str) -> None:
            delegating(s, name, backend="endless", permissions="read", session=name)
            process = subprocess.Popen(
                command_of(name, s),
                cwd=s.home.work,
                env={**s.home.env, "IS_SANDBOX": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            await work_of(name, is_over=False)
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does: some have processes below
            await anyio.to_thread.run_sync(process.wait)
            one = await work_of(name, is_over=True)
            assert (one["state"], one["attempts"][-1]["state"]) == ("cancelled", "cancelled"), name

        async with anyio.create_task_group() as tasks:
            for name in CLIENTS:
                tasks.start_soon(interrupt, name)
