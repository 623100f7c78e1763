"""What the daemon can know of its backends without spending anything."""

from __future__ import annotations

from fallbackd_client.cli.doctor.findings import NOTE, WARNING, Finding, command
from fallbackd_client.errors import ClientError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.calls import Json
    from fallbackd_client.client import Client

_LOOK_S = 60.0
_BUILT_IN = "hermes-api"


def look_at_backends(client: Client) -> list[Finding]:
    """Keys that are missing or refused, and providers that do not answer."""
    try:
        answer = client.call("status", {"verbose": True}, timeout_s=_LOOK_S)
    except ClientError:
        return []  # another check reports why there is none
    found = []
    readiness = answer.get("readiness")
    for name, one in readiness.items() if isinstance(readiness, dict) else ():
        for rung in one.get("rungs") or []:
            if rung.get("ok") is False and rung.get("name") in ("login", "models"):
                if is_not_set_up(name, answer.get("health")):
                    continue
                what = f"{name}: {rung['name']}: {rung.get('detail', '')}"
                is_silent = str(rung.get("detail", "")).startswith("no answer")
                fix = f"fallbackd-client health get {command(name)}"
                found.append(Finding("programs", NOTE if is_silent else WARNING, what, fix))
    return found


def is_not_set_up(name: str, health: Json) -> bool:
    """Whether it is a profile that is built in, for a server that this person does not have."""
    entry = health.get(name) if isinstance(health, dict) else None
    return name == _BUILT_IN and isinstance(entry, dict) and entry.get("reason") == "not_configured"
