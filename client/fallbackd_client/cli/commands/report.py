"""`report`: the outcome of a call that was made without the daemon."""

from __future__ import annotations

import argparse
import sys

from fallbackd_client.cli import exits
from fallbackd_client.cli.commands.classify import add_evidence_arguments, evidence, failure_view
from fallbackd_client.cli.output import Style, UsageError, emit_json, one_line, show
from fallbackd_client.cli.views import health_table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.calls import Json
    from fallbackd_client.client import Client


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("outcome", nargs="?", choices=["success", "failure", "released"])
    parser.add_argument("--backend", metavar="B", help="backend that was called")
    parser.add_argument(
        "--claude-hook",
        action="store_true",
        help="answer a hook of Claude Code, which is on standard input",
    )
    parser.add_argument("--session", metavar="S")
    parser.add_argument("--model", metavar="M")
    parser.add_argument("--credential", metavar="C", help="label of the credential")
    parser.add_argument("--attempt", metavar="A")
    parser.add_argument("--lease", metavar="L", help="the lease that `resolve` gave")
    parser.add_argument("--turn", metavar="T", help="the `turn` that `resolve` or `report` gave")
    parser.add_argument(
        "--next-lease", action="store_true", help="take a lease for what comes next"
    )
    parser.add_argument("--started-at", type=float, metavar="T", help="Unix seconds")
    parser.add_argument("--file", metavar="FILE", help="output of the call; `-`: standard input")
    add_evidence_arguments(parser)


def run(args: argparse.Namespace, client: Client) -> int:
    if args.claude_hook:
        return _claude_hook(args)
    if args.outcome is None or args.backend is None:
        raise UsageError("name an OUTCOME and the backend: report failure --backend B")
    found_evidence = evidence(args, args.file)
    given = {
        "outcome": args.outcome,
        "backend": args.backend,
        "session": args.session,
        "model": args.model,
        "credential": args.credential,
        "attempt": args.attempt,
        "lease": args.lease,
        "turn": args.turn,
        "next_lease": args.next_lease or None,
        "started_at": args.started_at,
        "evidence": found_evidence or None,
    }
    params = {name: value for name, value in given.items() if value is not None}
    show(args, client.call("report", params), _view)
    return exits.OK


def _claude_hook(args: argparse.Namespace) -> int:
    """Never fails: Claude Code would show that as a problem of its own."""
    from fallbackd_client.interactive.hook import MAX_BYTES, held, parsed, report

    event = parsed(sys.stdin.buffer.read(MAX_BYTES))
    if (why := held(event)) is not None:
        emit_json({"decision": "block", "reason": why})
    elif (words := report(event, args.socket)) is not None:
        emit_json({"systemMessage": words})
    return exits.OK


def _view(found: dict[str, Json], style: Style) -> str:
    parts = []
    if isinstance(found.get("failure"), dict):
        parts.append(failure_view(found["failure"], style))
    if found.get("health"):
        parts.append(health_table(found["health"], style))
    if isinstance(found.get("next"), dict):
        following = found["next"]
        words = [one_line(following.get("backend", "?"))]
        words += [
            f"{name} {one_line(following[name])}"
            for name in ("model", "credential")
            if following.get(name)
        ]
        lease = found.get("lease")
        if isinstance(lease, dict):
            words.append(f"lease {lease.get('id')}, generation {lease.get('generation')}")
        parts.append(f"go on with {', '.join(words)}")
    elif found.get("why"):
        parts.append(f"no other candidate: {one_line(found['why'])}")
    return "\n".join(parts) or "taken"
