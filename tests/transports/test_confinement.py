"""
Where a confined program may write, and what it may not read, as the real kernel has it.

On a kernel without Landlock the same tests hold what is promised there: programs run as they would
without a confinement.
"""

import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.daemon import ROOT
from tests.transports.programs import (
    collect,
    pids_with,
    private_directory,
    shell,
    start,
    text_of,
    transport,
    unique_mark,
)

from fallbackd.core.protocol import Confinement, NotStarted, ProcessExit, Toolchain
from fallbackd.lib.directories import identity
from fallbackd.transports.process.environment import open_places
from fallbackd.transports.process.recording import read_exit
from fallbackd.transports.process.runner.landlock import SCOPES_ABI, WHOLE_ABI, kernel_abi

IS_CONFINED = kernel_abi() >= WHOLE_ABI
IS_SCOPED = kernel_abi() >= SCOPES_ABI


class Place:
    """A working directory, a home, and what lies beside them."""

    def __init__(self, tmp_path: Path) -> None:
        self.root = tmp_path
        self.home = tmp_path / "home"
        self.work = tmp_path / "work"
        self.outside = tmp_path / "outside"
        for each in (self.home, self.work, self.outside):
            each.mkdir()
        (self.outside / "file").write_text("kept")
        self.count = 0

    async def run(
        self,
        script: str,
        *,
        at: Path | None = None,
        cwd_id: str = "",
        writes: bool = True,
        **confinement: Any,
    ) -> str:
        """
        What it prints, of both streams.

        Args:
            at: The working directory.
            writes: Whether it may write there.
        """
        cwd = str(self.work if at is None else at)
        self.count += 1
        self.attempt = private_directory(self.root, f"attempt{self.count}")
        names = ("PATH", "TMUX")
        environ = {name: os.environ[name] for name in names if name in os.environ}
        environ["HOME"] = str(self.home)
        async with transport(environ=environ) as by:
            running = await start(
                by,
                shell(script),
                self.attempt,
                cwd=cwd,
                cwd_id=cwd_id,
                own_tmp=True,
                confinement=Confinement(cwd=cwd if writes else "", **confinement),
            )
            chunks = await collect(running)
        self.exit = running.exit
        return (text_of(chunks) + text_of(chunks, "stderr")).decode(errors="replace")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


CHANGES = {
    "create": "echo x > {0}/new",
    "append": "echo x >> {0}/file",
    "truncate": "truncate -s 0 {0}/file",
    "remove": "rm -f {0}/file",
    "make a directory": "mkdir {0}/made",
    "link": "ln -s file {0}/link",
    "name a pipe": "mkfifo {0}/pipe",
    "rename": "mv {0}/file {0}/other",
    "take away": "mv {0}/file .",
    "link away": "ln {0}/file here",
}


@pytest.mark.parametrize("change", CHANGES)
async def test_nothing_is_changed_outside_of_the_working_directory(
    place: Place, change: str
) -> None:
    (place.work / "own").mkdir()
    (place.work / "own" / "file").write_text("mine")
    script = CHANGES[change].format("../outside") + " && echo done"
    said = await place.run(script)
    assert ("done" not in said) is IS_CONFINED, said
    if IS_CONFINED:
        assert {p.name: p.read_text() for p in place.outside.iterdir()} == {"file": "kept"}
    said = await place.run(CHANGES[change].format("own") + " && echo done")
    assert "done" in said


async def test_a_program_starts_in_the_directory_that_was_judged_or_not_at_all(
    place: Place,
) -> None:
    then = identity(str(place.work))
    place.work.rename(place.root / "moved")
    replaced: list[Callable[[], object]] = [
        lambda: place.work.symlink_to(place.outside),
        lambda: place.work.symlink_to("moved"),
        place.work.mkdir,
    ]
    for replace in replaced:
        replace()
        assert await place.run("touch here; echo done", cwd_id=then) == ""
        assert isinstance(place.exit, NotStarted)
        assert place.exit.path == str(place.work)
        if place.work.is_symlink():
            place.work.unlink()
    assert place.exit.text == "it is another directory now than when the work was accepted"
    assert not (place.outside / "here").exists()
    place.work.rmdir()
    (place.root / "moved").rename(place.work)
    assert await place.run("touch here; pwd", cwd_id=then) == f"{place.work}\n"


