"""What the documentation shows is run as it stands there."""

import json
import tomllib
from pathlib import Path

import pytest
from tests.docs.scene import Block, blocks, program_of, run_block, runnable, scene

from fallbackd.config.load import load

NEEDS_MORE = ("ask.sh", "ask.mjs")
"""Programs that need socat, jq or node: `make e2e` runs them."""
HERE = [one for one in runnable() if one.name not in NEEDS_MORE and one.name != "voice_agent.py"]


def title(block: Block) -> str:
    return f"{block.page}: {block.name or block.text.splitlines()[-1]}"


def test_there_are_programs_to_run() -> None:
    names = {one.name for one in runnable()}
    assert {"ask.py", "follow.py", "ask.sh", "ask.mjs", "voice_agent.py"} <= names


@pytest.mark.parametrize("block", HERE, ids=title)
async def test_a_block_that_is_marked_as_runnable_runs(tmp_path: Path, block: Block) -> None:
    async with scene(tmp_path) as daemon:
        if block.page == "getting-started.md" and "@last" in block.text:
            await daemon.client.delegate("hi")
        ran = await run_block(daemon, block)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert ran.stdout.strip()


async def test_the_python_program_prints_the_answer_and_the_failover(tmp_path: Path) -> None:
    block = program_of("ask.py")
    block = Block(
        block.page, block.name, block.language, block.text.replace('cwd="."', 'backend="codex"')
    )
    async with scene(tmp_path) as daemon:
        ran = await run_block(daemon, block)
        assert "A parser and its tests." in ran.stdout
        assert "(usage_limit" in ran.stdout


async def test_a_call_of_ones_own_moves_on_after_a_failure(tmp_path: Path) -> None:
    async with scene(tmp_path) as daemon:
        ran = await run_block(daemon, program_of("own_call.py"))
        assert ran.stdout.splitlines() == ["codex: overloaded", "claude answered"], ran.stderr


@pytest.mark.parametrize("block", list(blocks("toml")), ids=title)
def test_a_piece_of_configuration_loads_without_a_warning(block: Block) -> None:
    tomllib.loads(block.text)
    loaded = load(block.text, path="/home/me/.config/fallbackd/config.toml")
    assert [str(one) for one in (*loaded.errors, *loaded.warnings)] == []


def test_every_piece_of_json_is_json() -> None:
    for block in blocks("json"):
        json.loads(block.text)
