"""`gateway`: point a program at the daemon's own HTTP endpoint."""

from __future__ import annotations

import argparse
import os
import secrets

from fallbackd_client.cli import exits
from fallbackd_client.cli.output import UsageError, emit_json, show
from fallbackd_client.cli.render import Style, clock, one_line
from fallbackd_client.cli.views import now

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.calls import Json
    from fallbackd_client.client import Client

_ASK = "$(fallbackd-client gateway token)"
_EXPORTS = {
    "claude": {"ANTHROPIC_BASE_URL": "{url}", "ANTHROPIC_AUTH_TOKEN": _ASK},
    "codex": {"FALLBACKD_GATEWAY_TOKEN": _ASK},
    "opencode": {"FALLBACKD_GATEWAY_TOKEN": _ASK},
    "gemini": {"GOOGLE_GEMINI_BASE_URL": "{url}", "GEMINI_API_KEY": _ASK},
    "openai": {"OPENAI_BASE_URL": "{url}/v1", "OPENAI_API_KEY": _ASK},
    "anthropic": {"ANTHROPIC_BASE_URL": "{url}", "ANTHROPIC_API_KEY": _ASK},
}
"""Per program, what to put into its environment."""
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


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["env", "list", "token"])
    parser.add_argument(
        "tool", metavar="TOOL", nargs="?", help=f"env: one of {', '.join(_EXPORTS)}"
    )
    parser.add_argument(
        "--rotate", action="store_true", help="token: make a new one; the old one ends at once"
    )


def run(args: argparse.Namespace, client: Client) -> int:
    if args.action == "token":
        if args.tool is not None:
            raise UsageError("gateway token takes no TOOL")
        print(_token(client, rotate=args.rotate))
        return exits.OK
    if args.action == "list":
        show(args, client.call("exchange.list", {}), list_view)
        return exits.OK
    if args.rotate:
        raise UsageError("--rotate belongs to: gateway token")
    if args.tool not in _EXPORTS:
        raise UsageError(f"name a TOOL: gateway env {'|'.join(_EXPORTS)}")
    configured = client.call("config.get", {})["config"].get("gateway", {})
    if not configured.get("enabled"):
        raise UsageError(
            "the gateway is off: write [gateway] and enabled = true into the configuration"
        )
    url = f"http://127.0.0.1:{configured['port']}"
    exports = {name: text.format(url=url) for name, text in _EXPORTS[args.tool].items()}
    if args.json:
        emit_json({"url": url, "env": exports})
        return exits.OK
    print(_FILES.get(args.tool, "").format(url=url), end="")
    for name, text in exports.items():
        print(f'export {name}="{text}"')
    return exits.OK


def list_view(found: dict[str, Json], style: Style) -> str:
    """The last calls, newest first."""
    lines = []
    for one in found.get("exchanges") or []:
        ended_at, began_at = one.get("ended_at"), one["began_at"]
        took = "" if ended_at is None else f"{ended_at - began_at:.1f} s"
        served = one.get("served_by") or "-"
        words = (one["exchange"], clock(began_at, now()), one["state"], took, served)
        lines.append("  ".join(one_line(word) for word in words if word))
    if not lines:
        return "no calls through the gateway since the daemon started"
    hint = "Why: fallbackd-client explain -v ID"
    return "\n".join([*lines, "", style.paint(hint, "dim")])


def _token(client: Client, *, rotate: bool) -> str:
    """Read from the state directory, which only its user can read: it passes no other process."""
    path = os.path.join(client.call("status", {})["daemon"]["state_dir"], "gateway.token")
    if rotate:
        text = secrets.token_urlsafe(32)
        made = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(made, "w") as file:
            file.write(text + "\n")
        os.replace(f"{path}.new", path)
        return text
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except OSError as error:
        raise UsageError(
            f"there is no token ({error.strerror}): the gateway makes one when it is enabled first"
        ) from error
