"""The commands that open windows, seen by a program in the place of tmux."""

from pathlib import Path

import anyio
from tests.support.agents import program
from tests.support.daemon import HANG_S

from fallbackd.app.interactive import QUEUE, Windows, client_command
from fallbackd.core.ids import DelegationId

RECORDS = """for word in "$@"; do printf '%s\\n' "$word" >> {place}/words; done
env > {place}/environ
case "$1" in
has-session) [ -e {place}/session ] ;;
list-windows) cat {place}/windows 2>/dev/null ;;
new-*) echo done >> {place}/opened ;;
esac"""


async def opened(tmp_path: Path, **environ: str) -> list[str]:
    """The words of every call, after one window was ordered."""
    program(tmp_path / "bin", "tmux", RECORDS.format(place=tmp_path))
    path = f"{tmp_path}/bin:/usr/bin:/bin"
    windows = Windows({"PATH": path, "HOME": str(tmp_path), **environ}, socket="/s/control.sock")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(windows.run)
        windows.open(DelegationId("d1"), 3)
        with anyio.fail_after(HANG_S):
            while not (tmp_path / "opened").exists():
                await anyio.sleep(0.02)
        tasks.cancel_scope.cancel()
    return (tmp_path / "words").read_text().splitlines()


async def test_the_first_window_makes_the_session_and_the_next_one_joins_it(tmp_path: Path) -> None:
    words = await opened(tmp_path)
    assert "new-session" in words
    (tmp_path / "session").touch()
    (tmp_path / "opened").unlink()
    words = (await opened(tmp_path))[len(words) :]
    assert "new-window" in words
    assert words[words.index("--") + 1 :][: len(client_command()) + 5] == [
        *client_command(),
        *("--socket", "/s/control.sock", "log", "-f", "d1"),
    ]


async def test_no_key_of_the_daemon_reaches_the_server_of_tmux(tmp_path: Path) -> None:
    await opened(tmp_path, ACME_API_KEY="hidden", LC_ALL="C.UTF-8")
    environ = (tmp_path / "environ").read_text()
    assert "LC_ALL=C.UTF-8" in environ
    assert "hidden" not in environ


async def test_ended_windows_go_oldest_first_and_those_that_run_stay(tmp_path: Path) -> None:
    (tmp_path / "windows").write_text("@7 1\n@2 0\n@3 1\n")
    words = await opened(tmp_path)
    killed = [words[at + 2] for at, word in enumerate(words) if word == "kill-window"]
    assert killed == ["@3"]


def test_orders_that_nobody_performs_do_not_pile_up(tmp_path: Path) -> None:
    windows = Windows({}, socket="/s")
    for number in range(QUEUE + 10):
        windows.open(DelegationId(f"d{number}"), 3)
    assert len(windows._ordered) == QUEUE
