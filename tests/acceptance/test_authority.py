"""An agent can do through the daemon only what it may do itself, at the control socket."""

import json
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.agents import backend_script, ok
from tests.support.daemon import Daemon, running
from tests.support.running_engine import until

from fallbackd.transports.process.runner.landlock import WHOLE_ABI, kernel_abi
from fallbackd_client.aio import AsyncClient

ASK = r"""
import json, os, socket, sys, time
with socket.socket(socket.AF_UNIX) as peer:
    peer.connect(os.environ["XDG_RUNTIME_DIR"] + "/fallbackd/control.sock")
    lines, names = peer.makefile(), {}
    for number, (method, params) in enumerate(json.load(open(os.environ["HOME"] + "/asked"))):
        if method == "until":
            place = os.environ["HOME"] + "/" + params["file"]
            open(place + ".awaited", "w").close()
            while not os.path.exists(place):
                time.sleep(0.02)
            continue
        call = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        text = json.dumps(call)
        for earlier, name in names.items():
            text = text.replace(f"#{earlier}", name)
        peer.sendall(text.encode() + b"\n")
        answer = lines.readline()
        names[number] = json.loads(answer).get("result", {}).get("delegation", "")
        print(answer, end="")
"""
SCRIPT = f"cat >/dev/null\nXDG_RUNTIME_DIR=@RUN@ {sys.executable} - <<'END'\n{ASK}\nEND"


def config(tmp_path: Path, more: str = "") -> str:
    bin_dir = tmp_path / "bin"
    script = SCRIPT.replace("@RUN@", '"$XDG_RUNTIME_DIR"')
    allowed = 'allow_env = ["XDG_RUNTIME_DIR", "GIVEN", "OTHER"]'
    return (
        more
        + backend_script(bin_dir, "agent", script, more=allowed)
        + backend_script(bin_dir, "helper", ok("helped"), more=allowed)
    )


async def asked(
    daemon: Daemon, *calls: tuple[str, dict[str, Any]], **work: Any
) -> list[dict[str, Any]]:
    """The answers that an agent gets to these calls."""
    Path(daemon.env["HOME"], "asked").write_text(json.dumps(calls))
    params = {
        "prompt": "x",
        "backend": "agent",
        "cwd": str(daemon.work_dir),
        "wait": "finished",
        "env": {"XDG_RUNTIME_DIR": daemon.env["XDG_RUNTIME_DIR"], **work.pop("env", {})},
        **work,
    }
    outer = await daemon.client.call("delegate", params)
    assert outer["text"], outer
    return [json.loads(line) for line in outer["text"].splitlines()]


FOR_PERSONS: list[tuple[str, dict[str, Any]]] = [
    ("question.list", {}),
    ("question.answer", {"question": "d1.q1", "choice": "wait"}),
    ("health", {"action": "mark", "target": "helper", "reason": "rate_limit"}),
    ("health", {"action": "clear", "target": "helper"}),
    ("health", {"action": "pause", "target": "helper"}),
    ("config.get", {}),
    ("config.check", {}),
    ("config.reload", {}),
    ("daemon.drain", {}),
    ("daemon.shutdown", {}),
    ("usage", {}),
    ("exchange.list", {}),
    ("share.status", {}),
    ("signatures.list", {}),
    ("notify.test", {}),
    ("opencode.status", {}),
]


async def test_what_only_a_person_may_do_is_refused_inside_a_delegation(tmp_path: Path) -> None:
    async with running(tmp_path, config(tmp_path)) as daemon:
        answers = await asked(daemon, *FOR_PERSONS, permissions="full")
        for (method, _), answer in zip(FOR_PERSONS, answers, strict=True):
            assert answer.get("error", {}).get("data", {}).get("kind") == "not_permitted", method
            assert (
                "only a person may do this; you are asking from inside delegation d"
                in (answer["error"]["message"])
            )
        health = await daemon.client.call("health", {"action": "get", "target": "helper"})
        assert health["health"]["helper"]["state"] == "healthy"
        assert (await daemon.client.call("daemon.ping"))["state"] == "running"


