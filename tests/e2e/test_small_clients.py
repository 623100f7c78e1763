"""The three small clients of the documentation, as a reader would copy them."""

import shutil
from pathlib import Path

import pytest
from tests.docs.scene import Block, program_of, run_block, scene


@pytest.mark.parametrize(
    ("name", "tools"), [("ask.sh", ("bash", "socat", "jq")), ("ask.mjs", ("node",))]
)
async def test_a_small_client_prints_the_answer(
    tmp_path: Path, name: str, tools: tuple[str, ...]
) -> None:
    assert all(shutil.which(one) for one in tools), f"install {', '.join(tools)}"
    async with scene(tmp_path) as daemon:
        ran = await run_block(daemon, program_of(name))
        assert (ran.returncode, ran.stdout) == (0, "A parser and its tests.\n"), ran.stderr


@pytest.mark.parametrize("name", ["ask.sh", "ask.mjs"])
async def test_a_small_client_says_why_it_was_refused(tmp_path: Path, name: str) -> None:
    block = program_of(name)
    text = block.text.replace("cwd: $cwd", 'cwd: "/"').replace("process.cwd()", '"/"')
    assert text != block.text
    async with scene(tmp_path) as daemon:
        ran = await run_block(daemon, Block(block.page, name, block.language, text))
        assert ran.returncode != 0
        assert "too broad for an agent" in ran.stdout + ran.stderr


async def test_the_voice_agent_says_something_in_a_silence_and_then_the_answer(
    tmp_path: Path,
) -> None:
    async with scene(tmp_path, is_slow=True) as daemon:

        def heard(line: str) -> None:
            if "One moment." in line:
                (daemon.home / ".claude" / "go").touch()

        block = program_of("voice_agent.py")
        ran = await run_block(daemon, block, stdin="What is here?\n", on_line=heard)
    assert ran.stdout.splitlines()[0] == "One moment.", ran.stderr
    assert ran.stdout.splitlines()[-1] == "A parser and its tests."


async def test_the_voice_agent_without_a_daemon_says_so(tmp_path: Path) -> None:
    async with scene(tmp_path) as daemon:
        daemon.env["FALLBACKD_SOCKET"] = str(tmp_path / "nothing.sock")
        ran = await run_block(daemon, program_of("voice_agent.py"), stdin="What is here?\n")
        assert "I cannot reach my helpers" in ran.stdout, ran.stderr
