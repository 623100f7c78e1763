"""Finding work again: what is on record, page by page, and asking for it once more."""

from pathlib import Path
from typing import Any

import anyio
from tests.support.agents import ECHO, HANGING, backend_script, ok
from tests.support.command import run_client
from tests.support.daemon import HANG_S, Daemon, running


async def _done(daemon: Daemon, **params: Any) -> dict[str, Any]:
    asked = {"wait": "finished", "failover": False, **params}
    found: dict[str, Any] = await daemon.client.call("delegate", asked)
    return found


async def test_what_is_on_record_comes_page_by_page_with_the_first_words_of_the_prompt(
    tmp_path: Path,
) -> None:
    config = backend_script(tmp_path, "echo", ECHO) + backend_script(tmp_path, "hang", HANGING)
    async with running(tmp_path, config) as daemon:
        names = [
            (await _done(daemon, prompt=f"word {n}\n" + "x" * 300, backend="echo"))["delegation"]
            for n in range(5)
        ]
        hanging = await _done(daemon, prompt="wait here", backend="hang", wait="accepted")
        page = {"brief": True, "ended": True, "limit": 2}
        seen: list[dict[str, Any]] = []
        while True:
            found = await daemon.client.call("delegation.list", page)
            seen += found["lines"]
            if found["next_cursor"] is None:
                break
            page["cursor"] = found["next_cursor"]
        assert [one["delegation"] for one in seen] == names[::-1]
        assert [one["prompt"][:8] for one in seen] == [f"word {n} x" for n in range(4, -1, -1)]
        assert max(len(one["prompt"]) for one in seen) == 200
        found = await daemon.client.call("delegation.list", {"brief": True, "ended": False})
        (line,) = found["lines"]
        assert (line["delegation"], line["prompt"]) == (hanging["delegation"], "wait here")
        shown = await run_client(daemon.socket, "list")
        assert [line.split()[1] for line in shown.out.splitlines()] == [
            "STATE",
            "running",
            *["succeeded"] * 5,
        ]
        await daemon.client.call("delegation.cancel", {"delegation": hanging["delegation"]})


async def test_work_is_found_by_its_backend_and_by_its_directory(tmp_path: Path) -> None:
    config = backend_script(tmp_path, "one", ok("1")) + backend_script(tmp_path, "two", ok("2"))
    async with running(tmp_path, config) as daemon:
        inner, beside = daemon.work_dir / "inner", daemon.work_dir.with_name("work-too")
        for directory in (inner, beside):
            directory.mkdir()
        first = await _done(daemon, prompt="a", backend="one", cwd=str(inner))
        await _done(daemon, prompt="b", backend="two", cwd=str(beside))

        async def listed(**params: Any) -> list[str]:
            found = await daemon.client.call("delegation.list", {"brief": True, **params})
            return [one["delegation"] for one in found["lines"]]

        assert await listed(backend="one") == [first["delegation"]]
        assert await listed(cwd=str(daemon.work_dir)) == [first["delegation"]]
        assert await listed(backend="two", cwd=str(inner)) == []


async def test_a_cursor_that_no_answer_gave_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        ran = await run_client(
            daemon.socket, "call", "delegation.list", '{"cursor": "nonsense", "brief": true}'
        )
        assert ran.code == 2
        assert "next_cursor" in ran.err


async def test_a_delegation_is_repeated_with_its_prompt_and_its_parameters(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, backend_script(tmp_path, "echo", ECHO)) as daemon:
        first = await _done(
            daemon,
            prompt="say this",
            backend="echo",
            session="talk",
            cwd=str(daemon.work_dir),
            permissions="read",
            metadata={"ticket": 7},
            settle_s=1,
        )
        assert first["text"] == "say this"
        ran = await run_client(daemon.socket, "retry", first["delegation"][:14])
        assert ran.code == 0
        assert ran.out.endswith("continues with this request:\n\nsay this\n")  # in its session
        newest, old = (await daemon.client.call("delegation.list"))["delegations"]
        assert old["delegation"] == first["delegation"] != newest["delegation"]
        for name in ("session", "requested", "metadata", "mode"):
            assert newest[name] == first[name]
        request = daemon.state_dir / "runs" / newest["delegation"] / "request"
        assert request.stat().st_mode & 0o777 == 0o600
        assert "say this" not in request.read_text()


async def test_what_still_runs_is_not_repeated(tmp_path: Path) -> None:
    async with running(tmp_path, backend_script(tmp_path, "hang", HANGING)) as daemon:
        begun = await _done(daemon, prompt="x", backend="hang", wait="accepted")
        with anyio.fail_after(HANG_S):
            ran = await run_client(daemon.socket, "retry", begun["delegation"])
        assert ran.code == 2
        assert "has not ended" in ran.err
        await daemon.client.call("delegation.cancel", {"delegation": begun["delegation"]})


async def test_a_drain_names_what_it_waits_for_and_can_be_taken_back(tmp_path: Path) -> None:
    async with running(tmp_path, backend_script(tmp_path, "hang", HANGING)) as daemon:
        begun = await _done(daemon, prompt="x", backend="hang", wait="accepted")
        found = await daemon.client.call("daemon.drain")
        assert [one["delegation"] for one in found["waits_for"]] == [begun["delegation"]]
        refused = await run_client(
            daemon.socket, "delegate", "--backend", "hang", "--cwd", str(daemon.work_dir), "y"
        )
        assert refused.code == 75
        assert (await daemon.client.call("daemon.undrain")) == {"state": "running"}
        assert (await daemon.client.call("daemon.ping"))["state"] == "running"
        second = await _done(daemon, prompt="z", backend="hang", wait="accepted")
        for one in (begun, second):
            await daemon.client.call("delegation.cancel", {"delegation": one["delegation"]})
