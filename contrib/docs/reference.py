"""The reference pages, made from the schema, from `rpc.discover`, and from the parsers."""

from collections.abc import Iterator
from typing import Any

from contrib.docs.markdown import (
    anchor,
    as_json,
    code,
    default_of,
    table,
    toml,
    type_of,
    unit_of,
)

from fallbackd.config.profiles import BACKENDS, built_in, chains
from fallbackd.config.schema import json_schema
from fallbackd.core.policy import REASONS
from fallbackd.core.reasons import Reason
from fallbackd.fronts.rpc.discover import document
from fallbackd_client import __version__

MADE = "<!-- Made by contrib/docs from the code: do not edit. -->\n\n"

PLACES = {
    "File": "top of the file",
    "Defaults": "[defaults]",
    "ReasonTable": "[policy.<reason>]",
    "BackendTable": "[backends.<id>]",
    "CredentialTable": "an entry of credentials",
    "EntryTable": "an entry of a chain",
    "RoleTable": "[roles.<name>]",
    "ReturnTable": "return_to_better of a role",
    "SignatureTable": "[[signatures]]",
    "OpencodeTable": "[opencode]",
    "ServerTable": "an entry of opencode.servers",
}
"""Where a table stands in the file, in the order of the page. Others are named by their key."""


# --- configuration -------------------------------------------------------------------------------


def configuration() -> str:
    tables = json_schema()["$defs"]
    names = [
        *(one for one in PLACES if one in tables),
        *(one for one in tables if one not in PLACES),
    ]
    headings = {name: _place(name, tables) for name in names if "properties" in tables[name]}
    parts = [
        MADE,
        "# Configuration reference\n",
        "`~/.config/fallbackd/config.toml` (`$XDG_CONFIG_HOME`, `$FALLBACKD_CONFIG`, `--config`)."
        " No file is needed. A change takes effect within a second, without a restart. A key that"
        " is wrong falls back to its default with a warning; one that is not valid TOML leaves the"
        " last good configuration in force. Check a file with `fallbackd-client config check`.\n",
        "Every key is optional. Durations (`_s`) are in seconds, sizes (`_bytes`) in bytes.\n",
    ]
    for name, heading in headings.items():
        parts.append(f"## `{heading}`\n" if "[" in heading else f"## {heading.capitalize()}\n")
        rows = [
            [
                f"`{key}`",
                one.get("description", ""),
                _linked(type_of(one, unit=unit_of(key)), headings),
                default_of(one),
                _example(key, one),
            ]
            for key, one in tables[name]["properties"].items()
        ]
        parts.append(table(["Key", "Meaning", "Type and bounds", "Default", "Example"], rows))
    parts += ["## Built-in backends\n", _built_in(), "## Built-in chains\n", _chains()]
    return "\n".join(parts)


def _place(name: str, tables: dict[str, Any]) -> str:
    if name in PLACES:
        return PLACES[name]
    for key, one in tables["File"]["properties"].items():
        if f"/{name}'" in str(one):
            return f"[{key}]"
    return name


def _linked(text: str, headings: dict[str, str]) -> str:
    """Names of tables become the places where they stand."""
    for name, heading in headings.items():
        shown = heading.strip("[]").replace("<", "&lt;").replace(">", "&gt;")
        text = text.replace(f"[{name}](#{anchor(name)})", f"[{shown}](#{anchor(heading)})")
    return text.replace("[Reason](#reason)", "a [reason](../words.md#reasons)")


def _example(key: str, schema: dict[str, Any]) -> str:
    """A line of the file; none for a table, which has a heading of its own."""
    if "examples" in schema:
        return f"`{key} = {toml(schema['examples'][0])}`"
    return f"`{key} = {toml(schema['default'])}`" if default_of(schema) else ""


def _built_in() -> str:
    return table(
        ["Backend", "Kind", "Context", "Cost"],
        [
            [
                f"`{one.id}`",
                f"`{one.kind}`",
                f"{one.context_tokens:,} tokens" if one.context_tokens else "",
                one.cost or "",
            ]
            for one in BACKENDS.values()
        ],
    )


def _chains() -> str:
    backends, _ = built_in({})
    rows = [
        [f"`{name}`", " → ".join(f"`{entry.backend}`" for entry in entries)]
        for name, entries in chains(backends).items()
    ]
    return (
        "What follows after a backend; `*` is the order for work that names no backend. With a"
        " Hermes server `hermes-api` is second in the chains of codex, opencode, gemini and"
        " numasec.\n\n" + table(["Backend", "Next"], rows)
    )


# --- reasons -------------------------------------------------------------------------------------


def reason_policies() -> str:
    """Default windows of every reason, for the page of words."""
    rows = []
    for one in Reason:
        found = REASONS.get(one)
        flags = one.row.flags
        rows.append(
            [
                f"`{one.value}`",
                "yes" if flags.hop else "no",
                f"`{found.state}`" if found else "–",
                _span(found.window_s) if found else "–",
                _span(found.max_window_s) if found else "–",
                _span(found.cooldown_s) if found and found.cooldown_s else "–",
            ]
        )
    return table(
        ["Reason", "Fails over", "State", "First window", "Longest window", "Recovering"], rows
    )