@pytest.mark.parametrize(
    ("own", "params", "words"),
    [
        ("read", {"permissions": "full"}, "asked for `full`, this agent has `read`"),
        ("read", {"permissions": "workspace"}, "asked for `workspace`, this agent has `read`"),
        ("workspace", {"permissions": "full"}, "asked for `full`, this agent has `workspace`"),
        ("workspace", {"cwd": "@HOME@/.ssh"}, "may let others write in"),
        ("full", {"cwd": "@HOME@/.codex"}, "withheld"),
        ("full", {"cwd": "@STATE@"}, "withheld"),
        ("read", {"cwd": "@STATE@", "permissions": "read"}, "withheld"),
        ("full", {"allow_metered": True}, "allow_metered"),
        ("full", {"env": {"GIVEN": "other"}}, "GIVEN"),
        ("full", {"env": {"OTHER": "x"}}, "OTHER"),
    ],
)
async def test_work_from_inside_gets_no_more_than_the_agent_has(
    own: str, params: dict[str, Any], words: str, tmp_path: Path
) -> None:
    async with running(tmp_path, config(tmp_path)) as daemon:
        home = Path(daemon.env["HOME"])
        status = await daemon.client.call("status")
        for name in (".ssh", ".codex"):
            (home / name).mkdir(exist_ok=True)
        if "cwd" in params:
            cwd = params["cwd"].replace("@HOME@", str(home))
            params = {**params, "cwd": cwd.replace("@STATE@", status["daemon"]["state_dir"])}
        params = {"backend": "helper", "prompt": "x", "cwd": str(daemon.work_dir), **params}
        (answer,) = await asked(
            daemon, ("delegate", params), permissions=own, env={"GIVEN": "value"}
        )
        assert words in answer["error"]["message"]
        assert answer["error"]["data"]["kind"] == "not_permitted"
        assert len((await daemon.client.call("delegation.list"))["delegations"]) == 1


@pytest.mark.parametrize("own", ["read", "workspace", "full"])
async def test_work_from_inside_runs_at_the_permissions_of_the_agent(
    own: str, tmp_path: Path
) -> None:
    async with running(tmp_path, config(tmp_path)) as daemon:
        work = {"backend": "helper", "prompt": "x", "cwd": str(daemon.work_dir), "wait": "finished"}
        calls = (("delegate", work), ("delegate", {**work, "env": {"GIVEN": "value"}}))
        first, second = await asked(daemon, *calls, permissions=own, env={"GIVEN": "value"})
        assert (first["result"]["text"], second["result"]["text"]) == ("helped", "helped")


@pytest.mark.parametrize("own", ["read", "workspace"])
async def test_a_backend_that_is_not_confined_lifts_nothing_inside_a_delegation(
    own: str, tmp_path: Path
) -> None:
    script = 'cat >/dev/null; echo x > "$HOME/by-$$"; echo tried'
    free = backend_script(tmp_path / "bin", "free", script, more="confine = false\nwritable = []")
    async with running(tmp_path, config(tmp_path, free)) as daemon:
        work = {"backend": "free", "prompt": "x", "cwd": str(daemon.work_dir), "wait": "finished"}
        (answer,) = await asked(daemon, ("delegate", work), permissions=own)
        assert answer["result"]["text"] == "tried"
        is_confined = kernel_abi() >= WHOLE_ABI
        assert bool(list(Path(daemon.env["HOME"]).glob("by-*"))) is not is_confined
        await daemon.client.call("delegate", {**work, "permissions": own})
        assert list(Path(daemon.env["HOME"]).glob("by-*"))


async def test_an_agent_that_cannot_be_held_is_not_used_inside_a_delegation_below_full(
    tmp_path: Path,
) -> None:
    hermes = '[backends.hermes]\nkind = "hermes-api"\nbase_url = "http://127.0.0.1:9/v1"\n'
    async with running(tmp_path, config(tmp_path, hermes)) as daemon:
        work = {"backend": "hermes", "prompt": "x", "wait": "finished", "failover": False}
        (answer,) = await asked(daemon, ("delegate", work), permissions="workspace")
        (attempt,) = answer["result"]["attempts"]
        evidence = attempt["failure"]["evidence"]
        assert evidence.startswith("hermes is an agent that cannot be held to `workspace`")
        health = await daemon.client.call("health", {"action": "get", "target": "hermes"})
        assert health["health"]["hermes"]["state"] == "healthy"


