"""Addresses, and the variables that hold keys, of providers that other programs know by name."""

from urllib.parse import urlsplit

from msgspec import Struct


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
