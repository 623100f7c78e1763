"""What is known of backends without spending anything: `status --verbose` and `doctor`."""

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from msgspec import structs
from tests.support.agents import program
from tests.support.clock import ManualClock
from tests.support.command import run_client
from tests.support.daemon import InProcess, in_process
from tests.support.provider import Provider, provider

from fallbackd.api.host import Trouble
from fallbackd.app.lifecycle import troubles
from fallbackd.app.private import Guard
from fallbackd.core.protocol import HttpRequest, NoAnswer
from fallbackd.ports.transport import Fetched
from fallbackd_client.errors import RpcError


def config(p: Provider, cli: Path) -> str:
    def http(name: str, **more: object) -> str:
        rows = {"kind": "openai-http", "base_url": f"{p.url(name)}/v1", "model": "m", **more}
        lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in rows.items())
        return f"[backends.{name}]\n{lines}\n"

    key = '\ncredentials = [{ label = "work", env = "KEY" }]\n'
    gone = '\ncredentials = [{ label = "lost", env = "NOWHERE" }]\n'
    return (
        http("good") + key + http("other", model="old") + key + http("refused") + key
        + http("unkeyed") + gone
        + f'[backends.cli]\nkind = "generic-cli"\ncommand = [{json.dumps(str(cli))}]\n'
        + '[backends.none]\nkind = "generic-cli"\ncommand = ["no-such-program-here"]\n'
    )  # fmt: skip


def rungs(status: dict[str, Any], name: str) -> dict[str, tuple[bool | None, str]]:
    found = status["readiness"][name]["rungs"]
    return {one["name"]: (one["ok"], one["detail"]) for one in found}


async def test_each_rung_is_climbed_for_free_and_once_in_thirty_seconds(tmp_path: Path) -> None:
    """With cases 002-532 and field-771."""
    clock = ManualClock()
    body = 'echo "$*" >> "$0.asked"; [ "$1" = --version ] && echo tool 1.2.3'
    cli = program(tmp_path / "bin", "tool", body)
    async with provider() as p:
        for name in ("good", "other"):
            p.offer(name, "m", "n")
        p.behave("refused", "401")
        async with in_process(tmp_path, config(p, cli), env={"KEY": "hush"}, clock=clock) as daemon:
            found = await daemon.client.call("status", {"verbose": True})
            assert rungs(found, "good")["login"] == (True, "credential work")
            assert rungs(found, "good")["models"] == (True, "2 models")
            assert rungs(found, "good")["request"] == (None, "none yet")
            assert rungs(found, "other")["models"] == (
                None,
                "old is not among its 2 models",
            )
            assert rungs(found, "unkeyed")["login"][0] is False
            assert "NOWHERE" in rungs(found, "unkeyed")["login"][1]
            assert "models" not in rungs(found, "unkeyed"), "without a key nobody is asked"
            assert rungs(found, "cli")["program"] == (True, f"{cli} tool 1.2.3")
            assert rungs(found, "none")["program"] == (
                False,
                "no-such-program-here is not on PATH",
            )
            assert "hush" not in json.dumps(found)
            assert (
                "readiness" not in await daemon.client.call("status")
                or not (await daemon.client.call("status"))["readiness"]
            )

            asked = len(p.looks)
            again = await daemon.client.call("status", {"verbose": True})
            assert again["readiness"] == found["readiness"]
            assert len(p.looks) == asked
            clock.advance(31)
            await daemon.client.call("status", {"verbose": True})
            assert len(p.looks) == 2 * asked
            assert p.log == [], "nothing that is billed was asked"
            listed = (await daemon.client.call("delegation.list"))["delegations"]
            assert listed == []
            states = (await daemon.client.call("health"))["health"]
            assert states["good"]["state"] == "healthy", states["good"]
            assert states["other"]["state"] == "healthy", states["other"]
            assert rungs(found, "refused")["models"] == (False, "HTTP 401: auth")
            assert Path(f"{cli}.asked").read_text() == "--version\n", "kept while the file is"

            shown = await run_client(daemon.socket, "status", "--verbose")
            assert "2 models" in shown.out
            examined = await run_client(daemon.socket, "--json", "doctor")
            whats = [one["what"] for one in json.loads(examined.out)["findings"]]
            assert any(one.startswith("unkeyed: login:") for one in whats)


