"""Pieces of Markdown, and JSON schemas in words."""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

Schema = dict[str, Any]  # JSON
_UNITS = {
    "_s": "s",
    "_bytes": "bytes",
    "_at": "Unix time",
    "_tokens": "tokens",
    "_usd": "US dollars",
}


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [_row(heads), _row(["---"] * len(heads)), *(_row(one) for one in rows)]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(one.replace("|", "\\|").replace("\n", " ") for one in cells) + " |"


def code(text: str, language: str = "") -> str:
    return f"```{language}\n{text.rstrip()}\n```\n"


def as_json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def anchor(heading: str) -> str:
    """As the `toc` extension of Python-Markdown makes it."""
    kept = re.sub(r"[^\w\s-]", "", heading).strip().lower()
    return re.sub(r"[-\s]+", "-", kept)


def unit_of(name: str) -> str:
    return next((unit for end, unit in _UNITS.items() if name.endswith(end)), "")


def type_of(schema: Schema, *, unit: str = "") -> str:
    """What a schema allows, for a cell of a table."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{anchor(name)})"
    if "anyOf" in schema:
        kinds = [one for one in schema["anyOf"] if one.get("type") != "null"]
        return " or ".join(dict.fromkeys(type_of(one, unit=unit) for one in kinds))
    if "enum" in schema:
        return ", ".join(f"`{one}`" for one in schema["enum"])
    match schema.get("type"):
        case "array":
            return "list of " + type_of(schema.get("items", {}), unit=unit)
        case "object":
            inside = schema.get("additionalProperties")
            return (
                "object of " + type_of(inside) if isinstance(inside, dict) and inside else "object"
            )
        case "boolean":
            return "true, false"
        case "integer" | "number" as kind:
            words = "integer" if kind == "integer" else "number"
            return f"{words}{_bounds(schema)}{' ' + unit if unit else ''}"
        case "string":
            longest = schema.get("maxLength")
            return f"text (up to {longest})" if longest else "text"
        case _:
            return "any"


def _bounds(schema: Schema) -> str:
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    if low is not None and high is not None:
        return f", {low:g} to {high:,.10g}"
    if low is not None:
        return f", {low:g} or more"
    return "" if high is None else f", up to {high:,.10g}"


def default_of(schema: Schema) -> str:
    """The default for a cell; empty where there is none."""
    found = schema.get("default")
    return "" if found in (None, [], {}, "") else f"`{toml(found)}`"


def toml(value: object) -> str:
    """A value in one line of TOML."""
    match value:
        case bool():
            return "true" if value else "false"
        case float() if value.is_integer():
            return str(int(value))
        case dict():
            return "{ " + ", ".join(f"{key} = {toml(one)}" for key, one in value.items()) + " }"
        case list() | tuple():
            return "[" + ", ".join(toml(one) for one in value) + "]"
        case str():
            return json.dumps(value, ensure_ascii=False)
        case _:
            return str(value)
