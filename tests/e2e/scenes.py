"""
A scene: the scripted provider, the real CLIs pointed at it, and a real daemon that runs them.

    async with scene(tmp_path) as s:
        s.provider.behave("codex", "429", retry_after_s=None)
        done = await s.delegate("codex", then="opencode")

The daemon's home is the home of the CLIs, as it is for a person.
"""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from msgspec import Struct
from tests.e2e.clis import MODELS, Home, build_home
from tests.support.daemon import Daemon, running
from tests.support.provider import Provider, provider

HANG_S = 400.0
"""Only a hang takes this long."""

BACKENDS = ("codex", "opencode", "opencode-run", "gemini", "claude")
"""The profiles, and opencode without its server."""
ROUTES = {name: name.removesuffix("-run") for name in BACKENDS}
"""Backend to the provider's route that its CLI calls."""
NEXT = {name: "opencode" if name == "codex" else "codex" for name in BACKENDS}
"""Who takes over from whom."""

_OWN_LINES: Mapping[str, tuple[str, ...]] = {
    "opencode": (f'model = "{MODELS["opencode"]}"',),
    "opencode-run": ('kind = "opencode"', "serve = false", f'model = "{MODELS["opencode"]}"'),
    "gemini": (f'model = "{MODELS["gemini"]}"',),
}


def config(backends: Mapping[str, Sequence[str]], **knobs: object) -> str:
    """
    Args:
        backends: Further lines of their tables.
        knobs: Of `[defaults]`.
    """
    # A program that takes a conversation in may take as long as the machine is slow.
    lines = ["[handoff]", f"start_s = {HANG_S}"]
    lines += ["[defaults]", *(f"{key} = {json.dumps(value)}" for key, value in knobs.items())]
    for name in BACKENDS:
        lines += [f"[backends.{name}]", *_OWN_LINES.get(name, ()), *backends.get(name, ())]
    return "\n".join(lines) + "\n"


class Scene(Struct, kw_only=True):
    provider: Provider
    daemon: Daemon
    home: Home

    async def begin(
        self, backend: str, *, then: str | None = None, **params: Any
    ) -> dict[str, Any]:
        """Start a delegation on one backend, with at most one other behind it."""
        wanted = {
            "prompt": "say pong",
            "backend": backend,
            "mode": "interactive",
            "wait": "accepted",
            "cwd": str(self.home.work),
            "failover": then is not None,
            **({} if then is None else {"chain": [then]}),
            **params,
        }
        found: dict[str, Any] = await self.daemon.client.call("delegate", wanted, timeout_s=HANG_S)
        return found

    async def delegate(
        self, backend: str, *, then: str | None = None, **params: Any
    ) -> dict[str, Any]:
        """The same, to its end."""
        return await self.begin(backend, then=then, wait="finished", **params)

    async def cancel(self, delegation: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = await self.daemon.client.call(
            "delegation.cancel", {"delegation": delegation["delegation"]}, timeout_s=HANG_S
        )
        return found

    async def forget_failures(self) -> None:
        await self.daemon.client.call("health", {"action": "clear"})


@asynccontextmanager
async def scene(
    tmp_path: Path,
    *,
    backends: Mapping[str, Sequence[str]] | None = None,
    wrapper: tuple[str, ...] = (),
    more: Mapping[str, str] | None = None,
    **knobs: object,
) -> AsyncIterator[Scene]:
    """
    Args:
        backends, knobs: As of `config`.
        wrapper: A command that executes the daemon.
        more: Variables of the daemon.
    """
    with anyio.fail_after(2 * HANG_S):
        async with provider() as served:
            home = build_home(tmp_path, served)
            # Claude Code refuses to run unasked for a superuser, unless it is told this.
            env = {**home.env, "IS_SANDBOX": "1", **(more or {})}
            text = config(backends or {}, **knobs)
            async with running(tmp_path, text, env=env, wrapper=wrapper) as daemon:
                assert daemon.home == home.path
                yield Scene(provider=served, daemon=daemon, home=home)
