"""`config`: show, check, change or reload the configuration, or import that of another program."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys

from fallbackd_client.cli import exits
from fallbackd_client.cli.config_file import (
    ConfigFile,
    Rejected,
    check,
    edited,
    parsed_key,
    parsed_value,
    put_in_effect,
    read_text,
)
from fallbackd_client.cli.doctor.findings import Machine
from fallbackd_client.cli.output import (
    Style,
    UsageError,
    clean,
    emit_json,
    note,
    one_line,
    show,
    style_of,
)
from fallbackd_client.cli.parsing import add_actions
from fallbackd_client.cli.setup.changes import Asking, NotMade
from fallbackd_client.cli.setup.starter import starter_text
from fallbackd_client.cli.share import CONFIG, shared_text
from fallbackd_client.errors import ClientError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from fallbackd_client.calls import Json
    from fallbackd_client.client import Client


_ACTIONS = {
    "check": "say what is wrong, and where",
    "edit": "open the file in an editor, for a chain, a backend or a role of your own",
    "import": "take over what another program has",
    "path": "say where the file is",
    "reload": "read the file again",
    "set": "change a value, or several at once",
    "show": "show what is in effect, and what of it is built in",
}
_SECRET = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD")


def register(parser: argparse.ArgumentParser) -> None:
    actions = add_actions(parser, _ACTIONS)
    actions["check"].add_argument(
        "file", metavar="FILE", nargs="?", help="instead of the one in effect"
    )
    import_ = actions["import"]
    import_.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        help="a config.yaml of Hermes; without a file the JKZ_* variables",
    )
    import_.add_argument(
        "--dry-run",
        metavar="FILE",
        nargs="?",
        const="",
        help="show what would be added, change nothing",
    )  # with the FILE behind it, since a parser has given up on an absent FILE by then
    set_ = actions["set"]
    set_.add_argument("key", metavar="KEY", help="as in defaults.settle_s")
    set_.add_argument("value", metavar="VALUE", help="a TOML value, or text")
    set_.add_argument(
        "more",
        metavar="KEY VALUE",
        nargs="*",
        help="further keys, changed together, where one needs the other",
    )


def run(args: argparse.Namespace, client: Client) -> int:
    try:
        return _run(args, client)
    except NotMade as error:
        return not_made(args, str(error))


def not_made(args: argparse.Namespace, why: str) -> int:
    if args.json:
        emit_json({"error": {"message": why, "kind": "not_made"}})
    note(f"fallbackd-client: {why}")
    return exits.FAILED


def rejected(args: argparse.Namespace, path: str, problems: list[str]) -> int:
    """The file would not be usable as it was to be, and was left as it was."""
    if args.json:
        emit_json({"ok": False, "path": path, "problems": problems})
    for one in problems:
        note(f"  {one}")
    note(f"{path} was left as it is")
    return exits.CONFIG


def _run(args: argparse.Namespace, client: Client) -> int:
    match args.action:
        case "check":
            return _check(args, client)
        case "path":
            show(args, {"path": machine_of(args, client).config}, lambda one, _: one["path"])
        case "set":
            return _set(args, client)
        case "edit":
            return _edit(args, client)
        case "import":
            show(args, client.call("config.import", import_params(args)), import_view)
        case "reload":
            show(args, client.call("config.reload", {}), reload_view)
        case _:
            show(args, client.call("config.get", {}), config_view)
    return exits.OK


def _check(args: argparse.Namespace, client: Client) -> int:
    params = {"directory": os.getcwd()}
    if args.file is not None:
        params = {"path": os.path.abspath(args.file)}
    found = client.call("config.check", params)
    if args.json:
        emit_json(found)
    else:  # not `show`: warnings are part of the view
        print(check_view(clean(found), style_of(sys.stdout)), flush=True)
    return exits.OK if found.get("ok") else exits.CONFIG


def machine_of(args: argparse.Namespace, client: Client) -> Machine:
    """Return the machine with the places of the daemon that answers, else of the next one."""
    machine = Machine(socket=args.socket)
    try:
        found = client.call("status", {}, timeout_s=5.0)
    except ClientError:
        return machine
    machine.follow(found.get("daemon") or {})
    return machine


def _set(args: argparse.Namespace, client: Client) -> int:
    words = [args.key, args.value, *args.more]
    if len(words) % 2:
        raise UsageError(f"config set: {words[-1]} has no VALUE")
    machine = machine_of(args, client)
    pairs = [
        (parsed_key(key), parsed_value(value))
        for key, value in zip(words[::2], words[1::2], strict=True)
    ]
    file = ConfigFile(machine.config)
    for keys, value in pairs:
        file.set(keys, value)
    changed = [keys for keys, _ in pairs]
    return _saved(args, lambda: file.save(machine, client, keys=changed), machine.config)


def _saved(args: argparse.Namespace, save: Callable[[], None], path: str) -> int:
    try:
        save()
    except Rejected as error:
        return rejected(args, path, error.problems)
    show(args, {"ok": True, "path": path}, lambda found, _: f"changed {found['path']}")
    return exits.OK


def _edit(args: argparse.Namespace, client: Client) -> int:
    """Open the user's editor; a file that would not be usable is edited again."""
    asking = Asking(yes=False)
    asking.require_terminal("change one value with: fallbackd-client config set KEY VALUE")
    machine = machine_of(args, client)
    before = read_text(machine.config) or starter_text(shared_text(CONFIG))
    text = before
    while True:
        text = edited(machine, text)
        if text == before:
            note(f"no change; {machine.config} was left as it is")
            return exits.OK
        errors, problems = check(machine, client, machine.config, text)
        for one in problems:
            note(f"  {one}")
        if not problems or not asking.agree("Edit again?"):
            break
    if errors:
        note(f"{machine.config} was left as it is")
        return exits.CONFIG
    put_in_effect(client, machine.config, text)
    note(f"changed {machine.config}")
    return exits.OK


