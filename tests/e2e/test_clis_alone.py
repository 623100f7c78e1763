"""The ground of the other tests here: each real CLI, without the daemon, reaches the provider."""

import os
import re
import signal
import subprocess
import tomllib
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
from anyio.abc import ByteReceiveStream
from msgspec import Struct
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


class Alone(Struct, frozen=True, kw_only=True):
    """What a CLI does by itself about a failure of its provider."""

    name: str
    failure: str
    calls: int
    """Until it ends, where it does; else so many at least, and it still tries."""
    ends: bool = False
    waits_for_reset: bool = False
    """It sleeps until the limit is over, for hours."""

    def __str__(self) -> str:
        return f"{self.name}-{self.failure}"


def ends(name: str, failure: str, calls: int) -> Alone:
    return Alone(name=name, failure=failure, calls=calls, ends=True)


def tries(name: str, failure: str, calls: int = 2) -> Alone:
    return Alone(name=name, failure=failure, calls=calls)


BY_ITSELF = (
    ends("codex", "usage_limit", 1),
    ends("codex", "503", 5),  # its provider calls this one `server_is_overloaded`
    ends("codex", "reset_mid", 6),
    ends("codex", "cut_early", 6),
    tries("codex", "429", 5),
    tries("codex", "500", 6),
    ends("claude", "usage_limit", 1),
    ends("claude", "529", 3),
    tries("claude", "429", 3),
    tries("claude", "500", 3),
    tries("claude", "503", 3),
    tries("claude", "reset_mid", 3),
    Alone(name="gemini", failure="usage_limit", calls=1, waits_for_reset=True),
    ends("gemini", "reset_mid", 1),
    ends("gemini", "cut_early", 4),
    ends("gemini", "error_mid", 4),
    tries("gemini", "429"),
    tries("gemini", "500"),
    tries("gemini", "503"),
    ends("opencode", "401", 1),
    tries("opencode", "usage_limit"),
    tries("opencode", "429"),
    tries("opencode", "500"),
    tries("opencode", "cut_early", 4),
)
"""Measured with codex 0.171, claude 2.1.332, gemini 0.61 and opencode 1.18. The patience of the
engine, its own retries and the signatures of the kinds rest on this: a row that fails says that
the newest version does something else, and which pages and rules have to be looked at."""


@pytest.mark.parametrize("row", BY_ITSELF, ids=str)
async def test_what_a_cli_does_by_itself_when_its_provider_fails(
    tmp_path: Path, row: Alone
) -> None:
    async with provider() as p:
        p.behave(row.name, row.failure)
        home = homes(tmp_path, p, row.name)
        argv = home.argv(row.name, "say pong")
        printed = bytearray()
        with anyio.fail_after(HANG_LIMIT_S):
            process = await anyio.open_process(
                argv, cwd=home.work, env=home.env, stdin=subprocess.DEVNULL, start_new_session=True
            )
            async with anyio.create_task_group() as tasks:
                for stream in (process.stdout, process.stderr):
                    tasks.start_soon(_keep, stream, printed)
                try:
                    if row.ends:
                        await process.wait()
                    elif row.waits_for_reset:
                        while (wait := _OWN_WAIT.search(printed)) is None:
                            await anyio.sleep(0.1)
                        assert float(wait[1]) > 3_600_000
                    else:
                        while len(p.calls(row.name)) < row.calls:
                            assert process.returncode is None, f"ended: {bytes(printed)!r}"
                            await anyio.sleep(0.1)
                finally:
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    await process.wait()
        calls = len(p.calls(row.name))
    assert calls == row.calls if row.ends or row.waits_for_reset else calls >= row.calls


_OWN_WAIT = re.compile(rb"Retrying after (\d+(?:\.\d+)?)ms")


async def _keep(stream: ByteReceiveStream | None, printed: bytearray) -> None:
    assert stream is not None
    async for piece in stream:
        printed += piece


async def test_all_settings_fit_into_one_home_and_its_configuration_is_toml(tmp_path: Path) -> None:
    async with provider() as p:
        home = build_home(tmp_path, p)
        tables = tomllib.loads(home.backends_toml(first_answer_s="3"))["backends"]
    assert set(tables) == set(NAMES)
    assert all(table["first_answer_s"] == 3 for table in tables.values())
    assert tables["claude"]["env"]["HOME"] == str(home.path)
    assert not home.keys.keys() & tables["claude"]["env"].keys()
    assert home.keys["GEMINI_API_KEY"] == KEY
