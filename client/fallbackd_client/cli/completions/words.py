"""Words that only the daemon knows. A person has pressed a key: quick, or not at all."""

from __future__ import annotations

import re

from fallbackd_client.cli.completions import tree
from fallbackd_client.cli.render import one_line
from fallbackd_client.client import Client
from fallbackd_client.errors import ClientError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.calls import Json

_ANSWER_S = 1.0
_SHOWN = 50
_PLAIN = re.compile(r"[A-Za-z0-9][\w.:/@+-]*", re.ASCII)
"""What no shell has to quote. Other names are left to be typed."""


def words_of(kind: str, socket: str | None) -> list[tuple[str, str]]:
    """Pairs of a word and what it is; empty where no daemon answers at once."""
    with Client(socket, timeout_s=_ANSWER_S, connect_s=0.0, reconnect_s=0.0) as client:
        try:
            found = _ask(client, kind)
        except (ClientError, AttributeError, KeyError, TypeError):
            return []  # no daemon, or one that speaks otherwise: there is no one to say it to
    return [(word, one_line(about)) for word, about in found if _PLAIN.fullmatch(word)]


def _ask(client: Client, kind: str) -> list[tuple[str, str]]:
    match kind:
        case tree.BACKENDS:
            health = client.call("health", {})["health"]
            return [(name, _state(entry)) for name, entry in health.items()]
        case tree.DELEGATIONS:
            listed = client.call("delegation.list", {"limit": _SHOWN, "brief": True})["lines"]
            return [(one["delegation"], _work(one)) for one in listed]
        case tree.SESSIONS:
            listed = client.call("session.list", {"limit": _SHOWN})["sessions"]
            return [(one["session"], str(one.get("current") or "")) for one in listed]
        case tree.QUESTIONS:
            listed = client.call("question.list", {})["questions"]
            return [(one["question"], str(one.get("text") or "")) for one in listed]
        case tree.METHODS:
            listed = client.call("rpc.discover", {})["methods"]
            return [(one["name"], str(one.get("summary") or "")) for one in listed]
        case _:
            return []


def _state(entry: dict[str, Json]) -> str:
    words = [entry.get("state"), entry.get("reason")]
    return ", ".join(str(word) for word in words if word)


def _work(one: dict[str, Json]) -> str:
    words = [one.get("state"), one.get("active") or one.get("requested"), one.get("session")]
    return ", ".join(str(word) for word in words if word)