def import_params(args: argparse.Namespace) -> dict[str, Json]:
    params: dict[str, Json] = {"write": args.dry_run is None}
    if file := args.file or args.dry_run:
        params["path"] = os.path.abspath(file)
        return params
    found: dict[str, Json] = {}
    for name, value in os.environ.items():
        if name.startswith("JKZ_"):
            # That there is a key is shown, and nothing more of it.
            found[name] = "" if name.endswith(_SECRET) else value
    params["env"] = found
    return params


def import_view(found: dict[str, Json], style: Style) -> str:
    lines = [str(found.get("toml") or "").rstrip("\n") or "# nothing to take"]
    for label, key in (("taken", "to"), ("left", "why")):
        rows = found.get(label)
        for row in rows if isinstance(rows, list) else []:
            if isinstance(row, dict):
                what, rest = one_line(row.get("what", "")), one_line(row.get(key, ""))
                word = f"taken: {what} -> {rest}" if label == "taken" else f"left:  {what}: {rest}"
                lines.append(style.paint(f"# {word}", "green" if label == "taken" else "yellow"))
    if found.get("written"):
        lines.append(f"# written to {one_line(found['written'])}")
    return "\n".join(lines)


def check_view(found: dict[str, Json], style: Style) -> str:
    lines = [_problem("error", one) for one in found.get("errors") or []]
    lines += [_problem("warning", one) for one in found.get("warnings") or []]
    where = found.get("path") or "built-in configuration"
    warned = len(found.get("warnings") or [])
    if found.get("ok") and warned:
        word = "warning" if warned == 1 else "warnings"
        lines.append(style.paint(f"{where}: usable, with {warned} {word}", "yellow"))
    elif found.get("ok"):
        lines.append(style.paint(f"{where}: good", "green"))
    else:
        lines.append(style.paint(f"{where}: not usable as it is", "red"))
    return "\n".join(lines)


def reload_view(found: dict[str, Json], style: Style) -> str:
    where = found.get("path") or "built-in configuration"
    return f"{where}: {'changed' if found.get('changed') else 'no change'}"


def config_view(found: dict[str, Json], style: Style) -> str:
    """The configuration in effect as TOML; what the file does not say is marked `built-in`."""
    lines = [f"# {found.get('path') or 'built-in configuration'}"]
    lines += ["# " + _problem("error", one) for one in found.get("errors") or []]
    lines += _table_lines(found.get("config") or {}, _written(found.get("path")), "")
    return "\n".join(lines)


def _written(path: Json) -> dict[str, Json]:
    """The tables of the file as it is now; empty: there is none, or it cannot be read."""
    import tomllib

    try:
        with open(str(path), "rb") as file:
            return tomllib.load(file)
    except (OSError, ValueError):
        return {}


def _table_lines(table: dict[str, Json], written: dict[str, Json], name: str) -> list[str]:
    values = {key: one for key, one in table.items() if not isinstance(one, dict)}
    lines = ["", f"[{name}]"] if name and (values or not table) else []
    for key, one in values.items():
        if one is not None:
            origin = "" if key in written else "  # built-in"
            lines.append(f"{_toml_key(key)} = {_toml_value(one)}{origin}")
    for key, one in table.items():
        if isinstance(one, dict):
            below = written.get(key)
            inner = f"{name}.{_toml_key(key)}" if name else _toml_key(key)
            lines += _table_lines(one, below if isinstance(below, dict) else {}, inner)
    return lines


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml_value(key)


def _toml_value(value: Json) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():  # a string of JSON without DEL, which no output has, is one of TOML
            return json.dumps(value, ensure_ascii=False)
        case list():
            return f"[{', '.join(_toml_value(one) for one in value)}]"
        case dict():
            pairs = (f"{_toml_key(key)} = {_toml_value(one)}" for key, one in value.items())
            return f"{{ {', '.join(pairs)} }}"
        case _:
            return str(value)


def _problem(label: str, problem: Json) -> str:
    if not isinstance(problem, dict):
        return f"{label}: {one_line(problem)}"
    where = problem.get("path") or "file"
    return f"{label}: {one_line(where)}: {one_line(problem.get('message', ''))}"
