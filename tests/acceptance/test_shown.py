"""What a person sees of work that runs, and of how it was routed."""

from pathlib import Path

import anyio
from tests.contrib.agents import write
from tests.support.command import run_client
from tests.support.daemon import HANG_S, running

ACTS = r"""cat > /dev/null
echo '{"type":"thread.started","thread_id":"0197b3a0-0000-7000-8000-000000000001"}'
echo '{"type":"turn.started"}'
echo '{"type":"item.started","item":{"id":"i1","type":"command_execution","command":"ls"}}'
while [ ! -e "$HOME/goes" ]; do sleep 0.05; done
exit 75
"""
FAILS = "cat > /dev/null; exit 75"


async def test_a_running_attempt_shows_at_once_that_it_may_have_changed_something(
    tmp_path: Path,
) -> None:
    write(tmp_path, "codex", ACTS)
    async with running(tmp_path) as daemon:
        asked = {"prompt": "x", "backend": "codex", "failover": False, "wait": "accepted"}
        begun = (await daemon.client.call("delegate", asked))["delegation"]
        with anyio.fail_after(HANG_S):
            while True:
                found = await daemon.client.call("delegation.get", {"delegation": begun})
                if found["attempts"] and found["attempts"][0]["effects"] == "possible":
                    break
                await anyio.sleep(0.05)
        assert found["attempts"][0]["state"] == "running"
        shown = await run_client(daemon.socket, "show", begun)
        assert "possible" in shown.out
        (daemon.home / "goes").touch()
        await daemon.client.call("delegation.wait", {"delegation": begun})


async def test_explain_names_the_attempt_that_failed_beside_its_failure(tmp_path: Path) -> None:
    for name in ("codex", "gemini"):
        write(tmp_path, name, FAILS)
    async with running(tmp_path, '[chains]\ncodex = ["gemini"]\n') as daemon:
        asked = {"prompt": "x", "backend": "codex", "wait": "finished"}
        name = (await daemon.client.call("delegate", asked))["delegation"]
        found = await daemon.client.call("explain", {"delegation": name})
        starts = [one for one in found["decisions"] if one["text"].startswith("starts ")]
        assert [one["text"] for one in starts] == [
            f"starts {name}.1 on codex",
            f"starts {name}.2 on gemini",
        ]
        assert (starts[1]["event"], starts[1]["attempt"]) == ("attempt failed", f"{name}.1")
