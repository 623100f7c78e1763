"""JSON with something else in one place."""

import json
from typing import Any


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The place of each value in a JSON object or list."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for name, one in items:
        found.append((*path, name))
        if isinstance(one, dict | list):
            found += leaves(one, (*path, name))
    return found


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """The same JSON with another value in one place."""
    copy = json.loads(json.dumps(value))
    inner = copy
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = new
    return copy
