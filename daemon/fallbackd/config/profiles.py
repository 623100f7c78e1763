"""
What is known without any configuration file: backends, chains, caps, scores. Data, not code.

The order of declaration matters: equal scores of `suggest` go to the backend that is first.
"""

from collections.abc import Mapping

from fallbackd.backends.spec import Options
from fallbackd.core.ids import BackendId
from fallbackd.core.policy import IN_SESSION_KIND, Backend, Entry

KIND_NAMES = (
    "anthropic-http",
    "claude",
    "codex",
    "gemini",
    "generic-cli",
    "google-http",
    "hermes-api",
    "in-session",
    "numasec",
    "openai-http",
    "opencode",
    "openrouter-http",
)
"""Kinds that `kind = "…"` may name."""

KIND_ALIASES: Mapping[str, str] = {"generic": "generic-cli"}

LATER_KINDS = frozenset({"bedrock-http", "opencode-server"})
"""Known words of the contract that this version cannot start yet."""

JUDGED_KINDS = frozenset(
    {"aider", "azure-http", "copilot", "crush", "goose", "hermes", "kimi", "ollama-http", "qwen"}
)
"""Kinds that only signatures may name: their output can be judged."""

PLAIN_KINDS = frozenset({"numasec"})
"""Their output shows no sign of life before the end; `generic-cli` too, unless it is `jsonl`."""

IN_SESSION = BackendId("in-session")

CODEX = BackendId("codex")
OPENCODE = BackendId("opencode")
GEMINI = BackendId("gemini")
NUMASEC = BackendId("numasec")
HERMES = BackendId("hermes-api")
CLAUDE = BackendId("claude")

_BACKENDS = (
    Backend(
        id=OPENCODE,
        kind="opencode",
        name="OpenCode",
        context_tokens=128_000,
        shown_cap=100,
        scores={"size:tiny": 30, "size:small": 30, "scope:code": 20, "scope:refactor": 20},
    ),
    Backend(
        id=CODEX,
        kind="codex",
        name="Codex CLI",
        family="gpt",
        cost="subscription",
        context_tokens=200_000,
        shown_cap=50,
        scores={
            "size:large": 30,
            "size:xlarge": 30,
            "complexity:high": 20,
            "scope:code": 20,
            "scope:refactor": 20,
        },
    ),
    Backend(
        id=GEMINI,
        kind="gemini",
        name="Gemini CLI",
        family="gemini",
        cost="subscription",
        context_tokens=1_000_000,
        shown_cap=1_000_000,
        cap_unit="tokens",
        scores={
            "size:tiny": 20,
            "size:small": 20,
            "size:large": 25,
            "size:xlarge": 25,
            "complexity:extreme": 30,
            "scope:research": 25,
            "scope:analysis": 25,
        },
    ),
    Backend(
        id=NUMASEC,
        kind="numasec",
        name="Numasec",
        context_tokens=128_000,
        shown_cap=60,
        plain_output=True,
        scores={"scope:security": 35, "scope:audit": 35},
    ),
    Backend(
        id=HERMES,
        kind="hermes-api",
        name="Hermes API server",
        provider="127.0.0.1:8088",
        loopback=True,
        cost="local",
        shown_cap=200,
    ),
    # Behind the others, so that it wins no tie against them.
    Backend(
        id=CLAUDE,
        kind="claude",
        name="Claude Code",
        family="claude",
        cost="subscription",
        context_tokens=200_000,
    ),
    # Nothing is started: the caller does the work. Only where a chain or a caller names it.
    Backend(id=IN_SESSION, kind=IN_SESSION_KIND, name="In the session", suggestible=False),
)

BACKENDS: Mapping[BackendId, Backend] = {backend.id: backend for backend in _BACKENDS}

OPTIONS: Mapping[BackendId, Options] = {backend.id: Options() for backend in _BACKENDS}
"""Nothing is set: the command line, address and key of a profile are its kind's own defaults."""


def _chain(*ids: BackendId) -> tuple[Entry, ...]:
    return tuple(Entry(backend=id) for id in ids)


CHAINS: Mapping[str, tuple[Entry, ...]] = {
    CODEX: _chain(OPENCODE, HERMES, GEMINI),
    OPENCODE: _chain(CODEX, HERMES, GEMINI),
    NUMASEC: _chain(OPENCODE, CODEX, HERMES),
    GEMINI: _chain(OPENCODE, CODEX, HERMES),
    HERMES: _chain(OPENCODE, CODEX, GEMINI),
}