async def test_others_do_not_exist_for_an_agent_and_its_own_work_does(tmp_path: Path) -> None:
    async with running(tmp_path, config(tmp_path)) as daemon:
        work = {"prompt": "x", "backend": "helper", "cwd": str(daemon.work_dir), "wait": "finished"}
        other = await daemon.client.call(
            "delegate",
            {**work, "session": "theirs", "request_id": "r"},
        )
        name = other["delegation"]
        calls: list[tuple[str, dict[str, Any]]] = [
            ("delegate", {**work, "session": "own"}),
            ("delegation.list", {}),
            ("session.list", {}),
            ("session.get", {"session": "own"}),
        ]
        hidden: list[tuple[str, dict[str, Any]]] = [
            ("delegation.get", {"delegation": name}),
            ("delegation.wait", {"delegation": name}),
            ("delegation.log", {"delegation": name}),
            ("delegation.cancel", {"delegation": name}),
            ("delegation.cancel", {"request_id": "r"}),
            ("delegation.cancel", {"session": "theirs"}),
            ("delegation.reply", {"delegation": name, "prompt": "more"}),
            ("delegation.retry", {"delegation": name}),
            ("explain", {"delegation": name}),
            ("session.get", {"session": "theirs"}),
            ("session.end", {"session": "theirs"}),
            ("delegate", {**work, "session": "theirs"}),
        ]
        answers = await asked(daemon, *calls, *hidden)
        own = answers[0]["result"]["delegation"]
        assert [one["delegation"] for one in answers[1]["result"]["delegations"]] == [own]
        assert [one["session"] for one in answers[2]["result"]["sessions"]] == ["own"]
        assert answers[3]["result"]["session"] == "own"
        for (method, params), answer in zip(hidden, answers[4:], strict=True):
            assert answer["error"]["code"] == -32001, (method, params, answer)
        assert (await daemon.client.call("session.get", {"session": "theirs"}))["session"]


async def test_the_request_id_of_another_caller_neither_gives_nor_blocks_its_work(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, config(tmp_path)) as daemon:
        work = {"prompt": "x", "backend": "helper", "permissions": "read", "wait": "finished"}
        theirs = await daemon.client.call("delegate", {**work, "request_id": "r1"})
        calls: list[tuple[str, dict[str, Any]]] = [
            ("delegate", {**work, "request_id": "r1"}),
            ("delegate", {**work, "request_id": "r1"}),
            ("delegate", {**work, "request_id": "r2"}),
            ("delegation.cancel", {"request_id": "r1"}),
            ("delegation.cancel", {"request_id": "r3"}),
            ("delegate", {**work, "request_id": "r1", "prompt": "y"}),
        ]
        own, again, _, cancelled, unknown, other = await asked(daemon, *calls, permissions="read")
        own_name = own["result"]["delegation"]
        assert own_name != theirs["delegation"]
        assert again["result"]["delegation"] == cancelled["result"]["delegation"] == own_name
        assert "'r3'" in unknown["error"]["message"]
        assert f"'r1' was used for another request ({own_name})" in other["error"]["message"]
        repeated = await daemon.client.call("delegate", {**work, "request_id": "r1"})
        assert repeated["delegation"] == theirs["delegation"]
        for name in ("r2", "r3"):
            mine = await daemon.client.call(
                "delegate", {**work, "request_id": name, "prompt": "mine"}
            )
            assert (mine["parent"], mine["state"]) == (None, "succeeded")


async def test_a_session_that_a_person_continues_is_not_the_agents_any_more(
    tmp_path: Path,
) -> None:
    slow = backend_script(tmp_path / "bin", "slow", "cat >/dev/null; exec sleep 1000")
    async with running(tmp_path, config(tmp_path, slow)) as daemon:
        home = Path(daemon.env["HOME"])
        work = {"prompt": "x", "backend": "helper", "permissions": "read", "session": "main"}
        hidden: list[tuple[str, dict[str, Any]]] = [
            ("session.get", {"session": "main"}),
            ("delegate", work),
            ("delegation.cancel", {"session": "main"}),
            ("session.compacted", {"session": "main"}),
            ("session.end", {"session": "main"}),
        ]
        own = ("delegate", {**work, "wait": "finished"})
        calls = [own, ("until", {"file": "person-done"}), ("delegation.list", {}), *hidden]
        async with anyio.create_task_group() as tasks:
            got: list[dict[str, Any]] = []

            async def ask() -> None:
                got.extend(await asked(daemon, *calls))

            tasks.start_soon(ask)
            await until((home / "person-done.awaited").exists)
            async with AsyncClient(daemon.socket) as person:
                mine = {**work, "prompt": "mine", "wait": "finished"}
                assert (await person.call("delegate", mine))["state"] == "succeeded"
                slow_work = {**work, "backend": "slow", "wait": "accepted"}
                begun = await person.call("delegate", slow_work)
                name = {"delegation": begun["delegation"]}
                (home / "person-done").touch()
                await until(lambda: bool(got))
                found = await person.call("delegation.get", name)
                assert found["state"] == "running"
                await person.call("delegation.cancel", name)
        first, listed, *answers = got
        names = [one["delegation"] for one in listed["result"]["delegations"]]
        assert names == [first["result"]["delegation"]]
        for (method, _), answer in zip(hidden, answers, strict=True):
            assert answer.get("error", {}).get("code") == -32001, (method, answer)


