"""
Configurations of other programs as tables of ours, with a report.

Nothing of theirs is ever moved or changed. Secrets are never taken, only the names of variables
that hold them.
"""

from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

from msgspec import Struct, field

from fallbackd_conversations.redact import excerpt


class Provider(Struct, frozen=True, kw_only=True):
    base_url: str
    key_env: str | None = None
    kind: str = "openai-http"


PROVIDERS: dict[str, Provider] = {
    "anthropic": Provider(
        base_url="https://api.anthropic.com", key_env="ANTHROPIC_API_KEY", kind="anthropic-http"
    ),
    "deepseek": Provider(base_url="https://api.deepseek.com/v1", key_env="DEEPSEEK_API_KEY"),
    "gemini": Provider(
        base_url="https://generativelanguage.googleapis.com/v1beta/openai",
        key_env="GEMINI_API_KEY",
    ),
    "groq": Provider(base_url="https://api.groq.com/openai/v1", key_env="GROQ_API_KEY"),
    "kimi": Provider(base_url="https://api.moonshot.ai/v1", key_env="KIMI_API_KEY"),
    "lmstudio": Provider(base_url="http://127.0.0.1:1234/v1"),
    "minimax": Provider(base_url="https://api.minimax.io/v1", key_env="MINIMAX_API_KEY"),
    "mistral": Provider(base_url="https://api.mistral.ai/v1", key_env="MISTRAL_API_KEY"),
    "nous": Provider(base_url="https://inference-api.nousresearch.com/v1", key_env="NOUS_API_KEY"),
    "ollama": Provider(base_url="http://127.0.0.1:11434/v1"),
    "openai": Provider(base_url="https://api.openai.com/v1", key_env="OPENAI_API_KEY"),
    "openrouter": Provider(base_url="https://openrouter.ai/api/v1", key_env="OPENROUTER_API_KEY"),
    "xai": Provider(base_url="https://api.x.ai/v1", key_env="XAI_API_KEY"),
    "zai": Provider(base_url="https://api.z.ai/api/paas/v4", key_env="ZAI_API_KEY"),
}
ALIASES = {
    "claude": "anthropic",
    "google": "gemini",
    "grok": "xai",
    "kimi-coding": "kimi",
    "moonshot": "kimi",
    "local": "ollama",
}


def find_provider(name: str) -> Provider | None:
    name = name.strip().lower()
    return PROVIDERS.get(ALIASES.get(name, name))


def has_password(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.password or parts.username)
    except ValueError:
        return True


def is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)


ImportSource = Literal["hermes", "jkz", "opencode", "voice"]
Tables = dict[str, Any]
"""As TOML has them."""


class Taken(Struct, frozen=True, kw_only=True):
    what: str
    """A key or a variable of the other program."""
    to: str
    """Where it went: a path in our configuration."""


class Left(Struct, frozen=True, kw_only=True):
    what: str
    why: str


class Imported(Struct, frozen=True, kw_only=True):
    source: ImportSource
    tables: Tables = field(default_factory=dict)
    taken: tuple[Taken, ...] = ()
    left: tuple[Left, ...] = ()

    def toml(self) -> str:
        import tomlkit  # for those who import

        return tomlkit.dumps(self.tables) if self.tables else ""


class Report:
    """Collects what was taken and what was not."""

    def __init__(self) -> None:
        self._taken: dict[tuple[str, str], Taken] = {}
        self._left: dict[str, Left] = {}

    def take(self, what: str, to: str) -> None:
        self._taken.setdefault((what, to), Taken(what=what, to=to))

    def leave(self, what: str, why: str) -> None:
        what = excerpt(what, max_chars=200)
        self._left.setdefault(what, Left(what=what, why=excerpt(why, max_chars=300)))

    def made(self, source: ImportSource, tables: Mapping[str, Any]) -> Imported:
        return Imported(
            source=source,
            tables=dict(tables),
            taken=tuple(self._taken.values()),
            left=tuple(self._left.values()),
        )


def overlay(ours: Mapping[str, Any], imported: Mapping[str, Any]) -> dict[str, Any]:
    """The user's own tables over imported ones, key by key down to the single setting."""
    made = dict(imported)
    for key, value in ours.items():
        under = made.get(key)
        if isinstance(value, Mapping) and isinstance(under, Mapping):
            made[key] = overlay(value, under)
        else:
            made[key] = value
    return made
