"""Which agent continues a conversation: the next one of a chain that is there."""

from __future__ import annotations

import shutil

from fallbackd_client.errors import ClientError
from fallbackd_conversations.agents import AGENTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from fallbackd_client.calls import Json
    from fallbackd_client.client import Client

ORDER = ("claude", "codex", "opencode", "gemini")
"""Without a daemon, which knows chains and what is limited."""
_ASK_S = 5.0
_USABLE = ("chosen", "healthy", "unproven", "cooldown", "same_as_failed")


class Target:
    """
    Args:
        backend: Its id in the configuration, or the name of the agent.
        environ: Of its account, beside that of the person.
        model: As configured; empty: the agent's own default.
    """

    def __init__(
        self, backend: str, agent: str, environ: Mapping[str, str], model: str = ""
    ) -> None:
        self.backend = backend
        self.agent = agent
        self.environ = environ
        self.model = model


class NoTarget(Exception):
    """Why no agent can continue, and what to do."""


def choose(client: Client, source: str, wanted: str | None, *, path: str | None) -> list[Target]:
    """
    Those that can continue, the best first.

    Args:
        source: The agent whose conversation it is.
        wanted: A backend or a chain; None: the chain of the source.
        path: Where programs are looked for.

    Raises:
        NoTarget: None is there.
    """
    try:
        backends = client.call("config.get", {}, timeout_s=_ASK_S)["config"]["backends"]
    except (ClientError, KeyError, TypeError):
        return _without_daemon(source, wanted, path)
    if wanted in backends or wanted in AGENTS:
        names = [str(wanted)]
    else:
        names = _candidates(client, source, wanted)
    targets = [_target(name, backends) for name in names]
    found = [
        one
        for one in targets
        if one is not None and (one.agent != source or one.backend == wanted)
        if shutil.which(one.agent, path=path)
    ]
    if found:
        return found
    raise NoTarget(
        f"none of {', '.join(names) or wanted or 'the chain'} can continue the conversation now;"
        f" name an agent that is installed with --to: {', '.join(AGENTS)}"
    )


def _candidates(client: Client, source: str, chain: str | None) -> list[str]:
    params: dict[str, Json] = {"backend": source} if chain is None else {"chain": chain}
    try:
        found = client.call("resolve", params, timeout_s=_ASK_S)
    except ClientError as error:
        data = getattr(error, "data", None)
        found = data if isinstance(data, dict) else {}
        if chain is not None and not found.get("candidates"):
            raise NoTarget(f"--to {chain}: {error}") from error
    verdicts = found.get("candidates") or []
    return [one["backend"] for one in verdicts if one.get("verdict") in _USABLE]


def _target(name: str, backends: Mapping[str, Json]) -> Target | None:
    known = backends.get(name) or {}
    agent = known.get("kind") or name
    if agent not in AGENTS:
        return None
    environ = known.get("env")
    return Target(
        name, agent, environ if isinstance(environ, dict) else {}, str(known.get("model") or "")
    )


def _without_daemon(source: str, wanted: str | None, path: str | None) -> list[Target]:
    if wanted is not None and wanted not in AGENTS:
        raise NoTarget(
            f"--to {wanted}: without the daemon only the agents themselves are known:"
            f" {', '.join(AGENTS)}"
        )
    names = [wanted] if wanted is not None else [one for one in ORDER if one != source]
    found = [Target(name, name, {}) for name in names if shutil.which(name, path=path)]
    if found:
        return found
    raise NoTarget(f"none of {', '.join(names)} is installed; install one to continue with it")
