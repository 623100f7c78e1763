"""What callers send wrongly: a clear error each, and nothing is lost."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.support.agents import ECHO, backend_script, chain, ok, program
from tests.support.command import run_client
from tests.support.daemon import Daemon, running

from fallbackd_client.errors import RequestTooLarge, RpcError

MIB = 2**20


def echo(tmp_path: Path) -> str:
    return backend_script(tmp_path / "bin", "echo", ECHO)


async def refused(daemon: Daemon, method: str, **params: Any) -> RpcError:
    """The error; after it the daemon serves as before, and no delegation exists."""
    with pytest.raises(RpcError) as error:
        await daemon.client.call(method, params)
    assert (await daemon.client.call("daemon.ping"))["pid"] == daemon.pid
    assert (await daemon.client.call("delegation.list"))["delegations"] == []
    return error.value


async def test_an_unknown_backend_is_named_with_those_that_are_known(tmp_path: Path) -> None:
    async with running(tmp_path, echo(tmp_path)) as daemon:
        error = await refused(daemon, "delegate", prompt="x", backend="nobody")
        assert error.code == -32001
        assert "nobody" in error.message
        assert "echo" in error.message
        ran = await run_client(daemon.socket, "delegate", "x", "--backend", "nobody")
        assert ran.code == 2
        assert "nobody" in ran.err
        assert "Traceback" not in ran.err


async def test_an_unknown_backend_in_a_chain_is_named(tmp_path: Path) -> None:
    async with running(tmp_path, echo(tmp_path)) as daemon:
        error = await refused(daemon, "delegate", prompt="x", chain=["echo", "nobody"])
        assert error.code == -32001
        assert "nobody" in error.message


async def test_an_empty_chain_is_said_to_be_empty(tmp_path: Path) -> None:
    async with running(tmp_path, echo(tmp_path)) as daemon:
        for params in ({"chain": []}, {"chain": "no-such-chain"}):
            error = await refused(daemon, "delegate", prompt="x", **params)
            assert error.code == -32602, (params, error)
            assert "chain" in error.message


async def test_a_missing_binary_is_shown_and_skipped(tmp_path: Path) -> None:
    config = (
        '[backends.gone]\nkind = "generic-cli"\ncommand = ["/nowhere/agent"]\n'
        + echo(tmp_path)
        + chain("gone", "echo")
    )
    async with running(tmp_path, config) as daemon:
        done = await daemon.client.call(
            "delegate", {"prompt": "hello", "backend": "gone", "wait": "finished"}
        )
        assert (done["state"], done["served_by"], done["text"]) == ("succeeded", "echo", "hello")
        assert done["hops"][0]["reason"] == "not_installed"
        alone = await daemon.client.call(
            "delegate", {"prompt": "x", "backend": "gone", "wait": "finished", "failover": False}
        )
        assert alone["state"] == "refused"
        assert alone["attempts"] == []
        assert alone["candidates"][0]["verdict"] == "not_installed"
        health = await daemon.client.call("health", {"action": "get", "target": "gone"})
        assert health["health"]["gone"]["state"] == "broken"
        assert health["health"]["gone"]["reason"] == "not_installed"


async def test_a_program_that_may_not_be_executed_is_not_installed(tmp_path: Path) -> None:
    path = program(tmp_path / "bin", "plain", "echo no")
    path.chmod(0o644)
    config = f'[backends.plain]\nkind = "generic-cli"\ncommand = ["{path}"]\n'
    async with running(tmp_path, config + echo(tmp_path) + chain("plain", "echo")) as daemon:
        done = await daemon.client.call(
            "delegate", {"prompt": "hello", "backend": "plain", "wait": "finished"}
        )
        assert done["served_by"] == "echo"
        assert done["hops"][0]["reason"] in ("not_installed", "permission")


async def test_a_program_with_an_interpreter_that_is_gone_does_not_stop_the_work(
    tmp_path: Path,
) -> None:
    program(tmp_path / "bin", "odd", "#!/nowhere/interpreter\n")
    config = f'[backends.odd]\nkind = "generic-cli"\ncommand = ["{tmp_path}/bin/odd"]\n'
    async with running(tmp_path, config + echo(tmp_path) + chain("odd", "echo")) as daemon:
        done = await daemon.client.call(
            "delegate", {"prompt": "hello", "backend": "odd", "wait": "finished"}
        )
        assert done["served_by"] == "echo"
        assert done["attempts"][0]["failure"]["reason"] == "not_installed"


async def test_a_working_directory_that_is_gone_is_named(tmp_path: Path) -> None:
    async with running(tmp_path, echo(tmp_path)) as daemon:
        gone = str(tmp_path / "gone")
        error = await refused(daemon, "delegate", prompt="x", backend="echo", cwd=gone)
        assert error.code in (-32602, -32005)
        assert gone in error.message
        for cwd in ("relative", str(daemon.config_path), "/", str(daemon.home)):
            error = await refused(daemon, "delegate", prompt="x", backend="echo", cwd=cwd)
            assert error.code in (-32602, -32005), cwd
        ran = await run_client(daemon.socket, "delegate", "x", "--backend", "echo", "--cwd", gone)
        assert ran.code in (2, 77)
        assert gone in ran.err


async def test_a_directory_that_goes_away_while_the_work_waits_is_no_crash(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    body = f"cat >/dev/null; rmdir '{place}'; exit 75"
    config = (
        backend_script(tmp_path / "bin", "first", body, more=f'writable = ["{tmp_path}"]')
        + echo(tmp_path)
        + chain("first", "echo")
    )
    async with running(tmp_path, config) as daemon:
        done = await daemon.client.call(
            "delegate",
            {"prompt": "x", "backend": "first", "wait": "finished", "cwd": str(place)},
        )
        assert done["state"] in ("failed", "refused")
        assert done["failure"] is not None
        health = await daemon.client.call("health", {"action": "get", "target": "echo"})
        assert health["health"]["echo"]["state"] == "healthy"


async def test_a_prompt_beyond_the_limit_is_refused_with_what_to_do(tmp_path: Path) -> None:
    async with running(tmp_path, echo(tmp_path)) as daemon:
        prompt = "x" * (5 * MIB)
        with pytest.raises(RequestTooLarge):
            await daemon.client.call("delegate", {"prompt": prompt, "backend": "echo"})
        ran = await run_client(
            daemon.socket, "delegate", "-", "--backend", "echo", stdin=prompt.encode()
        )
        assert ran.code == 2
        assert "file" in ran.err
        assert (await daemon.client.call("daemon.ping"))["pid"] == daemon.pid


async def test_a_prompt_just_below_the_limit_goes_through_whole(tmp_path: Path) -> None:
    async with running(tmp_path, echo(tmp_path)) as daemon:
        prompt = ("0123456789abcde\n" * (4 * MIB // 16))[: 4 * MIB - 400_000].rstrip("\n")
        ran = await run_client(
            daemon.socket,
            *("--json", "delegate", "-", "--backend", "echo"),
            stdin=prompt.encode(),
            cwd=str(daemon.work_dir),
        )
        assert ran.code == 0, ran.err
        assert ran.json["state"] == "succeeded"
        kept = Path(ran.json["log_path"]).parent
        assert kept.exists()
        counted = await daemon.client.call(
            "delegation.get", {"delegation": ran.json["delegation"]}, timeout_s=60
        )
        assert counted["text"] == prompt


async def test_a_nul_in_the_prompt_is_refused_with_what_to_do(tmp_path: Path) -> None:
    async with running(tmp_path, echo(tmp_path)) as daemon:
        error = await refused(daemon, "delegate", prompt="a\0b", backend="echo")
        assert error.code == -32602
        assert "NUL" in error.message
        ran = await run_client(
            daemon.socket,
            *("delegate", "-", "--backend", "echo"),
            stdin=b"a\0b",
            cwd=str(daemon.work_dir),
        )
        assert ran.code == 2
        assert "NUL" in ran.err


async def test_a_session_id_is_never_a_path(tmp_path: Path) -> None:
    """Case 000-041."""
    async with running(tmp_path, echo(tmp_path)) as daemon:
        done = await daemon.client.call(
            "delegate",
            {"prompt": "x", "backend": "echo", "session": "../../escape", "wait": "finished"},
        )
        assert done["session"] == "../../escape"
        assert Path(done["log_path"]).is_relative_to(daemon.state_dir)
        assert not list(tmp_path.rglob("*escape*"))
        for session in ("", "x" * 201, "a\nb", "a\x1bb"):
            with pytest.raises(RpcError) as error:
                await daemon.client.call("delegate", {"prompt": "x", "session": session})
            assert error.value.code == -32602


async def test_wrong_types_are_named_with_their_field(tmp_path: Path) -> None:
    async with running(tmp_path, echo(tmp_path)) as daemon:
        for params, field in (
            ({}, "prompt"),
            ({"prompt": 5}, "prompt"),
            ({"prompt": "x", "timeout_s": "soon"}, "timeout_s"),
            ({"prompt": "x", "wait": "forever"}, "wait"),
        ):
            error = await refused(daemon, "delegate", **params)
            assert error.code == -32602
            assert field in json.dumps([error.message, error.data])


async def test_the_same_request_id_is_the_same_work(tmp_path: Path) -> None:
    body = 'cat >/dev/null; echo >> "$HOME/first.runs"; echo done'
    config = backend_script(tmp_path / "bin", "first", body) + backend_script(
        tmp_path / "bin", "other", ok("other")
    )
    async with running(tmp_path, config) as daemon:
        call = {"prompt": "x", "backend": "first", "request_id": "r1", "wait": "finished"}
        first = await daemon.client.call("delegate", call)
        again = await daemon.client.call("delegate", call)
        assert again["delegation"] == first["delegation"]
        assert len((daemon.home / "first.runs").read_text().splitlines()) == 1
        with pytest.raises(RpcError) as error:
            await daemon.client.call("delegate", {**call, "prompt": "another"})
        assert error.value.code == -32602


async def both_healthy(daemon: Daemon) -> None:
    health = (await daemon.client.call("health", {"action": "list"}))["health"]
    assert [health[name]["state"] for name in ("echo", "other")] == ["healthy", "healthy"]


UNPRIVILEGED = ("setpriv", "--bounding-set=-all", "--inh-caps=-all") if os.geteuid() == 0 else ()
"""Without them root may enter every directory."""


@pytest.mark.parametrize("mode", [0o000, 0o400, 0o100])
async def test_a_directory_that_the_daemon_may_not_use_is_refused_and_marks_no_backend(
    tmp_path: Path, mode: int
) -> None:
    config = echo(tmp_path) + backend_script(tmp_path / "bin", "other", ok("mine"))
    config += '[chains]\necho = ["other"]\n'
    (tmp_path / "closed" / "below").mkdir(parents=True)
    (tmp_path / "closed").chmod(mode)
    try:
        async with running(tmp_path, config, wrapper=UNPRIVILEGED) as daemon:
            wrong = [tmp_path / "closed"]
            if mode != 0o100:
                wrong.append(tmp_path / "closed" / "below")
            for path in wrong:
                error = await refused(daemon, "delegate", prompt="x", backend="echo", cwd=str(path))
                assert error.code == -32602
                assert str(path) in error.message
                assert "ermission" in error.message
            await both_healthy(daemon)
            done = await daemon.client.call(
                "delegate", {"prompt": "hm", "backend": "echo", "wait": "finished"}
            )
            assert (done["state"], done["served_by"], done["hops"]) == ("succeeded", "echo", [])
    finally:
        (tmp_path / "closed").chmod(0o700)


@pytest.mark.parametrize(
    ("prompt", "word"),
    [("", "prompt"), (" \n\t", "empty"), ("a\0b", "NUL"), ("x" * 8000, "tokens")],
)
async def test_a_prompt_that_no_candidate_can_take_is_refused_and_marks_no_backend(
    tmp_path: Path, prompt: str, word: str
) -> None:
    small = "context_tokens = 1000\n"
    config = backend_script(tmp_path / "bin", "echo", ECHO, more=small)
    config += backend_script(tmp_path / "bin", "other", ok("mine"), more=small)
    config += '[chains]\necho = ["other"]\n'
    async with running(tmp_path, config) as daemon:
        error = await refused(daemon, "delegate", prompt=prompt, backend="echo")
        assert error.code == -32602
        assert word in error.message
        await both_healthy(daemon)


async def test_a_directory_that_is_closed_under_the_work_ends_it_and_marks_no_other_backend(
    tmp_path: Path,
) -> None:
    closing = 'cat >/dev/null; chmod 000 "$PWD"; echo "rate limited" >&2; exit 75'
    config = backend_script(tmp_path / "bin", "first", closing)
    config += backend_script(tmp_path / "bin", "other", ok("mine"))
    config += backend_script(tmp_path / "bin", "echo", ECHO)
    config += '[chains]\nfirst = ["other", "echo"]\n'
    async with running(tmp_path, config, wrapper=UNPRIVILEGED) as daemon:
        (tmp_path / "project").mkdir()
        wanted = {"prompt": "x", "backend": "first", "cwd": str(tmp_path / "project")}
        done = await daemon.client.call("delegate", {**wanted, "wait": "finished"})
        (tmp_path / "project").chmod(0o700)
        assert (done["state"], done["failure"]["detail"]) == ("failed", "no_cwd")
        assert [one["backend"] for one in done["attempts"]] == ["first", "other"]
        await both_healthy(daemon)


async def test_permission_that_every_backend_is_denied_marks_none(tmp_path: Path) -> None:
    denied = (
        "cat >/dev/null; echo \"Error: EACCES: permission denied, open '/work/.env'\" >&2; exit 1"
    )
    config = backend_script(tmp_path / "bin", "echo", denied)
    config += backend_script(tmp_path / "bin", "other", denied)
    config += '[chains]\necho = ["other"]\n'
    async with running(tmp_path, config) as daemon:
        done = await daemon.client.call(
            "delegate", {"prompt": "x", "backend": "echo", "wait": "finished"}
        )
        assert [one["failure"]["reason"] for one in done["attempts"]] == ["permission"] * 2
        assert done["state"] == "refused"
        assert "permission" in done["message"]
        await both_healthy(daemon)
