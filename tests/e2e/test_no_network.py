"""A machine without any network: the daemon in one of its own, with nothing in it."""

import os
from pathlib import Path
from typing import Any

from tests.support.agents import backend_script, chain, ok
from tests.support.daemon import Daemon, running

ALONE = ("unshare", "--net") if os.geteuid() == 0 else ("unshare", "--map-current-user", "--net")
REMOTE = """
[backends.far]
kind = "openai-http"
base_url = "http://203.0.113.7/v1"
model = "m"
"""


def near(tmp_path: Path) -> str:
    return backend_script(tmp_path / "bin", "near", ok("from here"), more='cost = "local"')


async def delegated(daemon: Daemon, backend: str) -> Any:
    return await daemon.client.call(
        "delegate", {"prompt": "x", "backend": backend, "wait": "finished"}
    )


async def test_a_remote_backend_is_not_blamed_and_a_local_program_takes_over(
    tmp_path: Path,
) -> None:
    other = backend_script(tmp_path / "bin", "other", ok("from elsewhere"))
    config = REMOTE + other + near(tmp_path) + chain("far", "other", "near")
    async with running(tmp_path, config, wrapper=ALONE) as daemon:
        found = await delegated(daemon, "far")
        assert (found["state"], found["served_by"], found["text"]) == (
            "succeeded",
            "near",
            "from here",
        )
        assert [one["reason"] for one in found["hops"]] == ["local_network"]
        health = (await daemon.client.call("status"))["health"]
        assert {health[name]["state"] for name in ("far", "other", "near")} == {"healthy"}
        assert not any(health[name].get("unproven") for name in ("far", "near"))


async def test_a_local_program_alone_works(tmp_path: Path) -> None:
    async with running(tmp_path, near(tmp_path), wrapper=ALONE) as daemon:
        found = await delegated(daemon, "near")
        assert (found["state"], found["text"].strip()) == ("succeeded", "from here")
