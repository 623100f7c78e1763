"""A file of the configuration that is found in the middle of being written."""

from pathlib import Path

import pytest
from tests.support.clock import ManualClock

from fallbackd.app import configuration
from fallbackd.app.configuration import Configuration
from fallbackd.app.places import Places
from fallbackd.engine.environment import Settings

GOOD = "[defaults]\nsettle_s = 3.0\n"
BETTER = "[defaults]\nsettle_s = 4.0\n"


@pytest.mark.parametrize("found", ["", None, "[defaults"])
@pytest.mark.parametrize("then", [GOOD, BETTER])
async def test_it_is_read_once_more_before_anything_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: str | None, then: str
) -> None:
    path = tmp_path / "config.toml"
    path.write_text(GOOD)
    places = Places(config=str(path), state_dir=str(tmp_path), socket=str(tmp_path / "s"))
    known = Configuration(places, ManualClock())
    path.unlink()
    if found is not None:
        path.write_text(found)
    told: list[bool] = []

    async def sleep(_: float) -> None:
        path.write_text(then)

    async def take(_: Settings) -> None: ...

    async def tell(is_good: bool, _: dict[str, object]) -> None:
        told.append(is_good)

    monkeypatch.setattr(configuration.anyio, "sleep", sleep)
    assert await known.reload(take, tell) is (then == BETTER)
    assert told == [True] * (then == BETTER)
    assert known.loaded.errors == ()
