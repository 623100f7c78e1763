"""`stats` of a daemon at work, over a `kill -9`."""

from pathlib import Path
from typing import Any

from tests.support.agents import backend_script, chain
from tests.support.command import run_client
from tests.support.daemon import running

ANSWERS = "cat >/dev/null; echo done"
LIMITED = "cat >/dev/null; echo too many requests >&2; exit 75"


async def told(socket: Path) -> dict[str, Any]:
    found: dict[str, Any] = (await run_client(socket, "stats", "--since", "1h", "--json")).json
    return found


async def test_what_failed_over_is_counted_and_outlives_a_kill(tmp_path: Path) -> None:
    agents = tmp_path / "bin"
    config = backend_script(agents, "first", LIMITED) + backend_script(agents, "second", ANSWERS)
    async with running(tmp_path, config + chain("first", "second")) as daemon:
        asked = {"prompt": "x", "backend": "first", "wait": "finished", "role": "build"}
        for _ in range(3):
            one = await daemon.client.call("delegate", asked)
            assert one["served_by"] == "second"
        before = await told(daemon.socket)
        await daemon.kill()
        await daemon.start()
        after = await told(daemon.socket)
        for found in (before, after):
            assert (found["requests"], found["answered"], found["rescued"]) == (3, 3, 3)
            calls = {one["backend"]: one["calls"] for one in found["backends"]}
            assert calls == {"first": 1, "second": 3}
            [hop] = found["failovers"]
            assert hop == {"left": "first", "to": "second", "reason": "rate_limit", "count": 3}
            assert [one["reason"] for one in found["outages"]] == ["rate_limit"]
            assert [one["name"] for one in found["roles"]] == ["build"]
        shown = await run_client(daemon.socket, "stats", "--since", "1h")
        assert "3 of 3 requests answered, 3 of them by another backend" in shown.out
        page = tmp_path / "page.html"
        assert (await run_client(daemon.socket, "stats", "--html", str(page))).code == 0
        assert "3 of 3" in page.read_text()


async def test_a_time_that_is_none_is_refused(tmp_path: Path) -> None:
    config = backend_script(tmp_path / "bin", "first", ANSWERS)
    async with running(tmp_path, config) as daemon:
        found = await run_client(daemon.socket, "call", "stats", '{"since_at": 9999999999}')
        assert found.code != 0
        assert "since_at must lie before until_at" in found.err
