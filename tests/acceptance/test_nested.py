"""What is asked for from inside an attempt is part of it, however it is asked for."""

import json
import sys
from pathlib import Path

import pytest
from tests.support.agents import backend_script, ok
from tests.support.daemon import running

RAW = r"""
import json, os, socket
with socket.socket(socket.AF_UNIX) as peer:
    peer.connect(os.environ["XDG_RUNTIME_DIR"] + "/fallbackd/control.sock")
    params = {"prompt": "inner", "backend": "inner", "cwd": os.getcwd(), "wait": "finished"}
    call = {"jsonrpc": "2.0", "id": 1, "method": "delegate", "params": params}
    peer.sendall(json.dumps(call).encode() + b"\n")
    answer = json.loads(peer.makefile().readline())
print(json.dumps(answer.get("result") or answer))
"""
CALL = """
printf '{"prompt":"inner","backend":"inner","cwd":"%s","wait":"finished"}' "$PWD" > "$HOME/params"
{python} -m fallbackd_client.cli.main call delegate "$(cat "$HOME/params")"
"""
CLIENT = """
import json, os
from fallbackd_client import Client
with Client() as client:
    print(json.dumps(client.call("delegate", {
        "prompt": "inner", "backend": "inner", "cwd": os.getcwd(), "wait": "finished"})))
"""


def python(code: str) -> str:
    return f"cat >/dev/null\n{sys.executable} - <<'END'\n{code}\nEND"


ASKING = {
    "a raw socket": python(RAW),
    "a raw socket without any variable": python(RAW).replace(
        f"{sys.executable} -", f'env -i XDG_RUNTIME_DIR="$XDG_RUNTIME_DIR" {sys.executable} -'
    ),
    "call": "cat >/dev/null" + CALL.replace("{python}", sys.executable),
    "the client": python(CLIENT),
}


@pytest.mark.parametrize("how", ASKING)
async def test_work_from_inside_shares_the_directory_of_its_parent(
    how: str, tmp_path: Path
) -> None:
    config = (
        "[defaults]\nwait_threshold_s = 1\n"
        + backend_script(
            tmp_path / "bin",
            "outer",
            ASKING[how],
            more='allow_env = ["PYTHONPATH", "XDG_RUNTIME_DIR"]',
        )
        + backend_script(tmp_path / "bin", "inner", ok("inner answer"))
    )
    async with running(tmp_path, config) as daemon:
        env = {name: daemon.env[name] for name in ("PYTHONPATH", "XDG_RUNTIME_DIR")}
        params = {"backend": "outer", "cwd": str(daemon.work_dir), "wait": "finished", "env": env}
        outer = await daemon.client.call("delegate", {"prompt": "x", **params})
        found = (await daemon.client.call("delegation.list"))["delegations"]
        assert len(found) == 2, outer["text"]
        (inner,) = [one for one in found if one["delegation"] != outer["delegation"]]
        assert inner["state"] == "succeeded"
        assert inner["parent"] == outer["delegation"]
        assert inner["session"] != outer["session"]


DOORS = r"""
import json, os, socket
with socket.socket(socket.AF_UNIX) as peer:
    peer.connect(os.environ["XDG_RUNTIME_DIR"] + "/fallbackd/control.sock")
    lines = peer.makefile()
    for method, params in (
        ("opencode.announce", {"url": "http://localhost:4096", "plugin": True}),
        ("opencode.resolve", {"session": "ses_1", "model": "b/m", "agent": "build"}),
        ("interactive.failed", {"agent": "claude", "text": "You've hit your session limit"}),
    ):
        call = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        peer.sendall(json.dumps(call).encode() + b"\n")
        print(lines.readline(), end="")
"""


async def test_an_agent_inside_of_an_attempt_is_the_engines_at_every_door(tmp_path: Path) -> None:
    config = '[roles.build]\nchain = ["b/m", "c/m"]\n' + backend_script(
        tmp_path / "bin",
        "outer",
        python(DOORS).replace(
            f"{sys.executable} -", f'env -i XDG_RUNTIME_DIR="$XDG_RUNTIME_DIR" {sys.executable} -'
        ),
        more='allow_env = ["XDG_RUNTIME_DIR"]',
    )
    async with running(tmp_path, config) as daemon:
        env = {"XDG_RUNTIME_DIR": daemon.env["XDG_RUNTIME_DIR"]}
        await daemon.client.call("health", {"action": "pause", "target": "b/m"})
        outer = await daemon.client.call(
            "delegate",
            {
                "prompt": "x",
                "backend": "outer",
                "cwd": str(daemon.work_dir),
                "wait": "finished",
                "env": env,
            },
        )
        announced, resolved, failed = map(json.loads, outer["text"].splitlines())
        assert announced["error"]["data"]["kind"] == "attempt"
        assert "works for a delegation" in announced["error"]["message"]
        assert (resolved["result"]["model"], resolved["result"]["redirected"]) == ("b/m", False)
        assert failed["result"]["backend"] is None
        assert (await daemon.client.call("opencode.status"))["servers"] == []