async def test_an_agent_lets_work_wait_but_starts_none_whatever_is_known_of_its_backends(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, config(tmp_path)) as daemon:
        out = {"action": "mark", "target": "helper", "reason": "usage_limit", "ttl_s": 3600}
        await daemon.client.call("health", out)
        work = {"backend": "helper", "prompt": "x", "cwd": str(daemon.work_dir)}
        waiting, moved, started = await asked(
            daemon,
            ("delegate", {**work, "when_available": True, "failover": False, "priority": 100}),
            ("delegation.standby", {"delegation": "#0", "wait_for_s": 60, "priority": 100}),
            ("delegation.standby", {"delegation": "#0", "starts": True}),
        )
        assert waiting["result"]["state"] == "waiting"
        assert moved["result"]["standby"].get("priority", 0) == 0
        assert started["error"]["data"]["kind"] == "not_permitted"
        assert "only a person starts work whatever is known" in started["error"]["message"]


async def test_a_report_from_inside_moves_its_session_and_no_health(tmp_path: Path) -> None:
    keyed = """
[backends.keyed]
kind = "openai-http"
base_url = "http://127.0.0.1:9/v1"
model = "m"
credentials = [{label = "account", env = "KEY"}]
[chains]
"*" = ["keyed", "helper"]
"""
    async with running(tmp_path, config(tmp_path) + keyed, env={"KEY": "k"}) as daemon:
        mark = {"action": "mark", "target": "helper", "reason": "usage_limit", "ttl_s": 900}
        work = {"prompt": "x", "backend": "agent", "session": "own", "permissions": "read"}
        said = {"http_status": 402, "headers": {"retry-after": "86400"}}
        failed = {"session": "own", "outcome": "failure", "evidence": said, "backend": "keyed"}
        used = {"input_tokens": 1000, "cost_usd": 5.0}
        served = {"session": "own", "backend": "helper", "outcome": "success", "usage": used}
        calls: list[tuple[str, dict[str, Any]]] = [
            ("delegate", {**work, "backend": "helper", "wait": "finished"}),
            ("until", {"file": "marked"}),
            ("report", failed),
            ("report", served),
            ("report", {**failed, "next_lease": True}),
        ]
        (home := Path(daemon.env["HOME"])).mkdir(exist_ok=True)
        async with anyio.create_task_group() as tasks:

            async def mark_it() -> None:
                await until((home / "marked.awaited").exists)
                async with AsyncClient(daemon.socket) as person:
                    await person.call("health", mark)
                (home / "marked").touch()

            tasks.start_soon(mark_it)
            _, failure, success, lease = await asked(daemon, *calls)
        assert failure["result"]["failure"]["reason"] == "billing"
        assert "account" not in json.dumps(failure)
        assert success["result"]["health"]["helper"]["reason"] == "usage_limit"
        assert lease["error"]["data"]["kind"] == "not_permitted"
        health = (await daemon.client.call("health", {"action": "list"}))["health"]
        assert health["keyed"]["state"] == "healthy"
        assert health["helper"]["reason"] == "usage_limit"
        spent = await daemon.client.call("usage")
        assert "5.0" not in json.dumps(spent)