def _span(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"


# --- RPC -----------------------------------------------------------------------------------------


def rpc() -> str:
    found = document(__version__)
    schemas = found["components"]["schemas"]
    params = {one["name"] for one in _params_shapes(schemas)}
    parts = [
        MADE,
        "# RPC reference\n",
        "JSON-RPC 2.0 over the Unix socket of the daemon, one message per line (UTF-8, ended by a"
        " line feed, up to 4 MiB). Requests, notifications and batches; answers come in any order"
        " and carry the `id` of their request. Instants (`_at`) are Unix seconds (UTC), durations"
        " (`_s`) seconds. Result fields are null or empty where nothing is known; readers ignore"
        " fields that they do not know. `rpc.discover` returns this page as an OpenRPC document.\n",
        "## Methods\n",
        table(
            ["Method", "What it does"],
            [
                [f"[`{one['name']}`](#{anchor(one['name'])})", one["summary"]]
                for one in found["methods"]
            ],
        ),
    ]
    for method in found["methods"]:
        parts += _method(method)
    parts.append("## Shapes\n")
    for name, shape in sorted(schemas.items()):
        if "properties" in shape and name not in params and shape["properties"]:
            parts += [f"### {name}\n", f"{shape.get('description', '')}\n", _fields(shape)]
    parts += [
        "## Errors\n",
        "`data.kind` is a stable word for programs; the message is for people.\n",
    ]
    for one in found["components"]["errors"].values():
        parts.append(f"### {one['code']} {one['x-kinds'][0]}\n")
        parts.append(
            f"{one['message']} Kinds: {', '.join(f'`{kind}`' for kind in one['x-kinds'])}.\n"
        )
        parts.append(
            table(["Field of `data`", "Meaning"], [[f"`{k}`", v] for k, v in one["x-data"].items()])
        )
    parts += ["## Events\n", _events(schemas["Event"])]
    return "\n".join(parts)


def _params_shapes(schemas: dict[str, Any]) -> Iterator[dict[str, str]]:
    for name in schemas:
        if name.endswith("Params"):
            yield {"name": name}


def _method(method: dict[str, Any]) -> list[str]:
    parts = [f"### {method['name']}\n", f"{method['summary']}\n"]
    if method["params"]:
        parts.append(
            table(
                ["Parameter", "Meaning", "Type", "Default"],
                [
                    [
                        f"`{one['name']}`",
                        one["description"] + (" **Required.**" if one["required"] else ""),
                        type_of(one["schema"], unit=unit_of(one["name"])),
                        default_of(one["schema"]),
                    ]
                    for one in method["params"]
                ],
            )
        )
    else:
        parts.append("No parameters.\n")
    parts.append(f"Result: {type_of(method['result']['schema'])}.\n")
    kinds = [f"`{error['$ref'].rpartition('/')[2]}`" for error in method["errors"]]
    parts.append(f"Errors: {', '.join(kinds)}.\n")
    for one in method["examples"]:
        request = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": method["name"],
            "params": {each["name"]: each["value"] for each in one["params"]},
        }
        parts += [
            code(as_json(request), "json"),
            code(as_json(_short(one["result"]["value"])), "json"),
        ]
    return parts


def _short(value: Any) -> Any:
    """Without what is null or empty: the table of the shape has it."""
    match value:
        case dict():
            return {key: _short(one) for key, one in value.items() if one not in (None, [], {}, "")}
        case list():
            return [_short(one) for one in value]
        case _:
            return value


def _fields(shape: dict[str, Any]) -> str:
    return table(
        ["Field", "Meaning", "Type"],
        [
            [f"`{name}`", one.get("description", ""), type_of(one, unit=unit_of(name))]
            for name, one in shape["properties"].items()
        ],
    )


def _events(shape: dict[str, Any]) -> str:
    kinds = ", ".join(f"`{one}`" for one in shape["properties"]["kind"]["enum"])
    return (
        "After `events.subscribe` the daemon sends notifications `event` on the same connection,"
        f" with an [Event](#event) as `params`. Kinds: {kinds}.\n"
    )


# --- command line --------------------------------------------------------------------------------


def cli() -> str:
    parts = [MADE, "# Command line reference\n", "## fallbackd-client\n"]
    from fallbackd_client.cli.commands import COMMANDS
    from fallbackd_client.cli.parsing import command_parser, program_parser

    parts.append(code(program_parser().format_help(), "text"))
    for command in COMMANDS:
        parts.append(f"### {command.name}\n")
        parts.append(code(command_parser(command).format_help(), "text"))
    from fallbackd.app.main import _parser

    parts += ["## fallbackd\n", code(_parser().format_help(), "text")]
    return "\n".join(parts)


def pages() -> dict[str, str]:
    """Every page that is made, by its path below `docs/`."""
    return {
        "reference/configuration.md": configuration(),
        "reference/rpc.md": rpc(),
        "reference/cli.md": cli(),
    }
