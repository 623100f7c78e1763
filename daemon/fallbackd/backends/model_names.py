"""
One model under the names that different hosts have for it.

    claude-sonnet-4-5, claude-sonnet-4-5-20250929    its vendor
    anthropic/claude-sonnet-4.5                      OpenRouter and those that follow it
    us.anthropic.claude-sonnet-4-5-20250929-v1:0     Bedrock
"""

import re
from typing import Literal

Style = Literal["vendor", "router", "bedrock"]

_BEDROCK = re.compile(
    r"(?P<place>(?:[a-z-]{2,8}\.)?)(?P<vendor>anthropic)\.(?P<name>.+?)(?P<edition>-v\d+(?::\d+)?)$"
)
_ROUTER = re.compile(r"(?P<vendor>[a-z0-9-]+)/(?P<name>[^/]+)$")
_DATE = re.compile(r"-(20\d{6})$")
_TAIL = re.compile(r"(?:-latest|:[a-z]+|@[\w.-]+)$")
_VERSION = re.compile(r"(?<=-)(\d+)-(\d+)(?=-|$)")
_DOTTED = re.compile(r"(\d+)\.(\d+)")

_DATES = {
    "claude-3-5-haiku": "20241022",
    "claude-3-7-sonnet": "20250219",
    "claude-haiku-4-5": "20251001",
    "claude-opus-4": "20250514",
    "claude-opus-4-1": "20250805",
    "claude-opus-4-5": "20251101",
    "claude-sonnet-4": "20250514",
    "claude-sonnet-4-5": "20250929",
}
"""Bedrock names each model with its date, which its vendor's short name leaves out."""


def _style(model: str) -> Style:
    if _BEDROCK.fullmatch(model):
        return "bedrock"
    return "router" if _ROUTER.fullmatch(model) else "vendor"


def plain(model: str) -> str:
    """The name by which models of different hosts are compared."""
    name = model.lower()
    found = _BEDROCK.fullmatch(name) or _ROUTER.fullmatch(name)
    name = name if found is None else found["name"]
    name = _DATE.sub("", _TAIL.sub("", name))
    return _DOTTED.sub(r"\1-\2", name)


def spelled_like(model: str, own: str) -> str:
    """
    A model that a caller names, as the host names it that has `own`; as it is, where the host's way
    is the same or not known.
    """
    style = _style(own.lower())
    if style == _style(model.lower()):
        return model
    if plain(model) == plain(own):
        return own
    if style == "bedrock":
        return _for_bedrock(model, own)
    is_claude = "claude" in plain(model)
    if style == "vendor":
        return plain(model) if is_claude else model.rpartition("/")[2]
    found = _ROUTER.fullmatch(own)
    assert found is not None
    if is_claude:
        has_dashes = _VERSION.search(found["name"]) is not None
        model = plain(model) if has_dashes else _VERSION.sub(r"\1.\2", plain(model))
    return f"{found['vendor']}/{model}"


def _for_bedrock(model: str, own: str) -> str:
    found = _BEDROCK.fullmatch(own)
    assert found is not None
    dated = _DATE.search(model)
    date = _DATES.get(plain(model)) if dated is None else dated[1]
    if date is None:
        return model
    return f"{found['place']}{found['vendor']}.{plain(model)}-{date}-v1:0"
