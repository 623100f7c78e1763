"""Words that only the daemon knows. A person has pressed a key: quick, or not at all."""

from __future__ import annotations

import re

from fallbackd_client.cli.completions import tree
from fallbackd_client.cli.render import one_line
from fallbackd_client.client import Client
from fallbackd_client.errors import ClientError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from fallbackd_client.calls import Json

_ANSWER_S = 3.0
"""A busy machine takes more than a second for the list of methods."""
_SHOWN = 50
_PLAIN = re.compile(r"[A-Za-z0-9][\w.:/@+-]*", re.ASCII)
"""What no shell has to quote. Other names are left to be typed."""


def words_of(kind: str, socket: str | None) -> list[tuple[str, str]]:
    """Pairs of a word and what it is; empty where no daemon answers at once."""
    with Client(socket, timeout_s=_ANSWER_S, connect_s=0.0, reconnect_s=0.0) as client:
        try:
            found = _ask(client, kind)
        except (ClientError, AttributeError, KeyError, TypeError):
            return []  # no daemon, or one of another version: a completion cannot report errors
    return [(word, one_line(about)) for word, about in found if _PLAIN.fullmatch(word)]


def _ask(client: Client, kind: str) -> list[tuple[str, str]]:
    if kind == tree.BACKENDS:
        health = client.call("health", {})["health"]
        return [(name, _state(entry)) for name, entry in health.items()]
    if kind not in _LISTS:
        return []
    method, params, field, word, say = _LISTS[kind]
    return [(one[word], say(one)) for one in client.call(method, params)[field]]


def _state(entry: dict[str, Json]) -> str:
    words = [entry.get("state"), entry.get("reason")]
    return ", ".join(str(word) for word in words if word)


def _work(one: dict[str, Json]) -> str:
    words = [one.get("state"), one.get("active") or one.get("requested"), one.get("session")]
    return ", ".join(str(word) for word in words if word)


def _said(name: str) -> Callable[[dict[str, Json]], str]:
    return lambda one: str(one.get(name) or "")


_BRIEF = {"limit": _SHOWN, "brief": True}
_LISTS: dict[str, tuple[str, dict[str, Json], str, str, Callable[[dict[str, Json]], str]]] = {
    tree.DELEGATIONS: ("delegation.list", _BRIEF, "lines", "delegation", _work),
    tree.SESSIONS: ("session.list", {"limit": _SHOWN}, "sessions", "session", _said("current")),
    tree.QUESTIONS: ("question.list", {}, "questions", "question", _said("text")),
    tree.METHODS: ("rpc.discover", {}, "methods", "name", _said("summary")),
}
"""Method and parameters, the field of its answer with the list, what is listed, what is said."""
