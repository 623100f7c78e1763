"""The parts of the daemon fit together, with windows shorter than a file may ask for."""

from pathlib import Path

import anyio
import msgspec
from tests.support import agents
from tests.support.daemon import HANG_S, in_process

from fallbackd.app.wiring import mint
from fallbackd.config.load import load
from fallbackd.core.policy import Policy
from fallbackd.core.reasons import Reason


def test_ids_sort_by_time_and_differ() -> None:
    earlier, later = mint(1_800_000_000.0), mint(1_800_000_000.5)
    assert earlier < later
    assert mint(1.8e9) != mint(1.8e9)
    assert earlier.isalnum()


def shortened(config: str, reason: Reason, window_s: float) -> Policy:
    policy = load(config, path="config.toml").policy
    short = msgspec.structs.replace(
        policy.reasons[reason], window_s=window_s, max_window_s=window_s, cooldown_s=0
    )
    return msgspec.structs.replace(policy, reasons={**policy.reasons, reason: short})


async def test_a_backend_comes_back_when_its_short_window_is_over(tmp_path: Path) -> None:
    flag = tmp_path / "well"
    body = f"cat >/dev/null; [ -e {flag} ] && echo well && exit 0; exit 75"
    config = (
        agents.backend_script(tmp_path / "bin", "first", body)
        + agents.backend_script(tmp_path / "bin", "second", agents.ok("stand-in"))
        + agents.chain("first", "second")
    )
    policy = shortened(config, Reason.RATE_LIMIT, 0.3)
    async with in_process(tmp_path, config, policy=policy) as daemon:
        call = daemon.client.call
        ask = {"prompt": "x", "backend": "first", "wait": "finished"}
        assert (await call("delegate", ask))["served_by"] == "second"
        flag.touch()
        with anyio.fail_after(HANG_S):
            while (await call("health", {"action": "get", "target": "first"}))["health"]["first"][
                "state"
            ] != "healthy":
                await anyio.sleep(0.02)
        assert (await call("delegate", ask))["served_by"] == "first"
