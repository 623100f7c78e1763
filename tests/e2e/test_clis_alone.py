"""The ground of the other tests here: each real CLI, without the daemon, reaches the provider."""

import tomllib
from pathlib import Path

import anyio
import pytest
from tests.e2e.clis import KEY, NAMES, Home, build_home
from tests.support.provider import Provider, provider
from tests.support.provider_frames import TEXT

HANG_LIMIT_S = 400


async def run_cli(home: Home, name: str) -> tuple[int, str]:
    """Its exit status and all that it printed, both streams together."""
    argv = home.argv(name, "say pong")
    with anyio.fail_after(HANG_LIMIT_S):
        done = await anyio.run_process(argv, check=False, cwd=home.work, env=home.env, input=b"")
    return done.returncode, (done.stdout + done.stderr).decode()


def homes(tmp_path: Path, served: Provider, name: str) -> Home:
    return build_home(tmp_path, served, names=(name,))


@pytest.mark.parametrize("name", NAMES)
async def test_cli_answers_with_the_text_of_the_provider(tmp_path: Path, name: str) -> None:
    async with provider() as p:
        status, printed = await run_cli(homes(tmp_path, p, name), name)
        calls = p.calls(name)
    assert status == 0
    for word in TEXT.split():  # gemini prints them one by one
        assert word in printed
    assert {call.credential for call in calls} == {KEY}


@pytest.mark.parametrize("name", NAMES)
async def test_cli_fails_when_the_provider_refuses_its_key(tmp_path: Path, name: str) -> None:
    async with provider() as p:
        p.behave(name, "401")
        status, printed = await run_cli(homes(tmp_path, p, name), name)
        assert p.first_failure(name) is not None
    assert status != 0
    assert TEXT not in printed


@pytest.mark.parametrize("name", NAMES)
async def test_shell_tool_of_the_model_runs_in_the_work_tree(tmp_path: Path, name: str) -> None:
    async with provider() as p:
        p.behave(name, "tool", command="echo made-by-tool > made.txt")
        home = homes(tmp_path, p, name)
        status, _ = await run_cli(home, name)
    assert status == 0
    assert (home.work / "made.txt").read_text() == "made-by-tool\n"


async def test_all_settings_fit_into_one_home_and_its_configuration_is_toml(tmp_path: Path) -> None:
    async with provider() as p:
        home = build_home(tmp_path, p)
        tables = tomllib.loads(home.backends_toml(first_answer_s="3"))["backends"]
    assert set(tables) == set(NAMES)
    assert all(table["first_answer_s"] == 3 for table in tables.values())
    assert tables["claude"]["env"]["HOME"] == str(home.path)
    assert not home.keys.keys() & tables["claude"]["env"].keys()
    assert home.keys["GEMINI_API_KEY"] == KEY
