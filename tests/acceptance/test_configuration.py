"""The configuration of a daemon that works: taken over as it changes, kept when it is bad."""

import re
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.agents import ECHO, backend_script
from tests.support.command import run_client
from tests.support.daemon import HANG_S, Daemon, running

from fallbackd_client.errors import RpcError

WAITS = 'cat >/dev/null; echo begun; while [ ! -e "$HOME/goes" ]; do sleep 0.05; done; echo end'
SETTLES = "[defaults]\nsettle_s = {}\n"


def tables(tmp_path: Path) -> str:
    bin_dir = tmp_path / "bin"
    return backend_script(bin_dir, "echo", ECHO) + backend_script(bin_dir, "slow", WAITS)


async def settle_s(daemon: Daemon) -> float:
    found = await daemon.client.call("config.get")
    value: float = found["config"]["defaults"]["settle_s"]
    return value


async def until_it_settles_in(daemon: Daemon, value: float) -> None:
    with anyio.fail_after(HANG_S):
        while await settle_s(daemon) != value:
            await anyio.sleep(0.02)


async def by_writing(daemon: Daemon, text: str) -> None:
    daemon.config_path.write_text(text)


async def by_renaming(daemon: Daemon, text: str) -> None:
    beside = daemon.config_path.with_suffix(".new")
    beside.write_text(text)
    beside.rename(daemon.config_path)


async def by_a_symbolic_link(daemon: Daemon, text: str) -> None:
    """As tools do that keep their files elsewhere: the name is a link, and the link is replaced."""
    place = Path(tempfile.mkdtemp(dir=daemon.home))
    (place / "config.toml").write_text(text)
    link = daemon.config_path.with_suffix(".link")
    link.symlink_to(place / "config.toml")
    link.rename(daemon.config_path)


async def by_a_change_behind_a_symbolic_link(daemon: Daemon, text: str) -> None:
    value = await settle_s(daemon) + 20
    await by_a_symbolic_link(daemon, re.sub(r"settle_s = [\d.]+", f"settle_s = {value}", text))
    await until_it_settles_in(daemon, value)
    target = daemon.config_path.resolve()
    beside = target.with_suffix(".new")
    beside.write_text(text)
    beside.rename(target)


async def by_a_signal(daemon: Daemon, text: str) -> None:
    daemon.config_path.write_text(text)
    daemon.send(signal.SIGHUP)


async def by_a_call(daemon: Daemon, text: str) -> None:
    daemon.config_path.write_text(text)
    ran = await run_client(daemon.socket, "config", "reload")
    assert ran.code == 0, ran.err


@asynccontextmanager
async def working(tmp_path: Path, config: str) -> AsyncIterator[tuple[Daemon, dict[str, Any]]]:
    """A daemon with running work, which is seen to end well."""
    async with running(tmp_path, config) as daemon:
        begun = await daemon.client.call(
            "delegate", {"prompt": "x", "backend": "slow", "settle_s": 60}
        )
        assert begun["state"] == "running"
        yield daemon, begun
        (daemon.home / "goes").touch()
        ended = await daemon.client.call("delegation.wait", {"delegation": begun["delegation"]})
        assert (ended["state"], ended["text"]) == ("succeeded", "begun\nend")
        assert len(ended["attempts"]) == 1


WAYS: tuple[Callable[[Daemon, str], Awaitable[None]], ...] = (
    by_writing,
    by_renaming,
    by_a_symbolic_link,
    by_a_change_behind_a_symbolic_link,
    by_a_signal,
    by_a_call,
)


async def test_a_change_of_any_kind_takes_effect_without_dropping_work(tmp_path: Path) -> None:
    text = tables(tmp_path)
    async with working(tmp_path, SETTLES.format(3.0) + text) as (daemon, _):
        assert await settle_s(daemon) == 3.0
        for number, change in enumerate(WAYS):
            value = 10.5 + number
            await change(daemon, SETTLES.format(value) + text)
            await until_it_settles_in(daemon, value)


async def test_a_backend_that_is_taken_out_finishes_what_it_does(tmp_path: Path) -> None:
    async with working(tmp_path, tables(tmp_path)) as (daemon, _):
        daemon.config_path.write_text(backend_script(tmp_path / "bin", "other", ECHO))
        with anyio.fail_after(HANG_S):
            while "other" not in (await daemon.client.call("health"))["health"]:
                await anyio.sleep(0.02)
        with pytest.raises(RpcError) as unknown:
            await daemon.client.call("delegate", {"prompt": "x", "backend": "slow"})
        assert unknown.value.code == -32001


