"""The configuration in force, written as a file."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from fallbackd.config.load import Loaded
from fallbackd.config.show import as_dict

_TOP_VALUES = frozenset({"import", "export_voice_health"})
_TABLES_OF_TABLES = frozenset({"policy", "backends", "roles"})
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def as_toml(loaded: Loaded) -> str:
    """What `config show` says is in force, as a file: it has to give the same policy again."""
    return "\n".join(_lines(as_dict(loaded))).strip() + "\n"


def _lines(shown: Mapping[str, Any]) -> Iterator[str]:
    yield from _pairs({key: one for key, one in shown.items() if key in _TOP_VALUES})
    for key, value in shown.items():
        if key in _TABLES_OF_TABLES:
            for name, inner in value.items():
                yield from ("", f"[{key}.{_key(name)}]", *_pairs(inner))
        elif key == "signatures":
            for one in value:
                yield from ("", f"[[{key}]]", *_pairs(one))
        elif key not in _TOP_VALUES:
            yield from ("", f"[{key}]", *_pairs(value))


def _pairs(table: Mapping[str, Any]) -> Iterator[str]:
    return (f"{_key(key)} = {_value(value)}" for key, value in table.items())


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _text(key)


def _value(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return _text(value)
        case list():
            return "[" + ", ".join(_value(one) for one in value) + "]"
        case dict():
            inner = ", ".join(f"{_key(key)} = {_value(one)}" for key, one in value.items())
            return f"{{ {inner} }}" if inner else "{}"
        case float() if value.is_integer() and abs(value) < 1e15:
            return f"{value:.1f}"
        case _:
            return str(value)


def _text(text: str) -> str:
    # The escapes of JSON are those of TOML, but for DEL and for surrogate pairs.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
