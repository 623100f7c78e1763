"""Real agents that stay after their prompt and take the next one of the session."""

import http.client
import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import anyio
import pytest
from tests.e2e.processes import Process, appear, matching, runs
from tests.e2e.scenes import Scene, scene
from tests.e2e.test_remembering import FIRST, SECOND
from tests.e2e.test_resumption import said
from tests.e2e.test_stopping import a_moment
from tests.support.gateway import free_port
from tests.support.provider_frames import TEXT
from tests.support.served import until
from tests.support.survival.points import RESIDENT

from fallbackd.lib.failpoints import OPTION, VARIABLE
from fallbackd_client.errors import RpcError

WORDS = {"claude": ("--input-format", "stream-json"), "codex": ("app-server",)}
"""Of the command line of one that stays."""
every_kind = pytest.mark.parametrize("kind", WORDS)


def stays(s: Scene, kind: str = "claude") -> Callable[[Process], bool]:
    """The agents of this scene that may stay."""
    wanted, home = runs(*WORDS[kind]), f"HOME={s.home.path}"

    def is_one(process: Process) -> bool:
        return wanted(process) and home in process.env and leads(process.pid)

    return is_one


def leads(pid: int) -> bool:
    """It is no copy of another one that is about to start something else."""
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False


@every_kind
async def test_the_second_prompt_of_a_session_goes_to_the_same_process(
    tmp_path: Path, kind: str
) -> None:
    async with scene(tmp_path, residents=2) as s:
        used, pids = [], set()
        for prompt in (FIRST, SECOND, SECOND):
            done = await s.delegate(kind, prompt=prompt, session="talk")
            assert (done["state"], done["text"]) == ("succeeded", TEXT), s.daemon.log()
            used.append(done["usage"]["cost_usd"] or done["usage"]["output_tokens"])
            pids |= {process.pid for process in matching(stays(s, kind))}
        assert len(pids) == 1
        last = said(s.provider.calls(kind, kind="main")[-1])
        assert last.index(FIRST) < last.index(TEXT) < last.index(SECOND)
        assert "trust" not in (s.home.path / ".codex" / "config.toml").read_text()
        assert 0 < used[1] < 1.5 * used[0], "each is told what it has used itself"
        await s.daemon.client.call("daemon.shutdown")
        assert await s.daemon.wait() == 0
        assert matching(stays(s, kind)) == []


@every_kind
async def test_a_prompt_goes_to_the_program_that_was_prepared_for_it(
    tmp_path: Path, kind: str
) -> None:
    async with scene(tmp_path, residents=2) as s:
        asked = {"backend": kind, "cwd": str(s.home.work)}
        found = await s.daemon.client.call("prepare", asked)
        assert found == {"backend": kind, "model": None, "ready": True}
        (before,) = await appear(stays(s, kind))
        (shown,) = (await s.daemon.client.call("status"))["residents"]
        assert (shown["program"], shown["cwd"]) == (kind, str(s.home.work))
        assert s.provider.calls(kind, kind="main") == []
        assert (await s.delegate(kind, session="talk"))["text"] == TEXT, s.daemon.log()
        assert [process.pid for process in matching(stays(s, kind))] == [before.pid]


async def test_the_next_candidate_is_ready_when_the_first_reaches_its_limit(
    tmp_path: Path,
) -> None:
    async with scene(tmp_path, residents=2, backends={"claude": ["retries = 0"]}) as s:
        await s.delegate("claude", then="codex", session="talk")
        (standby,) = await appear(stays(s, "codex"))
        s.provider.behave("claude", "usage_limit")
        done = await s.delegate("claude", then="codex", session="talk")
        assert (done["served_by"], done["text"]) == ("codex", TEXT), s.daemon.log()
        assert [process.pid for process in matching(stays(s, "codex"))] == [standby.pid]


