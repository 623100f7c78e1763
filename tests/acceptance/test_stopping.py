"""Nothing of an attempt is left when the next one starts."""

import os
import signal
from pathlib import Path

from tests.support.agents import backend_script, chain
from tests.support.command import run_client
from tests.support.daemon import running
from tests.transports.programs import until

STUBBORN = """cat >/dev/null
trap '' TERM
(trap '' TERM; echo $(sh -c 'echo $PPID') > "$HOME/child.pid"; while :; do sleep 1; done) &
setsid sh -c 'trap "" TERM; (trap "" TERM; while :; do sleep 1; done) & echo $! > "$HOME/grandchild.pid"; echo $$ > "$HOME/far.pid"; while :; do sleep 1; done' &
echo $$ > "$HOME/self.pid"
while [ ! -s "$HOME/far.pid" ] || [ ! -s "$HOME/grandchild.pid" ] || [ ! -s "$HOME/child.pid" ]; do sleep 0.05; done
echo 'error: rate limit reached' >&2
echo ready
while :; do sleep 1; done"""  # noqa: E501

LOOKS = """cat >/dev/null
for name in self child far grandchild; do
    kill -0 "$(cat "$HOME/$name.pid")" 2>/dev/null && echo "$name is there"
done
echo looked"""


async def test_a_family_that_ignores_sigterm_is_gone_before_the_next_one_starts(
    tmp_path: Path,
) -> None:
    bin_dir = tmp_path / "bin"
    config = (
        "[defaults]\nstop_grace_s = 0.3\n"
        + backend_script(bin_dir, "first", STUBBORN, more="stall_s = 2.0")
        + backend_script(bin_dir, "second", LOOKS)
        + chain("first", "second")
    )
    async with running(tmp_path, config) as daemon:
        ran = await run_client(
            daemon.socket,
            *("--json", "delegate", "x", "--backend", "first"),
            cwd=str(daemon.work_dir),
        )
        assert ran.code == 0, ran.err
        done = ran.json
        assert done["served_by"] == "second"
        assert done["text"] == "looked"
        first, second = done["attempts"]
        assert first["ended_at"] <= second["started_at"]
        assert first["failure"]["reason"] == "stalled"
        for name in ("self", "child", "far", "grandchild"):
            pid = (daemon.home / f"{name}.pid").read_text().strip()
            assert not Path(f"/proc/{pid}").exists()


async def test_a_cancel_returns_when_everything_is_gone(tmp_path: Path) -> None:
    config = "[defaults]\nstop_grace_s = 0.3\n" + backend_script(
        tmp_path / "bin", "first", STUBBORN
    )
    async with running(tmp_path, config) as daemon:
        begun = await daemon.client.call(
            "delegate", {"prompt": "x", "backend": "first", "settle_s": 60}
        )
        ran = await run_client(daemon.socket, "--json", "cancel", begun["delegation"])
        assert ran.json["state"] == "cancelled"
        for name in ("self", "child", "far", "grandchild"):
            pid = (daemon.home / f"{name}.pid").read_text().strip()
            assert not Path(f"/proc/{pid}").exists()


SLEEPS = 'cat >/dev/null; echo $PPID >> "$HOME/runners"; while :; do sleep 1; done'


async def test_a_stopped_runner_holds_up_no_cancel_no_deadline_and_no_end_of_the_daemon(
    tmp_path: Path,
) -> None:
    config = "[defaults]\nstop_grace_s = 0.3\n" + backend_script(tmp_path / "bin", "one", SLEEPS)
    async with running(tmp_path, config) as daemon:
        runners = daemon.home / "runners"

        async def begun(number: int, **more: object) -> str:
            asked = {"prompt": "x", "backend": "one", "wait": "accepted", **more}
            found = await daemon.client.call("delegate", asked)
            await until(lambda: runners.exists() and len(runners.read_text().split()) == number)
            os.kill(int(runners.read_text().split()[-1]), signal.SIGSTOP)
            return str(found["delegation"])

        name = await begun(1)
        ended = await daemon.client.call("delegation.cancel", {"delegation": name})
        assert ended["state"] == "cancelled"
        name = await begun(2, timeout_s=5.0)
        ended = await daemon.client.call("delegation.wait", {"delegation": name})
        assert (ended["state"], ended["failure"]["detail"]) == ("failed", "deadline")
        await begun(3)
        daemon.send(signal.SIGTERM)
        await until(lambda: "daemon.draining" in daemon.log())
        daemon.send(signal.SIGTERM)  # now, without a drain
        assert await daemon.wait() == 0
        for pid in runners.read_text().split():
            assert not Path(f"/proc/{pid}").exists()
