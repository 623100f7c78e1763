"""Without `[share]` a daemon loads nothing of sharing."""

from pathlib import Path

from tests.support.agents import backend_script, chain, ok
from tests.support.daemon import running

SEEN = {"PYTHONPROFILEIMPORTTIME": "1"}
"""Each module that is loaded becomes a line of the log."""
PARTS = ("redis", "fallbackd.engine.shar", "fallbackd.stores.share_redis")
"""What sharing is done with. The values of its records are known to the core of every daemon."""


def loaded(log: str) -> set[str]:
    lines = [line for line in log.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines}


WORK = {"prompt": "hello", "wait": "finished"}


async def test_a_daemon_that_shares_nothing_loads_nothing_of_it(tmp_path: Path) -> None:
    config = backend_script(tmp_path / "bin", "first", ok("done")) + chain("first")
    async with running(tmp_path, config, env=SEEN) as one:
        answer = await one.client.call("delegate", {**WORK, "cwd": str(one.work_dir)})
        assert answer["state"] == "succeeded"
        assert (await one.client.call("share.status", {}))["share"] is None
        modules = loaded(one.log())
    assert "fallbackd.app.lifecycle" in modules
    assert [one for one in modules if one.startswith(PARTS)] == []
    assert "importlib.metadata" not in modules


async def test_one_that_shares_loads_no_commands_and_no_cluster(tmp_path: Path) -> None:
    config = '[share]\ngroup = "home"\nurl_env = "SHARE_URL"\n'
    env = {**SEEN, "SHARE_URL": f"unix://{tmp_path}/nothing-there"}
    async with running(tmp_path, config, env=env) as one:
        assert (await one.client.call("share.status", {}))["share"]["group"] == "home"
        modules = loaded(one.log())
    for used in ("redis.asyncio.connection", "fallbackd.engine.sharing"):
        assert used in modules
    for unused in ("redis.client", "redis.cluster", "redis.commands", "email.message"):
        assert unused not in modules