async def test_nothing_stays_unless_it_is_configured(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        assert (await s.delegate("claude", session="talk"))["text"] == TEXT
        assert matching(stays(s)) == []


async def test_other_permissions_have_a_process_of_their_own(tmp_path: Path) -> None:
    async with scene(tmp_path, residents=2) as s:
        for permissions in ("full", "read"):
            done = await s.delegate("claude", session="talk", permissions=permissions)
            assert done["text"] == TEXT, s.daemon.log()
        modes = {
            process.argv[process.argv.index("--permission-mode") + 1]
            for process in matching(stays(s))
        }
        assert "plan" in modes


async def test_a_codex_that_stays_keeps_its_commands_to_their_places(tmp_path: Path) -> None:
    async with scene(tmp_path, residents=2) as s:
        places = (("workspace", tmp_path / "outside"), ("read", s.home.work / "inside"))
        for permissions, place in places:
            s.provider.behave("codex", "tool", "ok", command=f"touch {place}", each_turn=True)
            done = await s.delegate("codex", session="talk", permissions=permissions)
            assert done["state"] == "succeeded", s.daemon.log()
            assert matching(stays(s, "codex"))
            assert not place.exists()
        inside = s.home.work / "written"
        s.provider.behave("codex", "tool", "ok", command=f"touch {inside}", each_turn=True)
        await s.delegate("codex", session="talk", permissions="workspace")
        assert inside.exists()


async def test_a_tool_of_a_later_turn_may_what_that_turn_may(tmp_path: Path) -> None:
    async with scene(tmp_path, residents=2) as s:
        assert (await s.delegate("claude", session="talk", permissions="full"))["text"] == TEXT
        (before,) = matching(stays(s))
        client, found = Path(sys.executable).with_name("fallbackd-client"), tmp_path / "ping.json"
        command = f"{client} --socket {s.daemon.socket} --json ping > {found} 2>&1"
        s.provider.behave("claude", "tool", "ok", command=command)
        done = await s.delegate("claude", session="talk", permissions="full")
        assert done["state"] == "succeeded", s.daemon.log()
        said = json.loads(found.read_text())
        assert said["attempt"] == done["attempts"][0]["attempt"]
        assert said["permissions"] == "full"
        assert [process.pid for process in matching(stays(s))] == [before.pid]


@every_kind
async def test_a_limit_is_failed_over_from_and_the_process_stays_where_it_is_safe(
    tmp_path: Path, kind: str
) -> None:
    async with scene(tmp_path, residents=2, backends={kind: ["retries = 0"]}) as s:
        assert (await s.delegate(kind, session="talk"))["text"] == TEXT
        (before,) = matching(stays(s, kind))
        s.provider.behave(kind, "usage_limit")
        done = await s.delegate(kind, then="opencode", session="talk")
        assert done["served_by"] == "opencode", s.daemon.log()
        assert done["attempts"][0]["failure"]["reason"] in ("rate_limit", "usage_limit")
        # claude would obey settings at once that opencode may write.
        left = [process.pid for process in matching(stays(s, kind))]
        assert left == ([before.pid] if kind == "codex" else [])
        await s.forget_failures()
        s.provider.behave(kind, "ok")
        assert (await s.delegate(kind, session="other"))["text"] == TEXT


@every_kind
async def test_a_cancelled_turn_leaves_no_tool_and_a_process_that_is_ready(
    tmp_path: Path, kind: str
) -> None:
    async with scene(tmp_path, residents=2) as s:
        assert (await s.delegate(kind, session="talk", permissions="full"))["text"] == TEXT
        (before,) = matching(stays(s, kind))
        moment = a_moment()
        s.provider.behave(kind, "tool", command=f"sleep {moment}")
        begun = await s.begin(kind, session="talk", permissions="full")
        await appear(runs("sleep", moment))
        ended = await s.cancel(begun)
        assert ended["state"] == "cancelled", s.daemon.log()
        assert matching(runs("sleep", moment)) == []
        assert [process.pid for process in matching(stays(s, kind))] == [before.pid]


@every_kind
async def test_a_turn_goes_on_while_there_is_no_daemon(tmp_path: Path, kind: str) -> None:
    async with scene(tmp_path, residents=2, patience_s=60) as s:
        for session in ("first", "later"):
            if session == "later":
                s.provider.behave(kind, "ok")
                assert (await s.delegate(kind, session=session))["text"] == TEXT
            s.provider.log.clear()
            s.provider.behave(kind, "slow", pause_s=0.5)
            begun = await s.begin(kind, session=session, request_id=session)
            await s.provider.called(kind)
            await s.daemon.kill()
            await s.daemon.start()
            done = await s.delegate(kind, session=session, request_id=session)
            assert (done["state"], done["text"]) == ("succeeded", TEXT), s.daemon.log()
            assert done["delegation"] == begun["delegation"]
            assert len(done["attempts"]) == 1
            assert len(s.provider.calls(kind, kind="main")) == 1


@every_kind
async def test_none_stays_behind_a_daemon_that_does_not_come_back(
    tmp_path: Path, kind: str
) -> None:
    async with scene(tmp_path, residents=2, patience_s=60) as s:
        assert (await s.delegate(kind, session="rests"))["text"] == TEXT
        await appear(stays(s, kind))
        await s.daemon.kill()
        await until(lambda: matching(stays(s, kind)) == [])
        await s.daemon.start()
        s.provider.log.clear()
        s.provider.behave(kind, "slow", pause_s=0.5)
        begun = await s.begin(kind, session="works", request_id="works")
        await s.provider.called(kind)
        await s.daemon.kill()
        await until(lambda: matching(stays(s, kind)) == [])
        await s.daemon.start()
        done = await s.delegate(kind, session="works", request_id="works")
        assert (done["state"], done["text"]) == ("succeeded", TEXT), s.daemon.log()
        assert done["delegation"] == begun["delegation"]
        assert len(s.provider.calls(kind, kind="main")) == 1


@every_kind
@pytest.mark.timeout(600)
async def test_a_prompt_whose_daemon_dies_at_any_step_before_it_is_sent_is_asked_once(
    tmp_path: Path, kind: str
) -> None:
    async with scene(tmp_path, residents=3, patience_s=60) as s:
        for point in RESIDENT:
            await s.daemon.kill()
            program = s.daemon.program
            s.daemon.program = ("-X", OPTION, *program)
            (number,) = RESIDENT[point]
            s.daemon.env[VARIABLE] = f"{point}=kill@{number}"
            await s.daemon.start()
            s.daemon.program = program
            del s.daemon.env[VARIABLE]
            assert (await s.delegate(kind, session=point))["text"] == TEXT
            s.provider.log.clear()
            async with anyio.create_task_group() as tasks:
                # Its answer may be lost: the client asks the next daemon again.
                tasks.start_soon(partial(s.begin, kind, session=point, request_id=point))
                assert await s.daemon.wait() == -signal.SIGKILL
                await s.daemon.start()
            done = await s.delegate(kind, session=point, request_id=point)
            assert (done["state"], done["text"]) == ("succeeded", TEXT), s.daemon.log()
            assert len(done["attempts"]) == 1
            assert len(s.provider.calls(kind, kind="main")) == 1, point


@every_kind
async def test_a_later_turn_may_call_the_gateway_and_nothing_else_of_it_may(
    tmp_path: Path, kind: str
) -> None:
    port = free_port()
    async with scene(tmp_path, residents=2) as s:
        with s.daemon.config_path.open("a") as file:
            file.write(f"[gateway]\nenabled = true\nport = {port}\n")
        await s.daemon.restart()
        found = tmp_path / "status"
        asks = tmp_path / "asks.py"
        asks.write_text(
            "import http.client, os\n"
            f"line = http.client.HTTPConnection('127.0.0.1', {port})\n"
            "token = os.environ.get('FALLBACKD_GATEWAY_TOKEN', '')\n"
            "line.request('GET', '/v1/models', headers={'Authorization': f'Bearer {token}'})\n"
            f"open({str(found)!r}, 'a').write(f'{{line.getresponse().status}} {{token}}\\n')\n"
        )
        for number in range(2):
            command = f"{sys.executable} {asks} {number}"
            s.provider.behave(kind, "tool", "ok", command=command, each_turn=True)
            done = await s.delegate(kind, session="talk", permissions="full")
            assert done["state"] == "succeeded", s.daemon.log()
        assert len(matching(stays(s, kind))) == 1
        first, second = (line.split() for line in found.read_text().splitlines())
        assert first == second
        assert first[0] == "200"
        with closing(http.client.HTTPConnection("127.0.0.1", port)) as line:
            line.request("GET", "/v1/models", headers={"Authorization": f"Bearer {first[1]}"})
            assert line.getresponse().status == 401, "it is of no use to another process"


async def test_nothing_is_made_ready_by_a_daemon_that_drains(tmp_path: Path) -> None:
    async with scene(tmp_path, residents=2) as s:
        await s.daemon.client.call("daemon.drain")
        with pytest.raises(RpcError) as refused:
            await s.daemon.client.call("prepare", {"backend": "claude", "cwd": str(s.home.work)})
        assert refused.value.kind == "draining"
        assert (await s.daemon.client.call("status"))["residents"] == []
        await s.daemon.client.call("daemon.undrain")
        asked = {"backend": "claude", "cwd": str(s.home.work)}
        assert (await s.daemon.client.call("prepare", asked))["ready"]
