"""The gateway: whether it answers in each protocol, and the programs that are pointed at it."""

from __future__ import annotations

import os

from fallbackd_client.cli.doctor.findings import ERROR, WARNING, Finding, Machine, command
from fallbackd_client.errors import ClientError
from fallbackd_client.gateway.asking import Silent, models, unanswered
from fallbackd_client.gateway.tools import TOOLS
from fallbackd_client.settings.jsonc import Unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.calls import Json
    from fallbackd_client.client import Client

_ANSWER_S = 5.0
_LISTS = command("fallbackd-client", "gateway", "list")


def look_at_gateway(machine: Machine, client: Client) -> list[Finding]:
    """Nothing that it asks reaches a provider."""
    try:
        config = client.call("config.get", {}, timeout_s=_ANSWER_S).get("config") or {}
    except ClientError:
        return []  # said elsewhere
    gateway: dict[str, Json] = config.get("gateway") or {}
    port = gateway.get("port") if gateway.get("enabled") else None
    found = _tools(machine, port if isinstance(port, int) else None)
    if isinstance(port, int):
        found += _calls(machine, port)
    return found


def _tools(machine: Machine, port: int | None) -> list[Finding]:
    found = []
    for tool in TOOLS.values():
        text = machine.read(tool.file(machine.environ))
        try:
            named = None if text is None else tool.port(text)
        except Unreadable:  # the program says so itself
            continue
        if named is None or named == port:
            continue
        if port is None:
            what = f"{tool.name} is set up for the gateway, which is off: its calls fail"
            fix = command("fallbackd-client", "gateway", "setup", tool.name, "--undo", "--yes")
        else:
            what = f"{tool.name} asks the gateway at port {named}, and it listens at {port}"
            fix = command("fallbackd-client", "gateway", "setup", tool.name, "--yes")
        found.append(Finding("gateway", ERROR, what, fix))
    return found


def _calls(machine: Machine, port: int) -> list[Finding]:
    token = (machine.read(os.path.join(machine.state_dir, "gateway.token")) or "").strip()
    try:
        offered = models(port, token)
        missing = unanswered(port, token)
    except Silent as error:
        what = f"the gateway cannot be used at port {port}: {error}"
        return [Finding("gateway", ERROR, what, command("fallbackd-client", "status"))]
    if missing:
        what = f"the gateway does not answer calls in {', '.join(missing)}"
        return [Finding("gateway", ERROR, what, _LISTS)]
    if not offered:
        what = "the gateway has no backend to ask: configure one of a kind that ends in -http"
        return [Finding("gateway", WARNING, what)]
    return []