async def test_a_program_that_may_only_read_writes_to_its_own_temporary_place_alone(
    place: Place,
) -> None:
    said = await place.run(
        'cat ../outside/file; echo x > "$TMPDIR/t" && cat "$TMPDIR/t";'
        "echo x > here && echo wrote here; echo x > /dev/null && echo null",
        writes=False,
    )
    assert "kept" in said
    assert "x\n" in said
    assert "null" in said
    assert ("wrote here" not in said) is IS_CONFINED


async def test_what_is_hidden_cannot_be_read_and_what_is_beside_it_can(place: Place) -> None:
    keys = place.home / ".keys"
    keys.mkdir()
    (keys / "secret").write_text("sk-1")
    (keys / "plain").write_text("beside")
    state = place.home / "state"
    (state / "other").mkdir(parents=True)
    (state / "other" / "answer").write_text("sk-2")
    (state / "mine").write_text("for me")
    (place.work / "link").symlink_to(keys / "secret")
    said = await place.run(
        "cat ~/.keys/secret; cat link; cat ~/state/other/answer; cat /proc/self/cwd/link;"
        "ln ~/.keys/secret copy; cat copy; ls ~/.keys; cat ~/.keys/plain; cat ~/state/mine",
        hidden=("~/.keys/secret", "~/state", "~/.missing/file"),
        readable=("~/state/mine",),
    )
    assert ("sk-" not in said) is IS_CONFINED, said
    for seen in ("secret\n", "beside", "for me"):
        assert seen in said


async def test_a_hidden_place_is_known_by_where_it_really_is(place: Place) -> None:
    real = place.home / "dotfiles"
    real.mkdir()
    (real / "auth.json").write_text("sk-1")
    (place.home / ".agent").symlink_to(real)
    said = await place.run("cat ~/dotfiles/auth.json; echo end", hidden=("~/.agent/auth.json",))
    assert ("sk-1" not in said) is IS_CONFINED
    assert "end" in said


async def test_its_own_state_is_its_own_even_where_others_may_not_look(place: Place) -> None:
    (place.home / ".agent").mkdir()
    (place.home / ".agent" / "auth.json").write_text("own")
    said = await place.run(
        "cat ~/.agent/auth.json; echo new > ~/.agent/auth.json.new &&"
        " mv ~/.agent/auth.json.new ~/.agent/auth.json && cat ~/.agent/auth.json",
        writable=("~/.agent",),
        hidden=("~/.agent/auth.json",),
    )
    assert said == "ownnew\n"


async def test_the_place_of_the_attempt_is_written_by_its_runner_alone(place: Place) -> None:
    said = await place.run(
        'cat "$FALLBACKD_RUN_DIRECTORY/claim"; rm -f "$FALLBACKD_RUN_DIRECTORY/claim" && echo gone;'
        'echo "{}" > "$FALLBACKD_RUN_DIRECTORY/exit.json" && echo forged; exit 3',
        hidden=(str(place.root / "attempt1"),),
    )
    assert ("gone" not in said and "forged" not in said) is IS_CONFINED, said
    assert isinstance(place.exit, ProcessExit)
    assert place.exit.code == 3
    recorded = read_exit(place.attempt)
    assert isinstance(recorded, ProcessExit)
    assert recorded.code == 3


async def test_a_missing_place_is_made_where_the_kind_says_so(place: Place) -> None:
    await place.run(
        "echo x > ~/.agent/sessions; mkdir ~/.never",
        writable=("${AGENT_HOME:-~/.agent}/", "~/.other"),
    )
    made = place.home / ".agent"
    if IS_CONFINED:
        assert {p.name for p in place.home.iterdir()} == {".agent"}
        assert stat.S_IMODE(made.stat().st_mode) == 0o700
        assert (made / "sessions").exists()
    else:
        assert (place.home / ".never").exists()


async def test_a_working_directory_that_is_a_link_is_writable(place: Place) -> None:
    (place.root / "link").symlink_to(place.work)
    said = await place.run("echo x > made && cat made", at=place.root / "link")
    assert said == "x\n"


@pytest.mark.parametrize("name", ["with space", "*", "\udcff\udcfe"])
async def test_names_are_bytes_to_the_kernel(place: Place, name: str) -> None:
    odd = place.root / name
    odd.mkdir()
    (odd / "secret").write_text("sk-1")
    (odd / "plain").write_text("beside")
    said = await place.run(
        "cat plain; cat secret; echo x > made && cat made",
        at=odd,
        writes=False,
        writable=(f"{odd}/sub/",),
        hidden=(f"{odd}/secret",),
    )
    assert "beside" in said
    assert ("sk-1" not in said and "x\n" not in said) is IS_CONFINED, said