async def test_offline_nobody_is_asked_and_nobody_is_blamed(tmp_path: Path) -> None:
    far = '[backends.far]\nkind = "openai-http"\nbase_url = "https://far.example/v1"\nmodel = "m"\n'
    async with in_process(tmp_path, far) as daemon:
        daemon.engine.world = structs.replace(daemon.engine.world, has_route=lambda: False)
        found = await daemon.client.call("status", {"verbose": True})
        assert rungs(found, "far")["models"] == (None, "this machine has no network")
        assert (await daemon.client.call("health"))["health"]["far"]["state"] == "healthy"


VERSION_3 = """\
case "$1" in
--version) echo opencode v3.0.0 ;;
*) printf '\\nERROR\\n  Unrecognized flag: --dir in command opencode %s\\n' "$1" >&2; exit 1 ;;
esac"""
NAMED = "opencode 3.0.0 is not supported yet: fallbackd works with versions 1 and 2"


@pytest.mark.parametrize("serve", ["true", "false"])
async def test_a_later_version_of_opencode_is_named_when_it_has_refused(
    tmp_path: Path, serve: str
) -> None:
    path = program(tmp_path / "bin", "opencode", VERSION_3)
    env = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}
    config = f'[backends.opencode]\nkind = "opencode"\nserve = {serve}\n'
    async with in_process(tmp_path, config, env=env) as daemon:
        refused = await daemon.client.call(
            "delegate", {"prompt": "x", "chain": ["opencode"], "wait": "finished"}
        )
        failure = refused["failure"]
        assert (failure["reason"], failure["detail"]) == ("not_configured", "version")
        await daemon.client.call("status", {"verbose": True})
        (said,) = [one for one in troubles_of(daemon) if one.kind == "version"]
        assert said.message == f"{NAMED}; {path} gets no work, and its sessions are not protected"


async def test_a_package_says_the_version_before_its_program_is_run(tmp_path: Path) -> None:
    package = tmp_path / "node_modules" / "@opencode" / "cli"
    real = program(package / "bin", "opencode", "echo never run >&2; exit 1")
    (package / "package.json").write_text('{"name": "@opencode/cli", "version": "3.0.0"}')
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "opencode").symlink_to(real)
    env = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}
    async with in_process(tmp_path, '[backends.opencode]\nkind = "opencode"\n', env=env) as daemon:
        await daemon.engine.readiness.look(daemon.engine.settings.policy.backends)
        entry = (await daemon.client.call("health"))["health"]["opencode"]
        assert (entry["reason"], entry["detail"]) == ("not_configured", "version")
        assert [NAMED in one.message for one in troubles_of(daemon)] == [True]
        (package / "package.json").write_text('{"name": "opencode-ai", "version": "1.18.33"}')
        os.utime(real, (1.0, 1.0))
        await daemon.engine.readiness.look(daemon.engine.settings.policy.backends)
        entry = (await daemon.client.call("health"))["health"]["opencode"]
        assert entry["state"] == "healthy"
        assert troubles_of(daemon) == []


async def test_the_version_of_a_package_of_another_name_is_not_that_of_a_program_in_it(
    tmp_path: Path,
) -> None:
    path = program(tmp_path / "bin", "opencode", "echo 1.18.33")
    (tmp_path / "package.json").write_text('{"name": "my-site", "version": "2.1.4"}')
    async with in_process(tmp_path, env={"PATH": f"{path.parent}:/usr/bin:/bin"}) as daemon:
        assert daemon.engine.world.probe.known_version(str(path)) is None
        assert troubles_of(daemon) == []