async def test_what_is_said_of_candidates_from_inside_names_no_account_and_no_path(
    tmp_path: Path,
) -> None:
    http = 'kind = "openai-http"\nbase_url = "http://127.0.0.1:9/v1"\nmodel = "m"\n'
    keys = "".join(
        f'[backends.{name}]\n{http}credentials = [{{label = "account-{name}", env = "{env}"}}]\n'
        for name, env in (("keyed", "KEY"), ("keyless", "SECRET_VARIABLE"))
    )
    async with running(tmp_path, config(tmp_path) + keys, env={"KEY": "k"}) as daemon:
        work = {"prompt": "x", "backend": "helper", "permissions": "read"}
        other = await daemon.client.call("delegate", {**work, "wait": "finished"})
        calls: list[tuple[str, dict[str, Any]]] = [
            ("resolve", {"backend": "keyed"}),
            ("resolve", {"chain": ["keyless"]}),
            ("resolve", {"chain": ["codex"]}),
            ("delegate", {**work, "differs_from": [other["delegation"]]}),
            ("delegate", {**work, "differs_from": ["d0"]}),
            ("delegate", {**work, "differs_from": ["d0"] * 101}),
        ]
        *answers, known, unknown, many = await asked(daemon, *calls)
        assert answers[0]["result"]["backend"] == "keyed"
        assert answers[0]["result"]["turn"] is None
        assert answers[1]["error"]["data"]["candidates"]
        for hidden in ("account-", "SECRET_VARIABLE", daemon.env["PATH"]):
            assert hidden not in json.dumps(answers)
        said = known["error"]["message"].replace(other["delegation"], "d0")
        assert said == unknown["error"]["message"]
        assert "at most 100" in many["error"]["message"]


async def test_an_agent_sees_that_backends_are_there_but_no_path_account_or_work_of_others(
    tmp_path: Path,
) -> None:
    env = {"OTHER_API_KEY": "x"}
    async with running(tmp_path, config(tmp_path), env=env) as daemon:
        work = {"prompt": "x", "backend": "helper", "cwd": str(daemon.work_dir), "wait": "finished"}
        await daemon.client.call("delegate", {**work, "session": "theirs"})
        note = {"note": "secret words", "ttl_s": 60}
        await daemon.client.call(
            "health", {"action": "mark", "target": "helper", "reason": "secret", **note}
        )
        login = Path(daemon.env["HOME"], ".codex")
        login.mkdir(exist_ok=True)
        calls: list[tuple[str, dict[str, Any]]] = [
            ("status", {"verbose": True, "programs": True}),
            ("health", {"action": "list"}),
            ("suggest", {"goal": "x"}),
            ("resolve", {"backend": "agent"}),
            ("classify", {"evidence": {"text": "429 Too Many Requests", "http_status": 429}}),
            ("daemon.ping", {}),
            ("status", {"session": "theirs"}),
            ("resolve", {"backend": "agent", "session": "theirs"}),
            ("resolve", {"backend": "agent", "lease": True}),
            (
                "report",
                {"backend": "agent", "outcome": "failure", "evidence": {"http_status": 429}},
            ),
            ("report", {"backend": "agent", "outcome": "success", "session": "theirs"}),
            ("suggest", {"goal": "x", "project_root": str(login)}),
            ("events.subscribe", {}),
        ]
        answers = await asked(daemon, *calls)
        status = answers[0]["result"]
        assert (await daemon.client.call("status"))["daemon"]["kept_back"] == ["OTHER_API_KEY"]
        assert not status["daemon"].get("kept_back")
        assert status["health"]["helper"]["state"] == "broken"
        (own,) = (await daemon.client.call("delegation.list", {"backend": "agent"}))["delegations"]
        assert answers[5]["result"]["attempt"] == f"{own['delegation']}.1"
        for number, answer in enumerate(answers[:6]):
            assert "result" in answer, calls[number]
            text = json.dumps(answer)
            state = (await daemon.client.call("status"))["daemon"]["state_dir"]
            for hidden in ("theirs", "secret", str(daemon.work_dir), state):
                assert hidden not in text, calls[number]
        for number, answer in enumerate(answers[6:], 6):
            assert answer["error"]["data"]["kind"] in ("unknown", "not_permitted"), calls[number]


async def test_who_asked_is_on_record_and_explained(tmp_path: Path) -> None:
    async with running(tmp_path, config(tmp_path)) as daemon:
        work = {"prompt": "x", "backend": "helper", "cwd": str(daemon.work_dir), "wait": "finished"}
        (answer,) = await asked(daemon, ("delegate", work))
        inner = await daemon.client.call("delegation.get", answer["result"])
        outer = inner["parent"]
        assert inner["asked_by"] == f"{outer}.1"
        explained = await daemon.client.call("explain", {"delegation": inner["delegation"]})
        assert explained["asked_by"] == f"{outer}.1"
        assert f"asked for from inside {outer} by attempt {outer}.1" in json.dumps(explained)


ALLOWED = """
[roles.lead]
chain = ["agent"]
[authority.lead]
may = ["delegate:workspace"]
"""


