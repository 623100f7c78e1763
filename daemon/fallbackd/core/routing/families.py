"""
Model families, used to keep a model from reviewing its own work.

A family is what the configuration says of a backend, else what the name of the model shows.
"""

import re
from functools import lru_cache

from fallbackd.core.policy import Backend, Policy

UNKNOWN = "?"
"""An unknown family differs from no other family."""

AUTHOR = "author"
"""In `must_differ_from`: the family that wrote the work under review."""

_WORDS: dict[str, str] = {
    "claude": "claude|opus|sonnet|haiku|fable",
    "gpt": r"gpt|chatgpt|codex|davinci|o[1345](?![0-9])",
    "gemini": "gemini|gemma|learnlm",
    "llama": "llama|codellama",
    "qwen": "qwen|qwq|qvq",
    "mistral": "mistral|mixtral|magistral|codestral|devstral|ministral|pixtral",
    "deepseek": "deepseek",
    "grok": "grok",
    "kimi": "kimi|moonshot",
    "glm": "glm|chatglm",
    "command": "command-(?:a|r)|c4ai",
    "phi": r"phi-?[0-9]",
    "nova": "nova-(?:micro|lite|pro|premier)",
    "minimax": "minimax|abab",
}
KNOWN = frozenset(_WORDS)

_PATTERNS = tuple(
    (family, re.compile(rf"(?<![a-z])(?:{words})", re.IGNORECASE))
    for family, words in _WORDS.items()
)


@lru_cache(maxsize=1024)
def family_of_model(model: str) -> str | None:
    """By the name alone: the part behind the last slash first, as it names the model itself."""
    parts = model.rsplit("/", 1)
    for part in reversed(parts):
        hits = [
            (hit.start(), family)
            for family, pattern in _PATTERNS
            if (hit := pattern.search(part)) is not None
        ]
        if hits:
            return min(hits)[1]
    return None


def family_of(backend: Backend, model: str | None) -> str | None:
    """
    The family that answers for a candidate; None where it is unknown.

    What is configured holds for the backend's own model; another model that an entry or a caller
    names says more by its name.
    """
    named = None if model is None else family_of_model(model)
    if backend.family is not None and (model is None or model == backend.model):
        return backend.family
    return named or backend.family


def known_families(policy: Policy) -> frozenset[str]:
    """Words that a caller may use."""
    own = (one.family for one in policy.backends.values())
    return KNOWN | {one for one in own if one is not None}


def differs(family: str | None, others: frozenset[str]) -> bool:
    """Whether a candidate of `family` is certainly none of `others`."""
    if not others:
        return True
    return family is not None and UNKNOWN not in others and family not in others