BAD_FILES = (b"", b"\n", b"this = = no toml", b"[defaults\n", b"\xff\xfe", b"a = 1\na = 2\n")


async def test_a_bad_file_keeps_the_last_good_one_and_is_said(tmp_path: Path) -> None:
    good = SETTLES.format(3.0) + tables(tmp_path)
    async with working(tmp_path, good) as (daemon, _):
        for bad in BAD_FILES:
            daemon.config_path.write_bytes(bad)
            (error,) = await errors_are(daemon, 1)
            assert str(daemon.config_path) in error["path"]
            assert error["message"]
            assert await settle_s(daemon) == 3.0
            daemon.config_path.write_text(good)
            await errors_are(daemon, 0)
        assert daemon.log().count("config.rejected") >= len(BAD_FILES)
        daemon.config_path.write_bytes(BAD_FILES[0])
        await errors_are(daemon, 1)
        done = await daemon.client.call(
            "delegate", {"prompt": "hello", "backend": "echo", "wait": "finished"}
        )
        assert done["text"] == "hello"
        ran = await run_client(daemon.socket, "config", "reload")
        assert ran.code == 78
        with pytest.raises(RpcError) as refused:
            await daemon.client.call("config.reload")
        assert refused.value.code == -32006
        assert refused.value.data["errors"]  # type: ignore[index]
        shown = await run_client(daemon.socket, "status")
        assert "config.toml" in shown.out


async def errors_are(daemon: Daemon, count: int) -> list[dict[str, str]]:
    """Wait until the status tells so many errors of the configuration."""
    with anyio.fail_after(HANG_S):
        while True:
            found = (await daemon.client.call("status"))["daemon"]["config_errors"]
            if len(found) == count:
                return list(found)
            await anyio.sleep(0.02)


async def test_a_bad_field_does_not_void_its_neighbours(tmp_path: Path) -> None:
    config = (
        '[defaults]\nmax_fallback_depth = 99\nsettle_s = 2.0\nwait_threshold_s = "long"\n'
        "[policy.rate_limit]\nwindow_s = 5\nmax_window_s = 1234\n[policy.nonsense]\nwindow_s = 60\n"
        + tables(tmp_path)
    )
    async with running(tmp_path, config) as daemon:
        found = await daemon.client.call("config.get")
        defaults = found["config"]["defaults"]
        assert defaults["settle_s"] == 2.0
        assert defaults["max_fallback_depth"] == 3
        assert found["config"]["policy"]["rate_limit"]["window_s"] == 300
        assert found["config"]["policy"]["rate_limit"]["max_window_s"] == 1234
        checked = await daemon.client.call("config.check")
        told = " ".join(one["path"] + one["message"] for one in checked["warnings"])
        for name in ("max_fallback_depth", "wait_threshold_s", "window_s", "nonsense"):
            assert name in told
        assert (await daemon.client.call("health"))["health"]["echo"]["state"] == "healthy"


async def test_a_file_that_is_deleted_leaves_the_built_in_configuration(tmp_path: Path) -> None:
    async with running(tmp_path, SETTLES.format(3.0) + tables(tmp_path)) as daemon:
        daemon.config_path.unlink()
        await until_it_settles_in(daemon, 5.0)
        health = (await daemon.client.call("health"))["health"]
        assert "codex" in health
        assert "echo" not in health
        daemon.config_path.write_text(SETTLES.format(1.5))
        await until_it_settles_in(daemon, 1.5)


async def test_an_empty_file_is_taken_for_one_that_is_being_written(tmp_path: Path) -> None:
    good = SETTLES.format(3.0) + tables(tmp_path)
    async with running(tmp_path, good) as daemon:
        daemon.config_path.write_text("")
        with pytest.raises(RpcError) as refused:
            await daemon.client.call("config.reload")
        assert "is empty" in str(refused.value.data)
        assert await settle_s(daemon) == 3.0
        daemon.config_path.write_text(good)
        await errors_are(daemon, 0)
        daemon.config_path.write_text("# nothing of our own\n")
        await until_it_settles_in(daemon, 5.0)


async def test_a_named_file_that_is_missing_is_said_until_it_is_there(tmp_path: Path) -> None:
    named = tmp_path / "typo.toml"
    async with running(tmp_path, arguments=("--config", str(named))) as daemon:
        assert "there is no such file" in daemon.log()
        for words in (("doctor",), ("config", "check")):
            ran = await run_client(daemon.socket, *words, env=daemon.env)
            assert "there is no such file" in ran.out
        named.write_text(SETTLES.format(7))
        await daemon.client.call("config.reload")
        assert await settle_s(daemon) == 7
        assert (await daemon.client.call("status"))["daemon"]["config_warnings"] == []