@pytest.mark.parametrize("broad", ["/", "home"])
async def test_a_broad_working_directory_is_open_as_a_whole(place: Place, broad: str) -> None:
    (place.home / "auth.json").write_text("sk-1")
    said = await place.run(
        f"echo x > {place.home}/made && cat {place.home}/made {place.home}/auth.json",
        at=Path("/") if broad == "/" else place.home,
        hidden=("~/auth.json",),
    )
    assert said == "x\nsk-1"


async def test_a_working_directory_that_is_gone_is_refused_by_its_name(place: Place) -> None:
    place.work.rmdir()
    await place.run("echo x")
    assert isinstance(place.exit, NotStarted)
    assert (place.exit.error, place.exit.path) == ("ENOENT", str(place.work))


@pytest.mark.parametrize("shape", ["worktree", "below", "submodule"])
async def test_what_git_keeps_elsewhere_is_written(place: Place, shape: str) -> None:
    work = repository(place.root / "repo", shape)
    said = await place.run(
        "git commit -q --allow-empty -m made && git log -1 --format=%s; echo x > ../beside",
        at=work,
    )
    assert "made" in said, said
    assert (work.parent / "beside").exists() is not IS_CONFINED


async def test_signals_reach_what_the_program_has_started_and_nothing_else(place: Place) -> None:
    """At every depth of its own: another session, and a child whose parent has ended."""
    with subprocess.Popen(["sleep", "600"]) as outside:
        try:
            tries = f"kill -0 {outside.pid} && echo seen; kill -STOP $PPID && echo held runner;"
            tries += f"kill {outside.pid} && echo ended outside;"
            said = await place.run(
                f"{tries if IS_SCOPED else ''} sleep 600 & kill $! && echo ended child;"
                "(setsid sleep 600 & echo $! > pid); kill $(cat pid) && echo ended orphan"
            )
            assert "ended child" in said
            assert "ended orphan" in said
            for refused in ("seen", "ended outside", "held runner"):
                assert refused not in said
            assert outside.poll() is None
        finally:
            outside.kill()


async def test_the_runner_ends_what_a_confined_program_has_left(place: Place) -> None:
    mark = unique_mark()
    await place.run(f"trap '' TERM; (MARK={mark} setsid sleep 600 &); echo started")
    assert isinstance(place.exit, ProcessExit)
    assert place.exit.gone
    assert pids_with(mark) == []


CONNECT = """
import socket, sys
try:
    socket.socket(socket.AF_UNIX).connect(sys.argv[1].replace("@", "\\0"))
    print("reached", sys.argv[1])
except PermissionError:
    print("refused", sys.argv[1])
"""
LISTEN = """
import socket, subprocess, sys
with socket.socket(socket.AF_UNIX) as own:
    own.bind(sys.argv[2].replace("@", "\\0"))
    own.listen()
    subprocess.run([sys.executable, "-I", "-c", sys.argv[1], sys.argv[2]])
"""


async def test_abstract_sockets_lead_to_what_the_program_has_started(place: Place) -> None:
    name = f"@fallbackd-{unique_mark()}"
    with socket.socket(socket.AF_UNIX) as outside:
        outside.bind(name.replace("@", "\0"))
        outside.listen()
        (place.work / "connect.py").write_text(CONNECT)
        (place.work / "listen.py").write_text(LISTEN)
        said = await place.run(
            f"{sys.executable} -I connect.py {name};"
            f'{sys.executable} -I listen.py "$(cat connect.py)" {name}-own'
        )
    assert (f"refused {name}\n" in said) is IS_SCOPED, said
    assert f"reached {name}-own\n" in said


FORGED = {
    "another repository": "gitdir: {victim}/.git",
    "a worktree of another": "gitdir: {victim}/.git/worktrees/w",
    "no repository": "gitdir: {victim}",
    "a pipe": None,
}


@pytest.mark.parametrize("forged", FORGED)
async def test_a_forged_pointer_of_git_opens_nothing(place: Place, forged: str) -> None:
    victim = place.root / "victim"
    repository(victim, "worktree")
    text = FORGED[forged]
    if text is None:
        os.mkfifo(place.work / ".git")
    else:
        (place.work / ".git").write_text(text.format(victim=victim) + "\n")
    said = await place.run(
        f"echo x > {victim}/.git/hooks/post-commit && echo wrote; echo x > in && echo end"
    )
    assert "end" in said
    assert ("wrote" not in said) is IS_CONFINED


