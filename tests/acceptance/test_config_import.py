"""`config import` on a terminal: what would be taken, and what was."""

import json
import tomllib
from pathlib import Path

from tests.support.agents import backend_script, ok
from tests.support.command import run_client
from tests.support.daemon import running

HERMES = """
fallback_providers:
  - {provider: openrouter, model: m, api_key: inline-secret, key_env: KX}
  - {provider: nobody}
"""


async def test_a_dry_run_shows_and_a_real_one_puts_it_into_force(tmp_path: Path) -> None:
    place = tmp_path / "config.yaml"
    place.write_text(HERMES)
    async with running(tmp_path, backend_script(tmp_path / "bin", "a", ok("1"))) as daemon:
        before = daemon.config_path.read_text()
        shown = await run_client(
            daemon.socket, "--json", "config", "import", "--dry-run", str(place)
        )
        assert shown.code == 0, shown.err
        found = json.loads(shown.out)
        assert tomllib.loads(found["toml"])["chains"] == {"*": ["openrouter/m"]}
        assert found["written"] is None
        assert any("no model" in one["why"] for one in found["left"])
        assert "inline-secret" not in shown.out
        assert daemon.config_path.read_text() == before

        done = await run_client(daemon.socket, "config", "import", str(place))
        assert done.code == 0, done.err
        assert "# taken: fallback_providers[0]" in done.out
        assert "# written to" in done.out
        assert daemon.config_path.read_text().startswith(before.rstrip("\n"))
        await run_client(daemon.socket, "config", "reload")
        health = (await daemon.client.call("health"))["health"]
        assert {"a", "openrouter/m"} <= set(health)

        twice = await run_client(daemon.socket, "config", "import", str(place))
        assert twice.code == 2
        assert "has tables of the same names already" in twice.err

        odd = await run_client(daemon.socket, "config", "import", str(tmp_path / "x.json"))
        assert odd.code == 2
        assert "name a config.yaml of Hermes" in odd.err


async def test_variables_of_the_caller_are_taken_and_their_keys_never_sent(tmp_path: Path) -> None:
    environ = {
        "JKZ_API_ENDPOINT": "https://e.example/v1",
        "JKZ_API_MODEL": "A",
        "JKZ_API_KEY": "hush-hush",
    }
    async with running(tmp_path, "") as daemon:
        shown = await run_client(
            daemon.socket, "--json", "config", "import", "--dry-run", env=environ
        )
        assert shown.code == 0, shown.err
        found = json.loads(shown.out)
        made = tomllib.loads(found["toml"])
        assert made["backends"]["jkz-api"]["credentials"] == [
            {"label": "jkz", "env": "JKZ_API_KEY"}
        ]
        assert made["roles"]["lens"]["kind"] == "validator"
        assert "hush-hush" not in shown.out
