"""A real tmux: a window for each delegation, which the daemon may be restarted under."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from tests.e2e.tmux import Tmux, tmux_server
from tests.support.agents import ECHO, backend_script
from tests.support.daemon import HANG_S, running

COUNTS = """cat >/dev/null
n=0
while [ ! -e "$HOME/goes" ]; do n=$((n + 1)); echo "line $n."; sleep 0.1; done
echo "last $n."
"""


def windows(tmux: Tmux) -> list[str]:
    return tmux.run("list-windows", "-t", "=fallbackd", "-F", "#{window_name}").split()


@pytest.fixture
def tmux() -> Iterator[Tmux]:
    with tmux_server() as one:
        yield one


async def test_a_window_follows_a_delegation_while_the_daemon_is_restarted_under_it(
    tmp_path: Path, tmux: Tmux
) -> None:
    config = "[defaults]\ntmux = true\n" + backend_script(tmp_path / "bin", "counts", COUNTS)
    env = {**tmux.env, "ACME_API_KEY": "not for every window"}
    async with running(tmp_path, config, env=env) as daemon:
        begun = await daemon.client.call("delegate", {"prompt": "x", "backend": "counts"})
        window = begun["tmux_window"]
        assert window == f"fallbackd:{begun['delegation']}"
        await tmux.until(window, r"line 5\.")
        await daemon.kill()
        await daemon.start()
        found = await daemon.client.call("delegation.get", {"delegation": begun["delegation"]})
        assert (found["state"], found["tmux_window"]) == ("running", window)
        at = int(re.findall(r"line (\d+)\.", tmux.shown(window))[-1])
        await tmux.until(window, rf"line {at + 5}\.")
        (daemon.home / "goes").touch()
        ended = await daemon.client.call("delegation.wait", {"delegation": begun["delegation"]})
        assert ended["state"] == "succeeded"
        shown = await tmux.until(window, r"last \d+\.")
        lines = [int(number) for number in re.findall(r"line (\d+)\.", shown)]
        assert lines == list(range(1, len(lines) + 1))
        assert f"last {len(lines)}." in shown
        shows = tmux.run("show-environment", "-g")
        assert "not for every window" not in shows
        await daemon.stop()
        assert "last" in tmux.shown(window)  # it stays, to be read


async def test_ended_windows_make_room_and_there_are_never_too_many(
    tmp_path: Path, tmux: Tmux
) -> None:
    config = (
        "[defaults]\ntmux = true\ntmux_windows = 2\n"
        + backend_script(tmp_path / "bin", "echo", ECHO)
        + backend_script(tmp_path / "bin", "counts", COUNTS)
    )
    async with running(tmp_path, config, env=tmux.env) as daemon:
        names = []
        for number in range(4):
            call = {"prompt": f"number {number}", "backend": "echo", "wait": "finished"}
            done = await daemon.client.call("delegate", call)
            names.append(done["delegation"])
            await tmux.until(done["tmux_window"], f"number {number}")
            with anyio.fail_after(HANG_S):
                while "1" not in tmux.run(
                    *("list-panes", "-t", done["tmux_window"], "-F", "#{pane_dead}")
                ):
                    await anyio.sleep(0.05)
            assert len(windows(tmux)) <= 2
        assert sorted(windows(tmux)) == names[-2:]
        begun = [
            await daemon.client.call("delegate", {"prompt": "x", "backend": "counts"})
            for _ in range(3)
        ]
        assert [one["tmux_window"] is not None for one in begun] == [True, True, False]
        assert "tmux_windows" in begun[2]["warnings"][0]
        (daemon.home / "goes").touch()


async def test_without_tmux_there_is_a_warning_and_the_work_is_done(tmp_path: Path) -> None:
    config = "[defaults]\ntmux = true\n" + backend_script(tmp_path / "bin", "echo", ECHO)
    for program in ("cat", "sh", "sleep"):
        found = shutil.which(program)
        assert found is not None
        (tmp_path / "bin" / program).symlink_to(found)
    async with running(tmp_path, config, env={"PATH": str(tmp_path / "bin")}) as daemon:
        done = await daemon.client.call(
            "delegate", {"prompt": "hello", "backend": "echo", "wait": "finished"}
        )
        assert (done["state"], done["tmux_window"]) == ("succeeded", None)
        assert "tmux is not installed" in done["warnings"][0]
        troubles = (await daemon.client.call("status"))["daemon"]["troubles"]
        assert [one["kind"] for one in troubles] == ["tmux"]
