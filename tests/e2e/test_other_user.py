"""Somebody else on the machine: needs root, to be one."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from tests.support.daemon import HANG_S, DaemonDied, running

pytestmark = pytest.mark.root

NOBODY = 65_534
ASK = """
import os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
with socket.socket(socket.AF_UNIX) as peer:
    peer.settimeout(60)
    peer.connect(sys.argv[1])
    peer.sendall(b'{"jsonrpc":"2.0","id":1,"method":"daemon.ping"}\\n')
    print(repr(peer.recv(4096)))
"""


def ask(path: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", "-c", ASK, path],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd="/",
    )


async def test_another_user_is_refused_by_the_modes_and_where_they_are_open_by_the_kernels_word(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as daemon:
        kept_out = ask(daemon.socket)
        assert kept_out.returncode != 0
        assert "PermissionError" in kept_out.stderr
        # The same socket, where nothing but the daemon is in the way: another name for it.
        shared = Path(daemon.runtime_dir)
        shared.chmod(0o755)
        door = shared / "door"
        os.link(daemon.socket, door)
        with anyio.fail_after(HANG_S):
            while f"uid={NOBODY}" not in daemon.log():
                door.chmod(0o666)  # the daemon closes what it finds open
                answered = await anyio.to_thread.run_sync(ask, str(door))
                assert "pid" not in answered.stdout
        with socket.socket(socket.AF_UNIX) as own:
            own.connect(str(door))
            own.sendall(b'{"jsonrpc":"2.0","id":1,"method":"daemon.ping"}\n')
            assert json.loads(own.recv(65_536))["result"]["pid"] == daemon.pid


@pytest.mark.parametrize("place", ["state", "runs", "socket"])
async def test_a_directory_of_another_user_is_refused_with_the_command(
    place: str, tmp_path: Path
) -> None:
    async with running(tmp_path) as daemon:
        await daemon.stop()
        directory = {
            "state": daemon.state_dir,
            "runs": daemon.state_dir / "runs",
            "socket": Path(daemon.socket).parent,
        }[place]
        directory.mkdir(exist_ok=True)
        os.chown(directory, NOBODY, NOBODY)
        with pytest.raises(DaemonDied) as died:
            await daemon.start()
        assert "exit status 78" in str(died.value)
        fix = f"sudo chown -R root {directory}"
        assert fix in str(died.value)
        subprocess.run(fix.removeprefix("sudo ").split(), check=True)
        await daemon.start()
