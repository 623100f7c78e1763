"""The completions in the shells that they are for."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import anyio.to_thread
import pytest
from tests.e2e.terminals import Terminal, require, terminal
from tests.support import agents
from tests.support.daemon import Daemon, running

from fallbackd_client.cli.commands.completions import script

FILES = {
    "bash": "fallbackd-client.bash",
    "fish": "fallbackd-client.fish",
    "zsh": "_fallbackd-client",
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the scripts, as a package installs them."""
    folder = tmp_path_factory.mktemp("completions")
    for shell, name in FILES.items():
        (folder / name).write_text(script(shell))
    return folder


LINES = [
    ("del", ["delegate"]),
    ("--json heal", ["--json", "health"]),
    ("delegate --ba", ["delegate", "--backend"]),
    ("delegate --backend al", ["delegate", "--backend", "alpha-one"]),
    ("delegate --backend=al", ["delegate", "--backend=alpha-one"]),
    ("delegate --wait fin", ["delegate", "--wait", "finished"]),
    ("delegate x --no-f", ["delegate", "x", "--no-failover"]),
    ("delegate --cwd wor", ["delegate", "--cwd", "work/"]),
    ("health ma", ["health", "mark"]),
    ("health mark al", ["health", "mark", "alpha-one"]),
    ("wait {id_start}", ["wait", "{id}"]),
    ("resolve --lease al", ["resolve", "--lease", "alpha-one"]),
    ("sessions my-", ["sessions", "my-session"]),
    ("call daemon.pi", ["call", "daemon.ping"]),
    ("config rel", ["config", "reload"]),
    ("config set defaults.wait_th", ["config", "set", "defaults.wait_threshold_s"]),
    ("config set backends.alpha-one.mod", ["config", "set", "backends.alpha-one.model"]),
    ("config check no", ["config", "check", "notes.toml"]),
    ("completions fi", ["completions", "fish"]),
]
"""What is typed, and what stands there after Tab."""


async def prepared(tmp_path: Path, daemon: Daemon) -> str:
    """Something to complete; the id of a delegation."""
    (tmp_path / "here" / "work").mkdir(parents=True)
    (tmp_path / "here" / "notes.toml").write_text("")
    done = await daemon.client.call(
        "delegate",
        {"prompt": "x", "backend": "alpha-one", "session": "my-session", "wait": "finished"},
    )
    return str(done["delegation"])


def environ(tmp_path: Path, daemon: Daemon) -> dict[str, str]:
    return {
        "HOME": str(tmp_path),
        "PATH": f"{Path(sys.prefix) / 'bin'}:/usr/local/bin:/usr/bin:/bin",
        "FALLBACKD_SOCKET": daemon.socket,
        "LANG": "C.UTF-8",
    }


def config(tmp_path: Path) -> str:
    return agents.backend_script(tmp_path / "bin", "alpha-one", agents.ok("done"))


async def typed_in(tmp_path: Path, argv: list[str], setup: str) -> None:
    async with running(tmp_path, config(tmp_path)) as daemon:
        delegation = await prepared(tmp_path, daemon)
        env = environ(tmp_path, daemon)

        def type_all() -> None:
            with terminal(argv, env=env, cwd=tmp_path / "here") as shell:
                shell.do(setup)
                for line, expected in LINES:
                    check(shell, line, expected, delegation)

        await anyio.to_thread.run_sync(type_all, abandon_on_cancel=True)


def check(shell: Terminal, line: str, expected: list[str], delegation: str) -> None:
    line = line.format(id_start=delegation[:-2])
    words = [word.format(id=delegation) for word in expected]
    found = shell.completed(f"fallbackd-client {line}")
    # What may follow, `=` or `/`, is taken away again by zsh where it does not.
    assert [word.rstrip("=/") for word in found] == [
        "fallbackd-client",
        *(word.rstrip("=/") for word in words),
    ]


@pytest.mark.parametrize(
    "source",
    ["source {written}/fallbackd-client.bash", 'eval "$(fallbackd-client completions bash)"'],
    ids=["file", "eval"],
)
async def test_bash(source: str, written: Path, tmp_path: Path) -> None:
    argv = [require("bash"), "--norc", "--noprofile", "-i"]
    loaded = source.replace("{written}", str(written))
    await typed_in(tmp_path, argv, f"bind 'set enable-bracketed-paste off'; {loaded}")


@pytest.mark.parametrize(
    "setup",
    [
        "fpath=({written} $fpath); autoload -Uz compinit; compinit -u -D",
        'autoload -Uz compinit; compinit -u -D; eval "$(fallbackd-client completions zsh)"',
    ],
    ids=["file", "eval"],
)
async def test_zsh(setup: str, written: Path, tmp_path: Path) -> None:
    argv = [require("zsh"), "-f", "-i"]
    loaded = setup.replace("{written}", str(written))
    await typed_in(tmp_path, argv, f"bindkey -e; unset zle_bracketed_paste; PS1='> '; {loaded}")


async def test_fish(written: Path, tmp_path: Path) -> None:
    """Asked for its candidates, as it asks itself when Tab is pressed."""
    fish = require("fish")
    async with running(tmp_path, config(tmp_path)) as daemon:
        delegation = await prepared(tmp_path, daemon)
        env = environ(tmp_path, daemon)

        def candidates(line: str) -> list[str]:
            script = f"source {written}/fallbackd-client.fish; complete -C $argv[1]"
            done = subprocess.run(
                [fish, "--no-config", "-c", script, "--", line],
                env=env,
                cwd=tmp_path / "here",
                capture_output=True,
                text=True,
                check=True,
                timeout=60,
            )
            assert done.stderr == ""
            return [found.partition("\t")[0] for found in done.stdout.splitlines()]

        async def asked(line: str) -> list[str]:
            ask: Callable[[], list[str]] = lambda: candidates(line)  # noqa: E731
            return await anyio.to_thread.run_sync(ask, abandon_on_cancel=True)

        for line, expected in LINES:
            line = line.format(id_start=delegation[:-2])
            word = expected[-1].format(id=delegation)
            assert await asked(f"fallbackd-client {line}") == [word]
        assert "delegate" in await asked("fallbackd-client ")
        assert await asked("fallbackd-client delegate --model ") == []
