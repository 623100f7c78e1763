"""`accounts`: who is logged in, and further accounts of one agent."""

from __future__ import annotations

import argparse
import os

from fallbackd_client.cli import exits
from fallbackd_client.cli.accounts import Account, accounts_of, new_account, with_account
from fallbackd_client.cli.commands.config import machine_of, not_made, rejected
from fallbackd_client.cli.config_file import ConfigFile, Rejected, read_text
from fallbackd_client.cli.doctor.findings import command
from fallbackd_client.cli.doctor.programs import ask_program, programs_of
from fallbackd_client.cli.output import UsageError, note, show
from fallbackd_client.cli.render import Style, wrapped
from fallbackd_client.cli.setup.changes import NotMade, short
from fallbackd_client.cli.tables import table
from fallbackd_client.errors import ClientError, NoDaemon, RpcError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fallbackd_client.calls import Json
    from fallbackd_client.cli.doctor.findings import Machine
    from fallbackd_client.cli.doctor.programs import Program
    from fallbackd_client.client import Client

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
        f"[backends.{account.backend}] is configured already, and is no account of"
        f" {account.program.name}; take another name"
    )


def _chains(client: Client, account: Account, file: ConfigFile) -> dict[str, Json]:
    """Those of the file that name the agent, its own chain, and the one for any work."""
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
    """As it is in effect: the built-in one is written nowhere."""
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
