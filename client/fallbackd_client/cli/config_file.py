"""
The configuration file, changed so that comments and order stay as they are.

The only user of tomlkit, which is loaded when something is changed.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import tomllib

from fallbackd_client.cli.output import UsageError
from fallbackd_client.cli.setup.changes import write
from fallbackd_client.errors import ClientError
from fallbackd_client.settings.editing import read
from fallbackd_client.settings.files import Form
from fallbackd_client.settings.jsonc import Unreadable, unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from fallbackd_client.cli.doctor.findings import Machine
    from fallbackd_client.client import Client

MISSING_LIBRARY = (
    "the Python package tomlkit is needed to change the configuration and keep its comments;"
    " install it beside this client, for example: pipx inject fallbackd-client tomlkit"
)
_BARE = re.compile(r"[A-Za-z0-9_-]+")


class Rejected(Exception):
    """
    The file would not be usable, or not in effect as written; it was left as it is.

    Attributes:
        problems: `path: message`, as `config check` shows them.
    """

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class ConfigFile:
    """
    One change of the file: read, edited, checked, written in one step.

    Raises:
        UsageError: The file cannot be read, or tomlkit is missing.
    """

    def __init__(self, path: str) -> None:
        try:
            import tomlkit
        except ImportError as error:
            raise UsageError(MISSING_LIBRARY) from error
        self.path = path
        self.text = read_text(path)
        self._kit = tomlkit
        try:
            self.document = tomlkit.parse(self.text)
        except (ValueError, RecursionError) as error:
            raise UsageError(
                f"{path} is not valid TOML, so it cannot be changed: {unreadable(error)};"
                " correct it with: fallbackd-client config edit"
            ) from error

    def set(self, keys: list[str], value: Any) -> None:
        """Set one value, making the tables above it."""
        place: Any = self.document
        for key in keys[:-1]:
            if key not in place:
                place[key] = self._kit.table(is_super_table=key is not keys[-2])
            place = place[key]
            if not hasattr(place, "keys"):
                raise UsageError(f"{'.'.join(keys)}: {key} is not a table")
        place[keys[-1]] = value

    def inline_table(self, values: dict[str, str]) -> Any:
        table = self._kit.inline_table()
        table.update(values)
        return table

    def result(self) -> str:
        return self._kit.dumps(self.document)

    def save(self, machine: Machine, client: Client, *, keys: Sequence[Sequence[str]] = ()) -> None:
        """
        Args:
            keys: Where nothing may be wrong, not even what was wrong before.

        Raises:
            Rejected: The change makes a problem that was not there before.
        """
        text = self.result()
        before = set(check(machine, client, self.path, self.text)[1])
        errors, problems = check(machine, client, self.path, text)
        new = [
            one for one in problems if one not in before or any(_is_at(one, key) for key in keys)
        ]
        if errors or new:
            raise Rejected(errors or new)
        put_in_effect(client, self.path, text)


def put_in_effect(client: Client, path: str, text: str) -> None:
    """Write the file; a daemon that runs has read it when this returns."""
    write(path, _form(path).whole(text), mode=0o600)
    try:
        client.call("config.reload", {})
    except ClientError:
        return  # it notices the change by itself, or reads it when it starts


def read_text(path: str) -> str:
    """Empty where there is no file."""
    return _form(path).text


def _form(path: str) -> Form:
    try:
        return Form(read(path) or "")
    except Unreadable as error:
        raise UsageError(str(error)) from error


def parsed_key(text: str) -> list[str]:
    """`defaults.settle_s`, `chains."*"`: a key as TOML writes it."""
    try:
        table: Any = tomllib.loads(f"{text} = 0")
    except (ValueError, RecursionError):
        table = None
    keys: list[str] = []
    while isinstance(table, dict) and len(table) == 1:
        ((key, table),) = table.items()
        keys.append(key)
    if table != 0 or not keys:
        raise UsageError(
            f"{text!r} is not a key: write it as in the file, with dots between tables, for example"
            " defaults.settle_s or 'chains.\"*\"'"
        )
    return keys


def parsed_value(text: str) -> Any:
    """A TOML value; what is none is text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def check(machine: Machine, client: Client, path: str, text: str) -> tuple[list[str], list[str]]:
    """Errors, and errors with warnings, of a text in place of the file: by the daemon or by its
    program."""
    try:
        found = client.call("config.check", {"text": text})
    except ClientError:
        return _check_by_program(machine, path, text)
    errors = [_words(one) for one in found.get("errors") or []]
    return errors, errors + [_words(one) for one in found.get("warnings") or []]


def _words(problem: Any) -> str:
    return f"{problem.get('path') or 'file'}: {problem.get('message')}"


def _is_at(problem: str, key: Sequence[str]) -> bool:
    """Match the key or something in it. The path of a problem has keys as the file may have."""
    words = (one if _BARE.fullmatch(one) else json.dumps(one, ensure_ascii=False) for one in key)
    return bool(key) and re.match(rf"{re.escape('.'.join(words))}[:.\[]", problem) is not None


def _check_by_program(machine: Machine, path: str, text: str) -> tuple[list[str], list[str]]:
    from fallbackd_client.cli.setup.units import NoProgram, daemon_program

    try:
        program = daemon_program(machine)
    except NoProgram as error:
        raise UsageError(f"{error}; or start the daemon, which checks the change") from error
    with tempfile.NamedTemporaryFile("w", suffix=".toml", encoding="utf-8") as draft:
        draft.write(text)
        draft.flush()
        ran = machine.run(program, "--config", draft.name, "--check-config", limit_s=60.0)
        said = ran.err.replace(draft.name, path).splitlines()
    errors = [one.removeprefix("error: ") for one in said if one.startswith("error: ")]
    warnings = [one.removeprefix("warning: ") for one in said if one.startswith("warning: ")]
    return errors, errors + warnings


def edited(machine: Machine, text: str) -> str:
    """
    Return the text as the user's editor leaves it, in a draft: the file itself is watched.

    Raises:
        UsageError: The editor failed.
    """
    editor = machine.environ.get("VISUAL") or machine.environ.get("EDITOR") or "vi"
    with tempfile.TemporaryDirectory(prefix="fallbackd-config-") as directory:
        draft = os.path.join(directory, "config.toml")
        write(draft, text, mode=0o600)
        # As git does it: the variable may hold arguments.
        done = subprocess.run(["/bin/sh", "-c", f'{editor} "$@"', editor, draft], check=False)
        if done.returncode != 0:
            status = done.returncode
            raise UsageError(f"{editor} ended with exit status {status}; nothing was changed")
        return read_text(draft)
