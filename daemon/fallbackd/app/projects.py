"""Placeholder for the files of opencode projects."""

from collections.abc import Mapping

import anyio

from fallbackd.config.load import Loaded
from fallbackd.core.rules import Rule
from fallbackd.engine.loop import Engine


class Projects:
    def __init__(self, engine: Engine, *, home: str) -> None:
        self._engine = engine
        self._home = home

    async def configure(self, loaded: Loaded) -> None:
        pass

    async def run(self) -> None:
        await anyio.sleep_forever()

    async def look(self, directory: str) -> None:
        pass

    def rules(self, directory: str) -> tuple[Rule, ...]:
        return ()


def watched_servers(loaded: Loaded, environ: Mapping[str, str]) -> dict[str, str | None]:
    """Addresses of the configuration, each with its password."""
    return {
        one.url: None if one.password_env is None else environ.get(one.password_env)
        for one in loaded.opencode.servers
    }
