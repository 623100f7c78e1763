"""`resolve`: which backend would be used now."""

from __future__ import annotations

import argparse

from fallbackd_client.cli import exits
from fallbackd_client.cli.output import Style, one_line, show
from fallbackd_client.cli.views import candidates_table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.calls import Json
    from fallbackd_client.client import Client


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("backend", metavar="BACKEND", nargs="?", help="backend to try first")
    parser.add_argument("--backend", metavar="B", dest="named", help="the same")
    parser.add_argument("--session", metavar="S")
    parser.add_argument("--role", metavar="R")
    parser.add_argument("--chain", metavar="C", help="name, or backends separated by commas")
    parser.add_argument("--model", metavar="M")
    parser.add_argument("--prompt-tokens", type=int, metavar="N", help="size of the prompt")
    parser.add_argument("--lease", action="store_true", help="take a lease where one is needed")


def run(args: argparse.Namespace, client: Client) -> int:
    chain = args.chain
    if chain is not None and "," in chain:
        chain = [name.strip() for name in chain.split(",") if name.strip()]
    given = {
        "backend": args.named or args.backend,
        "session": args.session,
        "role": args.role,
        "chain": chain,
        "model": args.model,
        "prompt_tokens": args.prompt_tokens,
        "lease": args.lease or None,
    }
    params = {name: value for name, value in given.items() if value is not None}
    show(args, client.call("resolve", params), _view)
    return exits.OK


def _view(found: dict[str, Json], style: Style) -> str:
    words = [style.paint(one_line(found.get("backend", "?")), "bold")]
    parts = ("model", "credential", "tier", "trigger")
    words += [f"{name} {one_line(found[name])}" for name in parts if found.get(name)]
    lease = found.get("lease")
    if isinstance(lease, dict):
        words.append(f"lease {lease.get('id')}, generation {lease.get('generation')}")
    lines = [", ".join(words)]
    if found.get("candidates"):
        lines.append(candidates_table(found["candidates"], style))
    return "\n".join(lines)
