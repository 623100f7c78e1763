"""What the programs of the documentation run in: a daemon, a codex at its limit, a claude."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio.to_thread
from msgspec import Struct
from tests.support.agents import program
from tests.support.daemon import HANG_S, ROOT, Daemon, running

DOCS = ROOT / "docs"

CODEX = """\
cat >/dev/null
echo '{"type":"thread.started","thread_id":"t1"}'
echo '{"type":"turn.started"}'
echo '{"type":"error","message":"'"$LIMIT"'"}'
echo '{"type":"turn.failed","error":{"message":"'"$LIMIT"'"}}'
exit 1"""
LIMIT = 'LIMIT="You\'ve hit your usage limit. Try again in 1 hour."\n'
CLAUDE = """\
prompt=$(cat)
@PAUSE@
echo '{"type":"system","subtype":"init","session_id":"c1","tools":[],"model":"m"}'
echo '{"type":"assistant","message":{"id":"m1","role":"assistant","content":\
[{"type":"text","text":"A parser and its tests."}]},"session_id":"c1"}'
echo '{"type":"result","subtype":"success","is_error":false,"num_turns":1,\
"result":"A parser and its tests.","session_id":"c1"}'"""
UNTIL_TOLD = 'until [ -e "$HOME/.claude/go" ]; do sleep 0.05; done'

_BLOCK = re.compile(
    r"^<!-- runnable(?:: (?P<name>\S+))? -->\n```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.M | re.S,
)
_FENCE = re.compile(r"^ *```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^ *```$", re.M | re.S)


class Block(Struct, frozen=True):
    page: str
    name: str
    """Of the file that it is; empty: commands of a shell."""
    language: str
    text: str


def pages() -> Iterator[tuple[str, str]]:
    """Pages of the site, by their path below `docs`."""
    for path in sorted(DOCS.rglob("*.md")):
        yield str(path.relative_to(DOCS)), path.read_text()


def runnable() -> Iterator[Block]:
    for page, text in pages():
        for found in _BLOCK.finditer(text):
            yield Block(page, found["name"] or "", found["language"], found["text"])


def blocks(language: str) -> Iterator[Block]:
    for page, text in (("README.md", (ROOT / "README.md").read_text()), *pages()):
        for found in _FENCE.finditer(text):
            if found["language"] == language:
                yield Block(page, "", language, found["text"])


def program_of(name: str) -> Block:
    [found] = [one for one in runnable() if one.name == name]
    return found


@asynccontextmanager
async def scene(tmp_path: Path, *, is_slow: bool = False) -> AsyncIterator[Daemon]:
    """
    Args:
        is_slow: claude answers only when `~/.claude/go` is there.
    """
    home, bin_dir = tmp_path / "home", tmp_path / "bin"
    program(bin_dir, "codex", LIMIT + CODEX)
    program(bin_dir, "claude", CLAUDE.replace("@PAUSE@", UNTIL_TOLD if is_slow else ":"))
    for login in (".codex/auth.json", ".claude/.credentials.json"):
        (home / login).parent.mkdir(parents=True)
        (home / login).write_text("{}")
    (home / "project").mkdir()
    async with running(tmp_path, '[chains]\ncodex = ["claude"]\n') as daemon:
        yield daemon


async def run_block(
    daemon: Daemon,
    block: Block,
    *,
    stdin: str = "",
    on_line: Callable[[str], None] = lambda _: None,
) -> "subprocess.CompletedProcess[str]":
    """
    As a person would: the file in a project, or the commands in a shell.

    Args:
        on_line: Called with each line of its output, as it comes.
    """
    project = daemon.home / "project"
    bin_dir = daemon.bin_dir
    for name in ("fallbackd-client", "fallbackd"):
        if not (bin_dir / name).exists():
            (bin_dir / name).symlink_to(Path(sys.executable).parent / name)
    node = shutil.which("node")
    runners = {
        "python": [sys.executable],
        "bash": ["bash"],
        "js": [node or "node"],
        "sh": ["sh", "-e"],
    }
    path = project / (block.name or "commands.sh")
    path.write_text(block.text)
    environ = {**daemon.env, "PYTHONPATH": str(ROOT / "client"), "HOME": str(daemon.home)}
    environ["PATH"] = f"{bin_dir}:{os.environ['PATH']}"

    def run() -> "subprocess.CompletedProcess[str]":
        words = tempfile.TemporaryFile("w+")  # noqa: SIM115 # closed below
        given = tempfile.TemporaryFile("w+")  # noqa: SIM115 # closed below
        given.write(stdin)
        given.seek(0)
        with (
            words,
            given,
            subprocess.Popen(
                [*runners[block.language], str(path)],
                cwd=project,
                env=environ,
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=words,
                text=True,
            ) as process,
        ):
            assert process.stdout is not None
            lines = []
            for line in process.stdout:
                lines.append(line)
                on_line(line)
            process.wait(HANG_S)
            words.seek(0)
            return subprocess.CompletedProcess(
                process.args, process.returncode, "".join(lines), words.read()
            )

    return await anyio.to_thread.run_sync(run, abandon_on_cancel=True)