async def test_a_command_of_the_users_own_has_a_version_of_its_own(tmp_path: Path) -> None:
    path = program(tmp_path / "bin", "wrapper", "echo 2.3.1")
    config = f'[backends.opencode]\nkind = "opencode"\ncommand = ["{path}"]\n'
    async with in_process(tmp_path, config) as daemon:
        found = await daemon.client.call("status", {"verbose": True})
        assert rungs(found, "opencode")["program"] == (True, f"{path} 2.3.1")
        await daemon.engine.readiness.look(daemon.engine.settings.policy.backends)
        entry = (await daemon.client.call("health"))["health"]["opencode"]
        assert entry["state"] == "healthy"
        assert troubles_of(daemon) == []


def troubles_of(daemon: InProcess) -> list[Trouble]:
    return [one for one in troubles(Guard(()), None, daemon.engine) if one.kind == "version"]


class Recorder:
    """In place of the network: whatever is asked is written down, and not sent."""

    def __init__(self) -> None:
        self.asked: list[HttpRequest] = []

    async def fetch(self, request: HttpRequest) -> Fetched:
        self.asked.append(request)
        return Fetched(exit=NoAnswer(exception="ConnectError", text="", at=0.0, gone=True))

    async def version(self, path: str) -> str | None:
        return None

    def known_version(self, path: str) -> str | None:
        return None


async def test_a_mistyped_address_sends_no_key_to_the_usual_host(tmp_path: Path) -> None:
    key = 'credentials = [{ label = "main", env = "CORP_KEY" }]\n'
    text = f'[backends.corp]\nkind = "openai-http"\nbase_url = "htps://llm.example/v1"\n{key}'
    text += f'[backends.plain]\nkind = "openai-http"\nmodel = "m"\n{key}'
    async with in_process(tmp_path, text, env={"CORP_KEY": "hush"}) as daemon:
        recorder = Recorder()
        daemon.engine.world = structs.replace(
            daemon.engine.world, probe=recorder, has_route=lambda: True
        )
        found = await daemon.client.call("status", {"verbose": True})
        ok, detail = rungs(found, "corp")["models"]
        assert ok is False
        assert "set backends.corp.base_url" in detail
        hosts = [urlsplit(one.url).hostname for one in recorder.asked if one.credential]
        assert hosts == ["api.openai.com"], "of the one that wrote no address, and no other"
        with pytest.raises(RpcError) as refused:
            await daemon.client.call("resolve", {"backend": "corp", "chain": ["corp"]})
        data = refused.value.data
        assert isinstance(data, dict)
        [verdict] = data["candidates"]
        assert (verdict["verdict"], verdict["backend"]) == ("not_configured", "corp")


LACKING = """\
[backends.claude-api]
kind = "anthropic-http"
[backends.gpt]
kind = "openai-http"
model = "m"
[backends.google]
kind = "google-http"
model = "m"
[backends.local]
kind = "openai-http"
base_url = "http://127.0.0.1:1/v1"
model = "m"
"""


async def test_a_vendor_that_answers_nobody_without_a_key_is_said_to_lack_it(
    tmp_path: Path,
) -> None:
    async with in_process(tmp_path, LACKING, env={"GOOGLE_API_KEY": "k"}) as daemon:
        daemon.engine.world = structs.replace(daemon.engine.world, probe=Recorder())
        found = await daemon.client.call("status", {"verbose": True})
        for name, key in (("claude-api", "ANTHROPIC_API_KEY"), ("gpt", "OPENAI_API_KEY")):
            assert rungs(found, name)["login"] == (False, f"{key} is not set for the daemon")
        assert rungs(found, "google")["login"] == (True, "$GOOGLE_API_KEY")
        assert rungs(found, "local")["login"][0] is None
        # A program that calls the provider itself has a key of its own.
        chosen = await daemon.client.call("resolve", {"chain": ["gpt"]})
        assert chosen["backend"] == "gpt"
