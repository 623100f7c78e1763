"""What `status` says of the surroundings of the daemon."""

from pathlib import Path

import structlog
from tests.support.daemon import in_process
from tests.support.engine import FakeHost

from fallbackd.app.lifecycle import NO_TMUX, troubles
from fallbackd.app.places import Places
from fallbackd.app.private import Guard, watched
from fallbackd.fronts.rpc.server import RpcServer


def guard_of(tmp_path: Path) -> Guard:
    places = Places(
        config=str(tmp_path / "c" / "config.toml"),
        state_dir=str(tmp_path / "state"),
        socket=str(tmp_path / "fallbackd" / "control.sock"),
    )
    return Guard(watched(places, socket=places.socket))


async def test_a_daemon_that_is_well_has_none(tmp_path: Path) -> None:
    async with in_process(tmp_path) as daemon:
        server = RpcServer(daemon.engine, FakeHost(), ())
        assert troubles(guard_of(tmp_path), server, daemon.engine) == ()


async def test_each_trouble_is_told(tmp_path: Path) -> None:
    config = "[defaults]\ntmux = true\n"
    async with in_process(tmp_path, config, env={"PATH": str(tmp_path / "bin")}) as daemon:
        guard = guard_of(tmp_path)
        (tmp_path / "state").mkdir(mode=0o700)
        (tmp_path / "state" / "fallbackd.db").symlink_to(tmp_path / "elsewhere")
        with structlog.testing.capture_logs():
            guard.look()
        server = RpcServer(daemon.engine, FakeHost(), ())
        server._postpone("no descriptors")
        daemon.engine.world.taught.is_damaged = True
        found = troubles(guard, server, daemon.engine)
        assert [one.kind for one in found] == ["exposed", "shortage", "tmux", "weights"]
        assert found[2] == NO_TMUX
        assert [one.stops_work for one in found] == [True, True, False, False]