async def test_a_role_may_be_given_more_and_those_below_it_only_what_it_has(tmp_path: Path) -> None:
    async with running(tmp_path, config(tmp_path, ALLOWED)) as daemon:
        cwd = str(daemon.work_dir)
        work = {"prompt": "x", "backend": "helper", "cwd": cwd, "permissions": "workspace"}
        calls = [
            ("delegate", {**work, "wait": "finished"}),
            ("delegate", {**work, "permissions": "full"}),
            ("delegate", {**work, "role": "lead", "permissions": "read", "wait": "accepted"}),
        ]
        done, refused, lead = await asked(
            daemon, *calls, backend=None, role="lead", permissions="read"
        )
        assert done["result"]["state"] == "succeeded"
        assert "asked for `full`, this agent has `workspace`" in refused["error"]["message"]
        assert lead["result"]["delegation"]
        checked = await daemon.client.call("config.check")
        assert any("agents of the role" in one["message"] for one in checked["warnings"])


DETACHED = (
    r"""
import os, time
if os.fork():
    os._exit(0)
os.setsid()
middle = os.getpid()
if os.fork():
    os._exit(0)
while os.getppid() == middle or os.path.exists(os.environ["HOME"] + "/wait"):
    time.sleep(0.01)
"""
    + ASK
    + r"""
sys.stdout.flush()
open(os.environ["HOME"] + "/done", "w").close()
"""
)


async def test_a_process_without_parent_stays_inside_when_the_daemon_is_started_anew(
    tmp_path: Path,
) -> None:
    script = f"""cat >/dev/null
cat > "$HOME/ask.py" <<'END'
{DETACHED}
END
touch "$HOME/wait" "$HOME/begun"
env -i HOME="$HOME" XDG_RUNTIME_DIR="$XDG_RUNTIME_DIR" {sys.executable} "$HOME/ask.py"
until test -e "$HOME/done"; do sleep 0.05; done
"""
    bin_dir = tmp_path / "bin"
    text = backend_script(bin_dir, "agent", script, more='allow_env = ["XDG_RUNTIME_DIR"]')
    async with running(tmp_path, text) as daemon:
        home = Path(daemon.env["HOME"])
        (home / "asked").write_text(json.dumps([("daemon.ping", {}), ("daemon.drain", {})]))
        work = await daemon.client.call(
            "delegate",
            {
                "prompt": "x",
                "backend": "agent",
                "cwd": str(daemon.work_dir),
                "permissions": "full",
                "wait": "accepted",
                "env": {"XDG_RUNTIME_DIR": daemon.env["XDG_RUNTIME_DIR"]},
            },
        )
        await until(lambda: (home / "begun").exists())
        await daemon.kill()
        await daemon.start()
        (home / "wait").unlink()
        done = await daemon.client.call("delegation.wait", {"delegation": work["delegation"]})
        ping, drain = map(json.loads, done["text"].splitlines())
        assert ping["result"]["attempt"] == f"{work['delegation']}.1"
        assert drain["error"]["data"]["kind"] == "not_permitted"


async def test_what_a_killed_supervisor_has_left_is_no_person_for_the_next_daemon(
    tmp_path: Path,
) -> None:
    script = f"""cat >/dev/null
cat > "$HOME/ask.py" <<'END'
{DETACHED}
END
touch "$HOME/wait"
exec > "$HOME/said"
env -i HOME="$HOME" XDG_RUNTIME_DIR="$XDG_RUNTIME_DIR" {sys.executable} "$HOME/ask.py"
kill -KILL $PPID
"""
    bin_dir = tmp_path / "bin"
    text = backend_script(bin_dir, "agent", script, more='allow_env = ["XDG_RUNTIME_DIR"]')
    async with running(tmp_path, text) as daemon:
        home = Path(daemon.env["HOME"])
        (home / "asked").write_text(json.dumps([("config.get", {}), ("daemon.drain", {})]))
        params = {"prompt": "x", "backend": "agent", "cwd": str(daemon.work_dir)}
        params |= {"permissions": "full", "wait": "finished", "failover": False}
        env = {"XDG_RUNTIME_DIR": daemon.env["XDG_RUNTIME_DIR"]}
        ended = await daemon.client.call("delegate", {**params, "env": env})
        assert ended["state"] == "failed"
        await daemon.kill()
        await daemon.start()
        (home / "wait").unlink()
        await until(lambda: (home / "done").exists())
        for line in (home / "said").read_text().splitlines():
            assert json.loads(line)["error"]["data"]["kind"] == "not_permitted", line
        assert (await daemon.client.call("daemon.ping"))["state"] == "running"
