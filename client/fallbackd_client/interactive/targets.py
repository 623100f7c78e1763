"""Which agent continues a conversation: the next one of a chain that is there."""

from __future__ import annotations

import os
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
MAX_TURNS = 40
"""Earlier prompts that are carried over, where `[handoff]` says nothing else."""
_ASK_S = 5.0
_HOMES = ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "GEMINI_CLI_HOME", "XDG_DATA_HOME")
_USABLE = ("chosen", "healthy", "unproven", "cooldown", "same_as_failed")


class Target:
    """
    Args:
        backend: Its id in the configuration, or the name of the agent.
        environ: Of its account, beside that of the person.
        model: As configured; empty: the agent's own default.
        context_tokens: What it holds; None: that is not known.
        max_turns: Most earlier prompts that it is given.
    """

    def __init__(
        self,
        backend: str,
        agent: str,
        environ: Mapping[str, str],
        model: str = "",
        *,
        context_tokens: int | None = None,
        max_turns: int = MAX_TURNS,
    ) -> None:
        self.backend = backend
        self.agent = agent
        self.environ = environ
        self.model = model
        self.context_tokens = context_tokens
        self.max_turns = max_turns


class NoTarget(Exception):
    """Why no agent can continue, and what to do."""


def choose(
    client: Client, source: str, wanted: str | None, environ: Mapping[str, str], *, home: str
) -> list[Target]:
    """
    Those that can continue, the best first.

    Args:
        source: The agent whose conversation it is.
        wanted: A backend or a chain; None: the chain of the source.
        environ: Of the person.

    Raises:
        NoTarget: None is there.
    """
    path = environ.get("PATH")
    try:
        found_config = client.call("config.get", {}, timeout_s=_ASK_S)
        config, file = found_config["config"], found_config.get("path")
        backends = config["backends"]
    except (ClientError, KeyError, TypeError):
        return _without_daemon(source, wanted, path, _written(_config_path(environ, home)))
    is_backend = wanted in {*backends, *AGENTS}
    names = [str(wanted)] if is_backend else _candidates(client, source, wanted)
    homes, max_turns = _homes(_written(file)), _max_turns(config)
    targets = [_target(name, backends, homes, max_turns=max_turns) for name in names]
    able = [one for one in targets if one is not None and shutil.which(one.agent, path=path)]
    found = [
        one for one in able if one.backend == wanted or _is_another(one, source, environ, home)
    ]
    if not found:
        raise _none(", ".join(names) or wanted)
    return found


def _none(names: str | None) -> NoTarget:
    return NoTarget(
        f"none of {names or 'the chain'} can continue the conversation now;"
        f" name an agent that is installed with --to: {', '.join(AGENTS)}"
    )


def _is_another(target: Target, source: str, environ: Mapping[str, str], home: str) -> bool:
    """Another agent, or another account of the same one."""
    place = AGENTS[target.agent].place({**environ, **target.environ}, home)
    return place != AGENTS[source].place(environ, home)


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


def _config_path(environ: Mapping[str, str], home: str) -> str:
    base = environ.get("XDG_CONFIG_HOME", "")
    base = base if os.path.isabs(base) else os.path.join(home, ".config")
    return environ.get("FALLBACKD_CONFIG") or os.path.join(base, "fallbackd", "config.toml")


def _written(file: str | None) -> dict[str, Json]:
    """The configuration as it was written; empty: there is none that can be read."""
    from fallbackd_client.settings.editing import read
    from fallbackd_client.settings.jsonc import Unreadable
    from fallbackd_client.settings.toml_block import parse

    try:
        found: dict[str, Json] = parse(read(file) or "") if file else {}
    except Unreadable:
        return {}
    return found


def _max_turns(config: Mapping[str, Json]) -> int:
    handoff = config.get("handoff")
    return _count(handoff.get("max_turns") if isinstance(handoff, dict) else None) or MAX_TURNS


def _count(value: Json) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _homes(config: Mapping[str, Json]) -> dict[str, dict[str, str]]:
    """Where accounts have their directories: the daemon does not say what is in `env`."""
    tables = config.get("backends")
    found = {}
    for name, table in tables.items() if isinstance(tables, dict) else ():
        env = table.get("env") if isinstance(table, dict) else None
        if isinstance(env, dict):
            found[name] = {
                key: os.path.expanduser(value)
                for key, value in env.items()
                if key in _HOMES and isinstance(value, str)
            }
    return found


def _target(
    name: str,
    backends: Mapping[str, Json],
    homes: Mapping[str, dict[str, str]],
    *,
    max_turns: int,
) -> Target | None:
    known = backends.get(name) or {}
    agent = known.get("kind") or name
    if agent not in AGENTS:
        return None
    return Target(
        name,
        agent,
        homes.get(name, {}),
        str(known.get("model") or ""),
        context_tokens=_count(known.get("context_tokens")),
        max_turns=max_turns,
    )


def _without_daemon(
    source: str, wanted: str | None, path: str | None, config: Mapping[str, Json]
) -> list[Target]:
    if wanted is not None and wanted not in AGENTS:
        raise NoTarget(
            f"--to {wanted}: without the daemon only the agents themselves are known:"
            f" {', '.join(AGENTS)}"
        )
    names = [wanted] if wanted is not None else [one for one in ORDER if one != source]
    max_turns = _max_turns(config)
    found = [
        Target(name, name, {}, max_turns=max_turns)
        for name in names
        if shutil.which(name, path=path)
    ]
    if found:
        return found
    raise NoTarget(f"none of {', '.join(names)} is installed; install one to continue with it")
