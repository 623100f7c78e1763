"""Sharing as it is configured: begun, ended and begun anew with the configuration."""

import hashlib
import hmac
import importlib
import os
import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import anyio
import structlog
from anyio import TASK_STATUS_IGNORED
from anyio.abc import TaskStatus

from fallbackd.config.load import Loaded
from fallbackd.config.tables import INSTALL, ShareConfig, is_exposed, plain_words, trouble_of
from fallbackd.core.ids import ScopeId
from fallbackd.core.scopes import credential_scope, owner_of
from fallbackd.engine.api import Engine
from fallbackd.ports.store import Share
from fallbackd.ports.transport import SecretProblem
from fallbackd_client import __version__

if TYPE_CHECKING:
    from fallbackd.engine.sharing import Sharing

log = structlog.get_logger("share")

INSTANCE_KEY = "share_instance"
"""Fact: which of two machines with one name this is."""
DIGEST_CHARS = 16


class SharingService:
    def __init__(self, engine: Engine, environ: Mapping[str, str], mint: Callable[[], str]) -> None:
        self._engine = engine
        self._environ = environ
        self._mint = mint
        self._wanted: ShareConfig | None = None
        self._changed = anyio.Event()

    def configure(self, loaded: Loaded) -> None:
        if loaded.share != self._wanted:
            self._wanted = loaded.share
            self._changed.set()

    async def run(self, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
        """
        Until cancelled. Without `[share]` nothing is imported and nothing runs. It has started
        once its state can be shown; nothing waits for the server.
        """
        is_started = False
        while True:
            self._changed = anyio.Event()
            wanted = self._wanted
            async with anyio.create_task_group() as tasks:
                if wanted is not None:
                    sharing = await self._build(wanted)
                    self._engine.peers = sharing
                    tasks.start_soon(sharing.run)
                if not is_started:
                    is_started = True
                    task_status.started()
                await self._changed.wait()
                self._engine.peers = None
                tasks.cancel_scope.cancel()

    async def _build(self, config: ShareConfig) -> "Sharing":
        from fallbackd.engine.peers import Grouping
        from fallbackd.engine.sharing import Sharing  # without [share] it is not needed

        share, problem = self._server(config)
        url = self._environ.get(config.url_env, "")
        warns = problem is None and not config.insecure and is_exposed(url)
        return Sharing(
            self._engine,
            share,
            Grouping(
                group=config.group,
                machine=config.machine,
                instance=await self._instance(),
                version=__version__,
                pid=os.getpid(),
                warning=plain_words(config.url_env) if warns else None,
            ),
            identities=lambda: self._identities(config),
            problem=problem,
            luck=random.random,
        )

    def _server(self, config: ShareConfig) -> tuple[Share | None, str | None]:
        """The server, or why there is none, and what helps."""
        url = self._environ.get(config.url_env)
        if url is None:
            return None, (
                f"the variable {config.url_env} is not set for the daemon; set it to the address "
                "of the server and start the daemon again"
            )
        if (why := trouble_of(url)) is not None:
            return None, f"the variable {config.url_env} {why}"
        try:
            store = importlib.import_module("fallbackd.stores.share_redis.store")
        except ImportError:
            return None, f"the client for Valkey and Redis is not installed: {INSTALL}"
        address = store.ShareAddress(
            url=url,
            ca_file=_expanded(config.ca_file),
            cert_file=_expanded(config.cert_file),
            key_file=_expanded(config.key_file),
        )
        found: Share = store.RedisShare(address, group=config.group)
        return found, None

    async def _instance(self) -> str:
        known = await self._engine.store.get_meta(INSTANCE_KEY)
        if known is None:
            known = self._mint()
            await self._engine.store.set_meta(INSTANCE_KEY, known)
        return known

    async def _identities(self, config: ShareConfig) -> dict[ScopeId, ScopeId]:
        """Names of credentials that say nothing about them but that they are the same."""
        secret = self._environ.get(config.group_secret_env or "")
        if not secret:
            return {}
        found: dict[ScopeId, ScopeId] = {}
        settings = self._engine.settings
        for backend in settings.policy.backends.values():
            for ref in settings.options_of(backend.id).credentials:
                try:
                    material = await self._engine.world.secrets.identity(ref)
                except SecretProblem:
                    continue
                digest = hmac.new(secret.encode(), material.encode(), hashlib.sha256).hexdigest()
                name = f"credential:{owner_of(backend)}/{digest[:DIGEST_CHARS]}"
                found[credential_scope(backend, ref.label)] = ScopeId(name)
        return found


def _expanded(path: str | None) -> str | None:
    return None if path is None else os.path.expanduser(path)
