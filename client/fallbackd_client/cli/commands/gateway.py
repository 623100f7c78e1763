"""`gateway`: point a program at the daemon's own HTTP endpoint."""

from __future__ import annotations

import argparse
import os
import secrets
import shlex
import sys

from fallbackd_client.cli import exits
from fallbackd_client.cli.output import Style, UsageError, clock, emit_json, note, one_line, show
from fallbackd_client.cli.parsing import add_actions
from fallbackd_client.cli.setup.changes import add_change_arguments, change
from fallbackd_client.cli.views import now, usage_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.calls import Json
    from fallbackd_client.client import Client

_EXPORTS = {
    "claude": {"ANTHROPIC_BASE_URL": "{url}", "ANTHROPIC_AUTH_TOKEN": "{ask}"},
    "codex": {"FALLBACKD_GATEWAY_TOKEN": "{ask}"},
    "opencode": {"FALLBACKD_GATEWAY_TOKEN": "{ask}"},
    "gemini": {"GOOGLE_GEMINI_BASE_URL": "{url}", "GEMINI_API_KEY": "{ask}"},
    "openai": {"OPENAI_BASE_URL": "{url}/v1", "OPENAI_API_KEY": "{ask}"},
    "anthropic": {"ANTHROPIC_BASE_URL": "{url}", "ANTHROPIC_API_KEY": "{ask}"},
}
"""Per program, what to put into its environment; `ask` is the command that prints the token."""
_FILES = {
    "codex": """\
# in ~/.codex/config.toml; MODEL is a chain, a backend or a model of yours
# model_provider = "fallbackd"
# model = "MODEL"
# [model_providers.fallbackd]
# name = "fallbackd"
# base_url = "{url}/v1"
# env_key = "FALLBACKD_GATEWAY_TOKEN"
# wire_api = "responses"
""",
    "opencode": """\
# in opencode.json; MODEL is a chain, a backend or a model of yours
# {{"provider": {{"fallbackd": {{
#   "npm": "@ai-sdk/openai-compatible",
#   "options": {{"baseURL": "{url}/v1", "apiKey": "{{env:FALLBACKD_GATEWAY_TOKEN}}"}},
#   "models": {{"MODEL": {{}}}}}}}}}}
""",
}
"""What stands in a file of the program, as comments."""


SETUP = ("claude", "codex", "gemini", "opencode")
"""Of these gemini alone needs the token in its own settings, again after `token --rotate`."""
_ACTIONS = {
    "env": "print what to export in a shell before the program is started",
    "setup": "write it into the settings of the program; shows the change first",
    "token": "print the token that callers send",
    "list": "show the last calls and the backend that answered each",
}


def register(parser: argparse.ArgumentParser) -> None:
    actions = add_actions(parser, _ACTIONS)
    setup = actions["setup"]
    setup.add_argument("tool", choices=SETUP, help="the program")
    add_change_arguments(setup)
    setup.add_argument("--undo", action="store_true", help="remove it again")
    actions["env"].add_argument("tool", choices=tuple(_EXPORTS), help="the program")
    actions["token"].add_argument(
        "--rotate",
        action="store_true",
        help="replace it at once, and name the programs whose settings hold the old one",
    )


def run(args: argparse.Namespace, client: Client) -> int:
    match args.action:
        case "token":
            if args.rotate:
                _rotate(args, client)
            else:
                show(args, {"token": _token(client)}, _token_view)
        case "list":
            show(args, client.call("exchange.list", {}), list_view)
        case "setup":
            return _setup(args, client)
        case _:
            _env(args, client)
    return exits.OK


def _env(args: argparse.Namespace, client: Client) -> None:
    from fallbackd_client.gateway import not_listening
    from fallbackd_client.settings.editing import own_command

    url = f"http://127.0.0.1:{_configured(client)['port']}"
    own = own_command(args.socket, "gateway", "token")
    ask = f"$({shlex.join([own.program, *own.arguments])})"
    exports = {name: text.format(url=url, ask=ask) for name, text in _EXPORTS[args.tool].items()}
    why = not_listening(client.call("status", {})["daemon"])
    warnings = [] if why is None else [_see_doctor(why)]
    if args.json:
        emit_json({"url": url, "env": exports, "warnings": warnings})
        return
    for warning in warnings:
        note(f"warning: {warning}")
    print(_FILES.get(args.tool, "").format(url=url), end="")
    for name, text in exports.items():
        print(f'export {name}="{text}"')


