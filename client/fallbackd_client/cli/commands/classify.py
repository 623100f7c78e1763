"""`classify` and `report`: what a backend's output means, and how a call ended."""

from __future__ import annotations

import argparse
import sys

from fallbackd_client.cli import exits
from fallbackd_client.cli.output import (
    Style,
    UsageError,
    duration,
    emit_json,
    one_line,
    show,
    table,
    when,
)
from fallbackd_client.cli.views import health_table, now

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.calls import Json
    from fallbackd_client.client import Client

_CLASSIFY_FLAGS = (
    "retryable",
    "retry_same",
    "rotate_credential",
    "hop",
    "shrink_input",
    "needs_human",
    "marks_health",
)
_STREAMS = ["stdout", "stderr", "jsonl", "http", "exception", "unknown"]


def add_evidence_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--stream",
        choices=_STREAMS,
        metavar="S",
        help=f"where the text was seen: {', '.join(_STREAMS)} (default: unknown)",
    )
    add("--exit-code", type=int, metavar="N", help="of the program, where it has ended")
    add("--http-status", type=int, metavar="N")
    add("--header", action="append", metavar="NAME:VALUE", help="of an HTTP answer")
    add("--exception", metavar="TYPE", help="name of an exception; its message is the text")


def evidence(args: argparse.Namespace, file: str | None) -> dict[str, Json]:
    """The `evidence` object; empty where nothing was given."""
    text = None if file is None else _text(file)
    given = {
        "text": text,
        "stream": args.stream or (None if text is None else "unknown"),
        "exit_code": args.exit_code,
        "http_status": args.http_status,
        "headers": _headers(args.header),
        "exception": args.exception,
    }
    return {name: value for name, value in given.items() if value is not None}


def _text(file: str) -> str:
    """Outputs need not be valid UTF-8: what is not is replaced."""
    try:
        if file == "-":
            return sys.stdin.buffer.read().decode(errors="replace")
        with open(file, "rb") as source:
            return source.read().decode(errors="replace")
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error


def _headers(arguments: list[str] | None) -> dict[str, str] | None:
    if not arguments:
        return None
    headers = {}
    for argument in arguments:
        name, colon, value = argument.partition(":")
        if not colon or not name.strip():
            raise UsageError(f"--header takes NAME:VALUE, not {argument!r}")
        headers[name.strip()] = value.strip()
    return headers


def failure_view(failure: dict[str, Json], style: Style) -> str:
    """A failure with its flags, a line each."""
    head = style.paint(one_line(failure.get("reason", "?")), "red")
    if failure.get("detail"):
        head += f": {one_line(failure['detail'])}"
    lines = [head]
    if failure.get("scope"):
        lines.append(f"  scope       {one_line(failure['scope'])}")
    flags = [name.replace("_", " ") for name in _CLASSIFY_FLAGS if failure.get(name)]
    lines.append(f"  flags       {', '.join(flags) or 'none'}")
    for label, at, seconds in (
        ("stated", failure.get("stated_reset_at"), failure.get("stated_reset_s")),
        ("wait", failure.get("wait_until_at"), failure.get("wait_s")),
    ):
        if at is not None:
            lines.append(f"  {label.ljust(11)} until {when(at, now())}")
        elif seconds is not None:
            lines.append(f"  {label.ljust(11)} {duration(seconds)}")
    lines.append(
        f"  known by    {one_line(failure.get('signature') or '?')}"
        f" ({one_line(failure.get('confidence') or '?')})"
    )
    if failure.get("evidence"):
        lines.append(f"  evidence    {one_line(failure['evidence'])}")
    return "\n".join(lines)


def register_classify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        default="-",
        help="`-` (default): standard input; `train --from-samples`: learn from wrong verdicts",
    )
    add_evidence_arguments(parser)
    parser.add_argument("--kind", metavar="K", help="profile or API kind: codex, openai-http, …")
    parser.add_argument("--backend", metavar="B", help="a configured backend")
    parser.add_argument("--timezone", metavar="Z", help="for times without a zone")
    parser.add_argument(
        "--signatures",
        action="store_true",
        help="list the known signatures (of one --kind, or of all) and read no output",
    )
    parser.add_argument(
        "--explain",
        action="store_true",
        help="show what decided: statements, signature, probabilities, features",
    )
    parser.add_argument(
        "--from-samples",
        action="store_true",
        help="with `train`: private weights from the samples that `explain --wrong` has kept",
    )
    parser.add_argument("--now", type=float, metavar="T", help="read times from here (Unix)")