async def test_a_link_in_place_of_a_repository_opens_nothing(place: Place) -> None:
    repository(place.root / "victim", "below")
    (place.work / ".git").symlink_to(place.root / "victim" / ".git")
    said = await place.run("echo x > .git/config && echo wrote")
    assert ("wrote" not in said) is IS_CONFINED


def repository(root: Path, shape: str) -> Path:
    """A working directory of it."""
    environ = {
        **os.environ,
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_AUTHOR_NAME": "T",
        "GIT_AUTHOR_EMAIL": "t@example.invalid",
        "GIT_COMMITTER_NAME": "T",
        "GIT_COMMITTER_EMAIL": "t@example.invalid",
    }

    def git(*words: str, cwd: Path = root) -> None:
        subprocess.run(["git", *words], cwd=cwd, env=environ, check=True, capture_output=True)

    root.mkdir()
    git("init", "-q")
    git("config", "user.name", "T")
    git("config", "user.email", "t@example.invalid")
    git("commit", "-q", "--allow-empty", "-m", "start")
    if shape == "worktree":
        work = root.parent / f"{root.name}-trees" / "w"
        git("worktree", "add", "-q", str(work))
        return work
    if shape == "submodule":
        part = root.parent / "part"
        repository(part, "below")
        git("-c", "protocol.file.allow=always", "submodule", "add", "-q", str(part), "part")
        for key, value in (("user.name", "T"), ("user.email", "t@example.invalid")):
            git("config", key, value, cwd=root / "part")
        return root / "part"
    (root / "sub").mkdir()
    return root / "sub"


# --- the rules themselves, with limits and kernels that this one is not -------------------------

BUILD = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from fallbackd.transports.process.runner import confine
given = json.loads(sys.argv[2])
confine.MAX_ENTRIES = given.pop("most", confine.MAX_ENTRIES)
abi, tries = given.pop("abi", None), given.pop("tries")
words = {"cwd": "", "made": [], "writable": [], "readable": [], "hidden": [], **given}
rules = confine.build(words, abi=abi)
if rules is not None:
    rules.enter()
found = {"is_built": rules is not None}
for name, (path, how) in tries.items():
    try:
        os.truncate(path, 0) if how == "truncate" else open(path, how).close()
        found[name] = True
    except PermissionError:
        found[name] = False
print(json.dumps(found))
"""


def built(**given: Any) -> dict[str, bool]:
    """What a process can do under such rules: `tries` are names to (path, mode of `open`)."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", BUILD, str(ROOT / "daemon"), json.dumps(given)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, bool] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("abi", [0, 1])
def test_a_kernel_that_cannot_leaves_programs_as_they_were(tmp_path: Path, abi: int) -> None:
    found = built(abi=abi, tries={"write": (str(tmp_path / "x"), "w")})
    assert found == {"is_built": False, "write": True}


def test_before_linux_6_2_a_file_elsewhere_can_be_truncated_and_nothing_else(
    tmp_path: Path,
) -> None:
    path = tmp_path / "x"
    path.write_text("kept")
    tries = {"write": (str(path), "a"), "truncate": (str(path), "truncate")}
    found = built(abi=min(2, kernel_abi()), tries=tries)
    is_held = kernel_abi() >= 2
    assert found == {"is_built": is_held, "write": not is_held, "truncate": True}


def test_thousands_of_neighbours_are_each_allowed(tmp_path: Path) -> None:
    for number in range(3000):
        (tmp_path / f"d{number}").mkdir()
    (tmp_path / "d2999" / "x").touch()
    (tmp_path / "secret").touch()
    tries = {"beside": (str(tmp_path / "d2999" / "x"), "r"), "it": (str(tmp_path / "secret"), "r")}
    found = built(hidden=[str(tmp_path / "secret")], tries=tries)
    assert found == {"is_built": IS_CONFINED, "beside": True, "it": not IS_CONFINED}