def _setup(args: argparse.Namespace, client: Client) -> int:
    from fallbackd_client.gateway import TOOLS, Gateway
    from fallbackd_client.settings.editing import own_command

    tool = TOOLS[args.tool]
    token = own_command(args.socket, "gateway", "token")
    if args.undo and not args.only_print:
        # What was written before can be taken out without the gateway, and without the daemon.
        gateway = Gateway(0, token=token, token_file="")
    else:
        _require_listening(client, is_asked=tool.names_models)
        port = _configured(client)["port"]
        models = _served(client, port) if tool.names_models else ()
        gateway = Gateway(port, token=token, token_file=_token_file(client), models=models)
    parts = [tool.part(tool.file(os.environ), gateway), *tool.others(os.environ)]
    shown = f"fallbackd-client gateway setup {args.tool} --print"
    return change(args, args.tool, parts, undo=args.undo, shown_by=shown)


def _configured(client: Client) -> dict[str, Json]:
    found: dict[str, Json] = client.call("config.get", {})["config"].get("gateway", {})
    if not found.get("enabled"):
        raise UsageError(
            "the gateway is off; enable it with: fallbackd-client config set gateway.enabled true"
        )
    return found


def _require_listening(client: Client, *, is_asked: bool) -> None:
    """
    A warning, where the settings can be written without asking the gateway.

    Raises:
        UsageError: It is to be asked, and does not listen.
    """
    from fallbackd_client.gateway import not_listening

    why = not_listening(client.call("status", {})["daemon"])
    if why is not None and is_asked:
        raise UsageError(_see_doctor(why))
    if why is not None:
        note(f"warning: {_see_doctor(why)}")


def _see_doctor(why: str) -> str:
    return f"{why}; see fallbackd-client doctor"


def _served(client: Client, port: int) -> list[str]:
    """
    Return what a program may ask the gateway for in chat completions, which programs whose models
    are listed speak.

    Raises:
        UsageError: It does not answer, or serves nothing.
    """
    from fallbackd_client.gateway import Silent, models

    try:
        found = models(port, _token(client), api="chat_completions")
    except Silent as error:
        raise UsageError(
            _see_doctor(f"the gateway cannot be asked at port {port}: {error}")
        ) from error
    if not found:
        raise UsageError(
            "the gateway has no backend that speaks chat completions:"
            " configure one, for example of the kind openai-http"
        )
    return found


def list_view(found: dict[str, Json], style: Style) -> str:
    """The last calls, newest first."""
    lines = []
    for one in found.get("exchanges") or []:
        ended_at, began_at = one.get("ended_at"), one["began_at"]
        took = "" if ended_at is None else f"{ended_at - began_at:.1f} s"
        served = one.get("served_by") or "-"
        reason, model = one.get("reason"), one.get("model") or ""
        asked_by = one.get("asked_by")
        words = (
            one["exchange"],
            clock(began_at, now()),
            one["state"],
            took,
            served if not reason else f"{served} ({reason})",
            model,
            usage_words(one.get("usage")),
            "" if asked_by is None else f"from inside {asked_by}",
        )
        lines.append("  ".join(one_line(word) for word in words if word))
    if not lines:
        return "no calls through the gateway since the daemon started"
    hint = "Why: fallbackd-client explain -v ID"
    return "\n".join([*lines, "", style.paint(hint, "dim")])


def _rotate(args: argparse.Namespace, client: Client) -> None:
    """Print the new token; on stderr, which programs still send the old one."""
    from fallbackd_client.gateway import Gateway, holders
    from fallbackd_client.settings.editing import own_command

    path = _token_file(client)
    old = _token(client) if os.path.exists(path) else ""
    text = secrets.token_urlsafe(32)
    made = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(made, "w") as file:
        file.write(text + "\n")
    os.replace(f"{path}.new", path)
    show(args, {"token": text}, _token_view)
    gateway = Gateway(0, token=own_command(args.socket, "gateway", "token"), token_file=path)
    for line in holders(old, gateway, os.environ):
        print(one_line(line), file=sys.stderr)


def _token_view(found: dict[str, Json], _: Style) -> str:
    return str(found["token"])


def _token(client: Client) -> str:
    """
    Read from the state directory, which only its user can read: it passes no other process. Inside
    an attempt: what that one was given.
    """
    from fallbackd_client.calls import inside_of

    if inside_of() and (given := os.environ.get("FALLBACKD_GATEWAY_TOKEN")):
        return given
    path = _token_file(client)
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except OSError as error:
        raise UsageError(
            f"there is no token ({error.strerror}): the gateway makes one when it is enabled first"
        ) from error


def _token_file(client: Client) -> str:
    return os.path.join(client.call("status", {})["daemon"]["state_dir"], "gateway.token")
