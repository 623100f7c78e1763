"""Unchecked JSON values: a value that is not of the expected type is treated as absent."""

from collections.abc import Mapping
from typing import Any

Fields = Mapping[str, Any]
"""An object of any shape."""


def fields(value: object) -> Fields:
    return value if isinstance(value, dict) else {}


def text(value: object) -> str:
    return value if isinstance(value, str) else ""


def count(value: object) -> int:
    """Not negative; fractions are cut off."""
    return int(value) if isinstance(value, int | float) and value > 0 else 0