def run_classify(args: argparse.Namespace, client: Client) -> int:
    if args.from_samples:
        if args.file != "train":
            raise UsageError("--from-samples goes with train: classify train --from-samples")
        show(args, client.call("classification.train", {}), training_view)
        return exits.OK
    if args.signatures:
        asked = {} if args.kind is None else {"kind": args.kind}
        show(args, client.call("signatures.list", asked), signatures_view)
        return exits.OK
    given = {
        "evidence": evidence(args, args.file),
        "kind": args.kind,
        "backend": args.backend,
        "timezone": args.timezone,
        "now_at": args.now,
    }
    params = {name: value for name, value in given.items() if value is not None}
    if args.explain:
        show(args, client.call("classification.explain", params), explanation_view)
    else:
        show(args, client.call("classify", params), _classify_view)
    return exits.OK


def signatures_view(found: dict[str, Json], style: Style) -> str:
    """A line for each signature, in the order in which they are tried, and what it looks for."""
    rows = []
    for one in found.get("signatures") or []:
        looks_for = [f"/{one['pattern']}/"] if one.get("pattern") else []
        looks_for += [
            f"{name} {' '.join(str(word) for word in one[name])}"
            for name in ("codes", "statuses", "exits")
            if one.get(name)
        ]
        rows.append(
            [
                one_line(one.get("kind") or "any"),
                one_line(one.get("id", "?")),
                one_line(one.get("reason", "?")),
                one_line(one.get("source", "")),
                one_line("  ".join(looks_for)),
            ]
        )
    kinds = ", ".join(one_line(kind) for kind in found.get("kinds") or [])
    listed = table(["kind", "signature", "reason", "from", "looks for"], rows, style)
    return f"{listed}\n\nkinds: {kinds}" if kinds else listed


def explanation_view(found: dict[str, Json], style: Style) -> str:
    """The verdict, then what it rests on."""
    rule = found.get("rule")
    lines = [
        _classify_view(found.get("failure"), style),
        f"because       {one_line(found.get('because', '?'))}",
        "statements" if found.get("statements") else "statements    none",
        *(f"  {one_line(line)}" for line in found.get("statements") or []),
        f"signature     {one_line(rule)} ({one_line(found.get('rule_reason') or '?')})"
        if rule
        else "signature     none fits",
        f"failure       {found.get('failure_share', 0):.0%}"
        f" (margin {found.get('margin', 0):.2f}, alarm above {found.get('threshold', 0):.2f})",
        "reasons       "
        + ", ".join(
            f"{one_line(one['reason'])} {one['share']:.0%}" for one in found.get("reasons") or []
        ),
    ]
    for name, label in (("for_failure", "for a failure"), ("for_reason", "for the reason")):
        lines.append(label)
        lines += [
            f"  {one['weight']:+.3f}  {one_line(one['feature'])}" for one in found.get(name) or []
        ]
    return "\n".join(lines)


def training_view(found: dict[str, Json], style: Style) -> str:
    """Before and after, by sample; what weights from the other samples say tells how it serves."""
    samples = found.get("samples") or []
    rows = [
        [
            one_line(one["attempt"]),
            *(
                one_line(one.get(name) or "no failure")
                for name in ("right", "before", "after", "unseen")
            ),
            one_line(one.get("signature") or ""),
        ]
        for one in samples
    ]
    lines = []
    if rows:
        lines.append(
            table(["ATTEMPT", "RIGHT", "BEFORE", "AFTER", "UNSEEN", "DECIDED BY"], rows, style)
        )
        right = {
            name: sum(one.get(name) == one["right"] for one in samples)
            for name in ("before", "after", "unseen")
        }
        lines.append(
            f"right of {len(rows)}: {right['before']} before, {right['after']} after,"
            f" {right['unseen']} by weights that did not see the sample"
        )
    if found.get("passed_over"):
        lines.append(
            f"{found['passed_over']} passed over: no right reason, or one that is not learned"
        )
    path = found.get("path")
    lines.append(
        f"in use now: {one_line(path)}"
        if path
        else "nothing to learn from; the shipped weights are in use."
        " `fallbackd-client explain ID --wrong --reason R` keeps a sample"
    )
    return "\n".join(lines)


def _classify_view(found: Json, style: Style) -> str:
    return failure_view(found, style) if isinstance(found, dict) else "no failure"


def register_report(parser: argparse.ArgumentParser) -> None:
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


def run_report(args: argparse.Namespace, client: Client) -> int:
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
    show(args, client.call("report", params), _report_view)
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


def _report_view(found: dict[str, Json], style: Style) -> str:
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
