"""`accounts`: who is logged in, and further accounts of one agent."""

from __future__ import annotations

import argparse
import base64
import json
import os
import re

from fallbackd_client.cli import exits
from fallbackd_client.cli.commands.config import machine_of, not_made, rejected
from fallbackd_client.cli.config_file import ConfigFile, Rejected, read_text
from fallbackd_client.cli.doctor.findings import command
from fallbackd_client.cli.doctor.programs import ask_program, programs_of
from fallbackd_client.cli.output import Style, UsageError, note, show, table, wrapped
from fallbackd_client.cli.setup.changes import NotMade, short
from fallbackd_client.errors import ClientError, NoDaemon, RpcError
from fallbackd_client.settings.files import regular
from fallbackd_client.settings.jsonc import Unreadable
from fallbackd_client.settings.toml_block import parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from fallbackd_client.calls import Json
    from fallbackd_client.cli.doctor.findings import Machine
    from fallbackd_client.cli.doctor.programs import Program
    from fallbackd_client.client import Client

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
        """Judge by its files; None: a variable of this shell is a login for all of them."""
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
    for id, written in tables.items() if isinstance(tables, dict) else ():
        if account := _added_to(machine, known, id, written):
            found.pop(id, None)
            found[id] = account
    return list(found.values())


def _added_to(
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
    """Read the claims of a JSON Web Token. Source: RFC 7519, 3."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        return json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, RecursionError):
        return None


_KEYRING = (
    "If the agent keeps its logins in a keyring of the desktop instead of files, accounts may share"
    " one entry: `fallbackd-client accounts list` has to show two names."
)


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["list", "add"], nargs="?", default="list")
    parser.add_argument("agent", metavar="AGENT", nargs="?", help="add: codex, claude or gemini")
    parser.add_argument("name", metavar="NAME", nargs="?", help="add: a name for the account")


def run(args: argparse.Namespace, client: Client) -> int:
    machine = machine_of(args, client)
    programs = _programs(machine, client)
    if args.action == "add":
        if not args.agent or not args.name:
            raise UsageError("accounts add takes AGENT NAME, for example: accounts add codex work")
        return _add(args, machine, client, programs)
    if args.agent:
        raise UsageError("accounts list takes no words")
    found = accounts_of(machine, programs, read_text(machine.config))
    show(args, {"accounts": [_row(machine, one) for one in found]}, view)
    return exits.OK


def _programs(machine: Machine, client: Client) -> tuple[Program, ...]:
    try:
        return programs_of(client.call("status", {"programs": True}).get("programs"))
    except NoDaemon:
        return ask_program(machine, machine.which("fallbackd"))


def _row(machine: Machine, one: Account) -> dict[str, Json]:
    return {
        "backend": one.backend,
        "agent": one.program.name,
        "directory": one.directory,
        "logged_in": one.is_logged_in(machine),
        "who": one.who(machine),
        "login": one.login,
    }


def view(found: dict[str, Json], style: Style) -> str:
    if not found["accounts"]:
        return "no agent with accounts is installed"
    words = {True: "yes", False: "no", None: "by a variable"}
    rows = [
        [one["backend"], words[one["logged_in"]], one["who"] or "", one["directory"] or "(usual)"]
        for one in found["accounts"]
    ]
    lines = [table(["ACCOUNT", "LOGGED IN", "WHO", "DIRECTORY"], rows, style)]
    lines += [
        f"{one['backend']}: log in with: {one['login']}"
        for one in found["accounts"]
        if one["logged_in"] is False
    ]
    return "\n".join(lines)


def _add(
    args: argparse.Namespace, machine: Machine, client: Client, programs: Sequence[Program]
) -> int:
    """One that is configured already is put into the chains that do not name it."""
    account = new_account(machine, programs, args.agent, args.name)
    file = ConfigFile(machine.config)
    is_new = account.backend not in file.document.get("backends", {})
    if not is_new:
        account = _configured(account, accounts_of(machine, programs, file.text))
    directory = account.directory
    assert directory is not None
    chains = _chains(client, account, file)
    if is_new:
        file.set(["backends", account.backend, "kind"], account.program.name)
        file.set(["backends", account.backend, "env"], file.inline_table(account.environ))
    elif not chains:
        raise UsageError(
            f"{account.backend} is configured already; log in there with: {account.login}"
        )
    for name, chain in chains.items():
        file.set(["chains", name], chain)
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        file.save(machine, client)
    except NotMade as error:
        return not_made(args, str(error))
    except OSError as error:
        return not_made(args, f"cannot make {directory}: {error.strerror}")
    except Rejected as error:
        return rejected(args, machine.config, error.problems)
    done = {**_row(machine, account), "chains": chains}
    show(args, done, lambda found, style: _added(machine, found, style, is_new=is_new))
    return exits.OK


def _configured(account: Account, known: Sequence[Account]) -> Account:
    """The one of that name and agent, with the directory that it has."""
    for one in known:
        if (one.backend, one.program.name) == (account.backend, account.program.name):
            return one
    raise UsageError(
        f"[backends.{account.backend}] is configured already, and is not an account of"
        f" {account.program.name}; take another name"
    )


def _chains(client: Client, account: Account, file: ConfigFile) -> dict[str, Json]:
    """Return the chains of the file that name the agent, its own one, and that for any work."""
    agent = account.program.name
    written = file.document.get("chains", {})
    found = {
        str(name): with_account(chain, account, first=name == agent)
        for name, chain in written.items()
        if isinstance(chain, list)
    }
    try:
        if agent not in found:
            in_effect = (client.call("config.get", {}).get("config") or {}).get("chains") or {}
            found[agent] = with_account(in_effect.get(agent) or [], account, first=True)
        if "*" not in found:
            found["*"] = with_account(_any_chain(client), account, first=False)
    except ClientError as error:
        name = account.backend.removeprefix(f"{agent}-")
        again = command("fallbackd-client", "accounts", "add", agent, name)
        note(
            f"no daemon could be asked for the built-in chains: {error}; put {account.backend}"
            f" into them with the same command when one runs: {again}"
        )
    return {name: chain for name, chain in found.items() if chain is not None}


def _any_chain(client: Client) -> list[Json]:
    """Return the chain in effect: the built-in one is written nowhere."""
    try:
        candidates = client.call("resolve", {}).get("candidates") or []
    except RpcError as error:
        data = error.data if isinstance(error.data, dict) else {}
        candidates = data.get("candidates") or []
    return [one["backend"] for one in candidates]


def _added(machine: Machine, found: dict[str, Json], style: Style, *, is_new: bool) -> str:
    config, directory = short(machine, machine.config), short(machine, str(found["directory"]))
    lines = [f"made {directory}", f"added [backends.{found['backend']}] to {config}"]
    if not is_new:
        lines = [f"{found['backend']} was configured already; added it to chains in {config}"]
    for name, chain in found["chains"].items():
        names = [one["backend"] if isinstance(one, dict) else one for one in chain]
        lines.append(f"chain {name}: {', '.join(names)}")
    return "\n".join([*lines, f"Log in with: {found['login']}", *wrapped(_KEYRING, style)])
