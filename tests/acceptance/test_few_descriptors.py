"""A daemon that comes back with hardly any file descriptors, while many agents run."""

from pathlib import Path

from tests.support.agents import backend_script
from tests.support.daemon import running
from tests.transports.programs import until

AGENTS = 12
WAITS = """cat >/dev/null
echo begun >> "$HOME/begun"
while [ ! -e "$HOME/goes" ]; do sleep 0.1; done
echo done"""


async def test_each_agent_is_found_again_and_none_is_started_twice(tmp_path: Path) -> None:
    config = "[defaults]\nmax_running = 50\n" + backend_script(tmp_path / "bin", "one", WAITS)
    async with running(tmp_path, config) as daemon:
        begun = daemon.home / "begun"
        names = []
        for _ in range(AGENTS):
            asked = {"prompt": "x", "backend": "one", "wait": "accepted"}
            names.append((await daemon.client.call("delegate", asked))["delegation"])
        await until(lambda: begun.exists() and len(begun.read_text().split()) == AGENTS)
        await daemon.kill()
        daemon.wrapper = ("prlimit", "--nofile=40:40")
        await daemon.start()
        (daemon.home / "goes").touch()
        for name in names:
            ended = await daemon.client.call("delegation.wait", {"delegation": name})
            assert (ended["state"], ended["text"]) == ("succeeded", "done"), daemon.log()
        assert len(begun.read_text().split()) == AGENTS
