"""`questions`, `answer`, `health`, `resolve`, `prepare`, `suggest`: what is decided, and decide."""

from __future__ import annotations

import argparse
import os

from fallbackd_client.cli import exits
from fallbackd_client.cli.output import Style, duration, one_line, show, table
from fallbackd_client.cli.parsing import add_actions, duration_s
from fallbackd_client.cli.views import (
    answered_line,
    candidates_table,
    health_table,
    limits_words,
    now,
    questions_view,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.calls import Json
    from fallbackd_client.client import Client


def register_questions(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--session", metavar="S", help="only of this session")
    parser.add_argument("--all", action="store_true", help="those too that were answered")


def run_questions(args: argparse.Namespace, client: Client) -> int:
    given = {"session": args.session, "closed": args.all or None}
    params = {name: value for name, value in given.items() if value is not None}
    found = client.call("question.list", params)
    show(args, found, lambda all_, style: questions_view(all_.get("questions") or [], style))
    return exits.OK


def register_answer(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("question", metavar="QUESTION", help="its id, from `questions`")
    parser.add_argument("choice", metavar="CHOICE", help="one of its choices")
    parser.add_argument("--note", metavar="TEXT", help="kept with the answer")


def run_answer(args: argparse.Namespace, client: Client) -> int:
    given = {"question": args.question, "choice": args.choice, "note": args.note}
    params = {name: value for name, value in given.items() if value is not None}
    found = client.call("question.answer", params)
    show(args, found, lambda one, style: answered_line(one))
    return exits.OK


_ACTIONS = {
    "list": "list all backends (the default)",
    "get": "show one backend",
    "mark": "take a backend out of rotation",
    "clear": "forget what is held against a backend, or against all",
    "pause": "keep a backend out of rotation until it is resumed",
    "resume": "end a pause",
}


def register_health(parser: argparse.ArgumentParser) -> None:
    actions = add_actions(parser, _ACTIONS, default="list")
    parser.set_defaults(only=None, target=None)
    actions["list"].add_argument("--only", choices=["unhealthy"], help="leave the healthy ones out")
    for name in ("get", "mark", "clear", "pause", "resume"):
        actions[name].add_argument(
            "target",
            metavar="TARGET",
            nargs="?" if name == "clear" else None,
            help="a backend, or a scope such as quota:GROUP",
        )
    mark = actions["mark"]
    mark.add_argument("words", metavar="REASON", nargs="?", help="a reason, or any words")
    mark.add_argument("--reason", metavar="R", help="the same")
    mark.add_argument(
        "--ttl",
        "--ttl-s",
        dest="ttl",
        type=duration_s,
        metavar="DURATION",
        help="how long; 0 clears",
    )
    mark.add_argument("--note", metavar="TEXT", help="kept with the mark")
    actions["pause"].add_argument("--note", metavar="TEXT", help="why")
    for name in ("mark", "clear", "pause", "resume"):
        actions[name].add_argument(
            "--everywhere", action="store_true", help="on all machines that share health"
        )


def run_health(args: argparse.Namespace, client: Client) -> int:
    given = {
        "action": args.action,
        "target": args.target,
        "only": args.only,
        "reason": getattr(args, "reason", None) or getattr(args, "words", None),
        "ttl_s": getattr(args, "ttl", None),
        "note": getattr(args, "note", None),
        "everywhere": getattr(args, "everywhere", False) or None,
    }
    params = {name: value for name, value in given.items() if value is not None}
    show(args, client.call("health", params), health_view)
    return exits.OK


def health_view(found: dict[str, Json], style: Style) -> str:
    lines = []
    if "cleared" in found:
        cleared = found["cleared"]
        lines.append("cleared: " + ", ".join(cleared) if cleared else "nothing to clear")
    if "health" in found:
        lines.append(health_table(found["health"], style, verbose=True))
    return "\n".join(lines)


def register_resolve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("backend", metavar="BACKEND", nargs="?", help="backend to try first")
    parser.add_argument("--backend", metavar="B", dest="named", help="the same")
    parser.add_argument("--session", metavar="S")
    parser.add_argument("--role", metavar="R")
    parser.add_argument("--chain", metavar="C", help="name, or backends separated by commas")
    parser.add_argument("--model", metavar="M")
    parser.add_argument("--prompt-tokens", type=int, metavar="N", help="size of the prompt")
    parser.add_argument("--lease", action="store_true", help="take a lease where one is needed")


def run_resolve(args: argparse.Namespace, client: Client) -> int:
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
    show(args, client.call("resolve", params), _resolve_view)
    return exits.OK


def _resolve_view(found: dict[str, Json], style: Style) -> str:
    words = [style.paint(one_line(found.get("backend", "?")), "bold")]
    parts = ("model", "credential", "tier", "trigger")
    words += [f"{name} {one_line(found[name])}" for name in parts if found.get(name)]
    lease = found.get("lease")
    if isinstance(lease, dict):
        words.append(f"lease {lease.get('id')}, generation {lease.get('generation')}")
    lines = [", ".join(words)]
    if words_of_plan := limits_words(found.get("limits"), now()):
        lines.append(f"plan used: {words_of_plan}")
    if found.get("candidates"):
        lines.append(candidates_table(found["candidates"], style))
    return "\n".join(lines)


def register_prepare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("backend", metavar="BACKEND", nargs="?", help="backend to try first")
    parser.add_argument("--session", metavar="S")
    parser.add_argument("--role", metavar="R")
    parser.add_argument("--chain", metavar="C", help="name of a chain")
    parser.add_argument("--model", metavar="M")
    parser.add_argument("--cwd", metavar="DIR", default=".", help="directory of the prompt")
    parser.add_argument("--permissions", choices=("read", "workspace", "full"))


def run_prepare(args: argparse.Namespace, client: Client) -> int:
    names = ("backend", "session", "role", "chain", "model", "permissions")
    params = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    params["cwd"] = os.path.abspath(args.cwd)
    show(args, client.call("prepare", params), _prepare_view)
    return exits.OK


def _prepare_view(found: dict[str, Json], style: Style) -> str:
    words = "a program is ready, or starting" if found.get("ready") else "the prompt will start it"
    return f"{style.paint(one_line(found.get('backend', '?')), 'bold')}: {words}"


SIZES = ("tiny", "small", "medium", "large", "xlarge")
COMPLEXITIES = ("low", "medium", "high", "extreme")


def register_suggest(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("goal", metavar="GOAL", nargs="?", default="", help="the task")
    parser.add_argument("--size", choices=SIZES, help="size of the project")
    parser.add_argument(
        "--scope", metavar="W", help="code, refactor, security, research, analysis, build, test"
    )
    parser.add_argument("--complexity", choices=COMPLEXITIES, help="how hard the task is")
    parser.add_argument("--root", metavar="D", help="directory of the project")


def run_suggest(args: argparse.Namespace, client: Client) -> int:
    given = {
        "goal": args.goal,
        "project_size": args.size,
        "scope": args.scope,
        "complexity": args.complexity,
        "project_root": None if args.root is None else os.path.abspath(args.root),
    }
    params = {name: value for name, value in given.items() if value is not None}
    found = client.call("suggest", params)
    show(args, found, suggest_view)
    return exits.OK if found.get("suggestion") else exits.TRY_LATER


def _scores(scores: dict[str, Json], caps: dict[str, Json], style: Style) -> str:
    rows = [[backend, f"{one:g}", _cap(caps.get(backend))] for backend, one in scores.items()]
    return table(["BACKEND", "SCORE", "USED"], rows, style, coloured=3)


def suggest_view(found: dict[str, Json], style: Style) -> str:
    name = found.get("suggestion")
    reason = one_line(found.get("reason") or "")
    if name:
        lines = [style.paint(one_line(name), "bold") + (f": {reason}" if reason else "")]
    else:
        lines = [reason or "No backend is available."]
    if found.get("eta_s") is not None:
        lines.append(f"takes about {found.get('eta_display') or duration(found['eta_s'])}")
    if found.get("scores"):
        lines.append(_scores(found["scores"], found.get("rate_limits") or {}, style))
    if found.get("unhealthy"):
        lines.append("left out: " + ", ".join(one_line(name) for name in found["unhealthy"]))
    return "\n".join(lines)


def _cap(cap: Json) -> str:
    if not isinstance(cap, dict):
        return ""
    limit = "" if cap.get("cap") is None else f" of {cap['cap']:g}"
    window = "" if cap.get("window_s") is None else f" in {duration(cap['window_s'])}"
    return f"{cap.get('used', 0):g}{limit} {cap.get('unit') or ''}{window}"