def test_beside_too_many_neighbours_nothing_is_hidden(tmp_path: Path) -> None:
    """The bound of what a start may cost: everything else is still as it should be."""
    crowd = tmp_path / "crowd"
    crowd.mkdir()
    for name in ("a", "b", "c", "secret"):
        (crowd / name).touch()
    (tmp_path / "key").touch()
    tries = {
        "in the crowd": (str(crowd / "secret"), "r"),
        "elsewhere": (str(tmp_path / "key"), "r"),
        "write": (str(crowd / "a"), "w"),
    }
    hidden = [str(crowd / "secret"), str(tmp_path / "key")]
    entries = max(len(os.listdir(path)) for path in (tmp_path, *tmp_path.parents))
    assert built(hidden=hidden, tries=tries, most=entries)["in the crowd"] is not IS_CONFINED
    for number in range(entries):
        (crowd / f"more{number}").touch()
    found = built(hidden=hidden, tries=tries, most=entries)
    held = not IS_CONFINED
    assert found == {
        "is_built": IS_CONFINED,
        "in the crowd": True,
        "elsewhere": held,
        "write": held,
    }


TOOL = Toolchain(
    name="tool",
    programs=("a-tool",),
    signs=("Toolfile",),
    writes=("${TOOL_HOME:-~/.tool}/cache/",),
    files=("${TOOL_HOME:-~/.tool}/.lock",),
)
USE = "echo x > ~/.tool/cache/x && echo cached; echo x > ~/.tool/.lock && echo locked;"
USE += "echo x > ~/.tool/bin && echo installed; echo x > ~/.tool/other && echo beside"


@pytest.mark.parametrize("wanted_by", ["program", "sign", "sign of the repository"])
async def test_a_tool_writes_its_own_places_which_are_made_private(
    place: Place, wanted_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = place.work
    if wanted_by == "program":
        (place.root / "bin").mkdir()
        (place.root / "bin" / "a-tool").touch()
        monkeypatch.setenv("PATH", f"{place.root / 'bin'}:{os.environ['PATH']}")
    else:
        (place.work / "Toolfile").touch()
    if wanted_by == "sign of the repository":
        (place.work / ".git").mkdir()
        at = place.work / "below"
        at.mkdir()
    said = await place.run(USE, at=at, toolchains=(TOOL,))
    if IS_CONFINED:
        assert "cached\nlocked\n" in said
        assert "installed" not in said
        assert "beside" not in said
        assert stat.S_IMODE((place.home / ".tool").stat().st_mode) == 0o700
        assert stat.S_IMODE((place.home / ".tool" / "cache").stat().st_mode) == 0o700


async def test_nothing_is_made_for_a_tool_that_is_not_there(place: Place) -> None:
    await place.run("true", toolchains=(TOOL,))
    assert not (place.home / ".tool").exists()


async def test_places_of_a_tool_that_are_there_are_written_without_its_program(
    place: Place,
) -> None:
    (place.home / ".tool" / "cache").mkdir(parents=True)
    said = await place.run(USE, toolchains=(TOOL,))
    assert "cached" in said
    assert ("beside" in said) is not IS_CONFINED


async def test_a_tool_writes_nothing_where_the_program_may_only_read(place: Place) -> None:
    (place.home / ".tool" / "cache").mkdir(parents=True)
    said = await place.run(USE, toolchains=(TOOL,), writes=False)
    assert ("cached" in said) is not IS_CONFINED


async def test_a_file_in_the_place_of_a_directory_stays_writable(place: Place) -> None:
    (place.home / ".agent").write_text("old")
    said = await place.run("echo x > ~/.agent && echo wrote", writable=("~/.agent/",))
    assert "wrote" in said


async def test_tmux_has_a_socket_of_its_own(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMUX", "/tmp/of-the-person,1,0")
    said = await place.run('echo "${TMUX-none} $TMUX_TMPDIR"')
    assert said == f"none {place.attempt}/tmp\n"


def test_for_a_program_with_a_sandbox_of_its_own_its_places_are_made_and_listed(
    place: Place,
) -> None:
    (place.work / "Toolfile").touch()
    (place.home / "file").touch()
    subprocess.run(["git", "init", "-q", str(place.work)], check=True)
    given = ("~/.agent/", "~/.agent/below/", "~/file", "~/missing")
    confinement = Confinement(cwd=str(place.work), writable=given, toolchains=(TOOL,))
    environ = {"HOME": str(place.home), "PATH": "/usr/bin", "TMPDIR": str(place.root)}
    directories, repositories = open_places(confinement, environ)
    assert directories == (f"{place.home}/.agent", f"{place.home}/.tool/cache")
    assert repositories == (f"{place.work}/.git",)
    assert (place.home / ".agent" / "below").is_dir()
    assert not (place.home / "missing").exists()
