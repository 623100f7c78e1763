"""Files that describe one agent of opencode, as far as they say to which models it falls back."""

import json
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from fallbackd.config.fallback_file import read_models
from fallbackd.config.fields import Say
from fallbackd.config.front_matter import NotPlain, parse, split


class AgentFile(Struct, frozen=True, kw_only=True):
    name: str
    models: tuple[str, ...]


def read_agent(text: str, *, path: str, say: Say) -> AgentFile | None:
    """
    Args:
        path: Of the file; its stem is the agent's name where the file gives none.

    Returns:
        None where the file says nothing of fallbacks, or nothing that can be used.
    """
    try:
        raw = json.loads(text) if path.endswith(".json") else parse(split(text) or "")
    except (ValueError, RecursionError):
        say(path, "is not valid JSON; it is left out.")
        return None
    except NotPlain as problem:
        if "fallback" in text:  # what opencode reads and we do not is none of our business
            say(path, f"{problem}; it is left out.")
        return None
    fallback = raw.get("fallback") if isinstance(raw, Mapping) else None
    if not isinstance(fallback, Mapping) or "models" not in fallback:
        return None
    name = _name_of(raw, path)
    models = read_models(fallback["models"], f"{path}: fallback.models", say)
    return AgentFile(name=name, models=models) if models and name else None


def _name_of(raw: Mapping[str, Any], path: str) -> str:
    name = raw.get("name")
    if isinstance(name, str) and 1 <= len(name) <= 128 and name.isprintable():
        return name
    return path.rpartition("/")[2].rpartition(".")[0]
