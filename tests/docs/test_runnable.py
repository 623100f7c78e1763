"""What the documentation shows is run as it stands there."""

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs.scene import (
    HANG_S,
    ROOT,
    Block,
    blocks,
    pages,
    program_of,
    run_block,
    runnable,
    scene,
)

from fallbackd.config.load import load
from fallbackd_client.cli.commands import COMMANDS
from fallbackd_client.cli.output import UsageError
from fallbackd_client.cli.parsing import command_parser

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
        if "@last" in block.text and "delegate" not in block.text:
            for prompt in ("hi", "hi again"):
                await daemon.client.delegate(prompt, cwd=str(daemon.home / "project"))
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


UNTIL_UP = "until .venv/bin/fb ping >/dev/null 2>&1; do sleep 0.1; done\n"
ELSEWHERE = {
    "make demo": "tests/docs/test_screen.py",
    "make setup && .venv/bin/python -m contrib.packages": "tests/e2e/test_packages.py",
    "make setup": "test_the_page_for_contributors_runs",
    "echo '{": "needs socat; ask.sh does the same in tests/e2e/test_small_clients.py",
    "mkdir -p $XDG": "test_the_page_for_contributors_runs",
    "pipx install": "needs a registry of packages; `make release` installs the wheel",
    "pipx inject": "needs a registry of packages; tests/e2e/test_sharing.py",
    "fallbackd-client setup": "tests/e2e/test_first_minute.py",
    "fallbackd-client service": "needs systemd: tests/e2e/test_first_minute.py",
    "cd ~/.local/state": "tests/acceptance/test_backup.py",
    "fallbackd-client questions": "needs a question: tests/client/cli/commands/test_answer.py",
    "fallbackd-client gateway": "needs an HTTP backend: tests/e2e/test_gateway_setup.py",
    "curl -i": "needs an HTTP backend: tests/e2e/test_gateway_clients.py",
    "fallbackd-client mcp": "asks on a terminal: tests/e2e/test_mcp_agents.py",
    "fallbackd-client hooks": "asks on a terminal: tests/e2e/test_interactive.py",
    "fallbackd-client continue": "needs an open session: tests/e2e/test_interactive.py",
    "fallbackd-client share": "needs a server: tests/e2e/test_sharing.py",
    "fallbackd-client health": "needs a server: tests/e2e/test_sharing.py",
    "fallbackd-client delegate --backend claude-api": "needs a key",
    "fallbackd-client delegate --backend acme": "needs the table of its page",
    "fallbackd-client delegate --backend qwen": "needs the table of its page",
    "fallbackd-client delegate --role judge": "needs the table of its page",
    "printf 'What is": "tests/e2e/test_small_clients.py",
    "fallbackd-client delegate --when": "waits for hours: tests/acceptance/test_standby.py",
    "fallbackd-client standby": "needs work that waits: tests/acceptance/test_standby.py",
    "make bench-gateway": "installs 800 MB; its figures are dated",
}
"""Commands that no test of this module runs as they stand, by how they begin: what runs them."""


def commands_of(text: str) -> Iterator[list[str]]:
    """The words behind our own program, in lines for a shell."""
    for line in text.splitlines():
        if not re.search(r"(^|[ /])(fb|fallbackd-client) ", line):
            continue
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        for word in (*lexer, ";"):
            if word not in ("|", "||", "&&", "&", ";"):
                words.append(word)
                continue
            if words and Path(words[0]).name in ("fb", "fallbackd-client"):
                yield [one for one in words[1:] if one != "--json"]
            words = []


def test_every_block_says_what_it_is() -> None:
    assert [one.page for one in blocks("")] == [], "sh: commands; text: what is shown"


@pytest.mark.parametrize("block", [*blocks("sh"), *blocks("bash")], ids=title)
def test_commands_are_run_as_they_stand_or_say_what_runs_them(block: Block) -> None:
    run = {one.text for one in runnable()}
    named = [begin for begin in ELSEWHERE if block.text.startswith(begin)]
    assert block.text in run or named


def test_each_command_that_is_run_elsewhere_stands_on_a_page() -> None:
    shown = [one.text for one in blocks("sh")]
    assert [one for one in ELSEWHERE if not any(text.startswith(one) for text in shown)] == []
    for why in ELSEWHERE.values():
        for path in re.findall(r"tests/\S+\.py", why):
            assert (ROOT / path).exists(), path


def inline() -> Iterator[str]:
    for text in ((ROOT / "README.md").read_text(), *(text for _, text in pages())):
        yield from re.findall(r"`((?:fb|fallbackd-client) [a-z][^`\n]*)`", text)


@pytest.mark.parametrize(
    "words",
    [
        *(words for one in (*blocks("sh"), *blocks("bash")) for words in commands_of(one.text)),
        *(words for one in inline() for words in commands_of(one)),
    ],
    ids=" ".join,
)
def test_a_command_of_ours_on_a_page_is_one_that_it_takes(words: list[str]) -> None:
    if words[0] == "help":
        return
    [command] = [one for one in COMMANDS if words[0] in one.names]
    try:
        command_parser(command).parse_args([one for one in words[1:] if one != "…"])
    except UsageError as error:
        if "required" not in str(error) and "name one of these" not in str(error):
            raise  # more than that a sentence names a command without its arguments


@pytest.mark.parametrize(("page", "text"), list(pages()), ids=lambda one: one[:30])
def test_a_page_begins_with_a_command(page: str, text: str) -> None:
    begins = "\n".join(text.splitlines()[:26])
    assert re.search(r"^```sh$|^\$ (fb|fallbackd-client) ", begins, re.M), page


def test_the_page_for_contributors_runs() -> None:
    first, _, follow = (one.text for one in blocks("sh") if one.page == "hacking.md")
    bin_dir = Path(sys.executable).parent
    first = first.replace("make setup ", "# ").replace(".venv/bin/fb status", UNTIL_UP)
    text = "trap 'kill $(jobs -p); wait' EXIT\n" + first + follow
    with tempfile.TemporaryDirectory(prefix="fbd-") as home:  # addresses of sockets are short
        done = subprocess.run(
            ["bash", "-e", "-c", text.replace(".venv/bin/", f"{bin_dir}/")],
            cwd=ROOT,
            env={"PATH": os.environ["PATH"], "HOME": home, "TMPDIR": home},
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert "alpha is rate-limited" in done.stdout + done.stderr
