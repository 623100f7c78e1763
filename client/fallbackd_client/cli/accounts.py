"""Several accounts of one agent: each is a backend of its own, in a directory of its own."""

from __future__ import annotations

import base64
import json
import os
import re

from fallbackd_client.cli.doctor.findings import command
from fallbackd_client.cli.output import UsageError
from fallbackd_client.settings.files import regular
from fallbackd_client.settings.jsonc import Unreadable
from fallbackd_client.settings.toml_block import parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from fallbackd_client.cli.doctor.findings import Machine
    from fallbackd_client.cli.doctor.programs import Program

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_MAX_BYTES = 4 * 1024 * 1024


class Account:
    """
    Args:
        backend: Its id in the configuration.
        directory: Where its login is; None: where the agent keeps its own.
    """

    __slots__ = ("backend", "directory", "program")

    def __init__(self, backend: str, program: Program, directory: str | None) -> None:
        self.backend = backend
        self.program = program
        self.directory = directory

    @property
    def environ(self) -> dict[str, str]:
        return {} if self.directory is None else {self.program.home: self.directory}

    @property
    def login(self) -> str:
        """A command line for a shell."""
        words = [f"{name}={command(value)}" for name, value in self.environ.items()]
        return " ".join([*words, self.program.login])

    def is_logged_in(self, machine: Machine) -> bool | None:
        """By its files; None: a variable of this shell is a login for all of them."""
        # What a person has configured for the usual account is trusted, as `setup` does.
        settings = self.program.settings if self.directory is None else ()
        files = (*self.program.files, *settings)
        if any(os.path.exists(self._place(machine, one)) for one in files):
            return True
        return None if any(machine.environ.get(one) for one in self.program.variables) else False

    def who(self, machine: Machine) -> str | None:
        """The name of the account, as the agent has noted it for itself."""
        for one in self.program.who:
            file, _, field = one.partition(":")
            name = _field(_read_json(self._place(machine, file)), field.split("."))
            if name is not None:
                return name
        return None

    def _place(self, machine: Machine, file: str) -> str:
        return self.program.place(file, machine.home, {**machine.environ, **self.environ})


def accounts_of(machine: Machine, programs: Sequence[Program], text: str) -> list[Account]:
    """
    The usual account of each agent that is installed, and those that the configuration adds.

    Args:
        text: The configuration file.
    """
    try:
        tables = parse(text).get("backends")
    except Unreadable:
        tables = None
    known = {one.name: one for one in programs if one.home}
    found = {name: Account(name, one, None) for name, one in known.items() if machine.which(name)}
    for id, table in tables.items() if isinstance(tables, dict) else ():
        if account := _added(machine, known, id, table):
            found.pop(id, None)
            found[id] = account
    return list(found.values())


def _added(
    machine: Machine, known: Mapping[str, Program], id: str, table: object
) -> Account | None:
    """The account that a table of the configuration adds; None: it is about something else."""
    if not isinstance(table, dict):
        return None
    program = known.get(str(table.get("kind") or id))
    env = table.get("env")
    if program is None or not isinstance(env, dict) or program.home not in env:
        return None
    directory = str(env[program.home])
    if directory.startswith("~/"):
        directory = machine.home + directory[1:]
    return Account(id, program, directory)


def new_account(machine: Machine, programs: Sequence[Program], agent: str, name: str) -> Account:
    """
    Raises:
        UsageError: The agent has no accounts, or the name cannot be one.
    """
    known = {one.name: one for one in programs if one.home}
    if agent not in known:
        names = ", ".join(known) or "no agent that is known here"
        raise UsageError(f"{agent}: accounts can be added for {names}")
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r}: use letters, digits, - and _ in the name of an account")
    directory = os.path.join(machine.home, f".{agent}-{name}")
    return Account(f"{agent}-{name}", known[agent], directory)


def with_account(chain: Sequence[Any], account: Account, *, first: bool) -> list[Any] | None:
    """
    A chain with the account behind the usual one of its agent.

    Args:
        first: It is the chain of that agent, which is its own first entry.

    Returns:
        None: It belongs nowhere in it, or is there.
    """
    names = [one.get("backend") if isinstance(one, dict) else one for one in chain]
    if account.backend in names:
        return None
    if first:
        return [account.backend, *chain]
    if account.program.name not in names:
        return None
    place = names.index(account.program.name) + 1
    return [*chain[:place], account.backend, *chain[place:]]


def _read_json(path: str) -> Any:
    try:
        with open(path, encoding="utf-8", opener=regular) as file:
            return json.loads(file.read(_MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return None


def _field(value: Any, names: list[str]) -> str | None:
    for name in names:
        if isinstance(value, str):
            value = _claims(value)
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, str) and value else None


def _claims(token: str) -> Any:
    """What a JSON Web Token says. Source: RFC 7519, 3."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        return json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, RecursionError):
        return None
