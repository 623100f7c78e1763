"""Calls of the gateway that reach no provider: whether it listens, and knows the token."""

from __future__ import annotations

import http.client
import json
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from fallbackd_client.calls import Json

ANSWER_S = 5.0
_ALIAS = "claude-fallbackd-"
"""Before a name that Claude Code is to show, too."""
PROTOCOLS: Mapping[str, str] = {
    "chat completions": "/v1/chat/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "Google's": "/v1beta/models/none:generateContent",
}


class Silent(Exception):
    """There is no answer of a gateway. The text says why."""


class WrongToken(Silent):
    """The gateway listens, and knows another token."""


def not_listening(daemon: Mapping[str, Json]) -> str | None:
    """
    Why the gateway does not listen at its port; None: it does, or is off.

    The port may be another program's then. Nothing is to be sent there: the token is for the
    gateway alone.

    Args:
        daemon: As `status` describes it.
    """
    for one in daemon.get("troubles") or []:
        if one.get("kind") == "gateway":
            return str(one.get("message"))
    return None


def is_open(port: int) -> bool:
    """Whether a program listens there. Nothing is sent to it."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S).close()
    except OSError:
        return False
    return True


def models(port: int, token: str, *, api: str = "") -> list[str]:
    """
    What may be asked for, by one name each.

    Args:
        api: In this one alone.

    Raises:
        WrongToken: It is another one.
        Silent: Nothing answers there, or it is something else.
    """
    names, _ = _listed(port, token, api)
    aliases = {_ALIAS + one for one in names}
    return [one for one in names if one not in aliases]


def serves(port: int, token: str, *, api: str = "") -> bool:
    """
    Whether a backend is there for any model, in one API or in all of them. See `models`.

    Raises:
        WrongToken, Silent: See there.
    """
    names, serves_others = _listed(port, token, api)
    return bool(names) or serves_others


def _listed(port: int, token: str, api: str) -> tuple[list[str], bool]:
    status, body = _ask(port, token, "GET", f"/v1/models?api={api}" if api else "/v1/models")
    if status == 401:
        raise WrongToken("it does not accept the token in the state directory")
    try:
        listed = json.loads(body)
        return [str(one["id"]) for one in listed["data"]], bool(listed.get("serves_other_models"))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Silent(f"what listens there is not the gateway (status {status})") from error


def unanswered(port: int, token: str) -> list[str]:
    """
    Names of the protocols that it does not speak. What is sent is no request of any, and
    reaches no backend.

    Raises:
        Silent: Nothing answers.
    """
    found = []
    for name, path in PROTOCOLS.items():
        status, body = _ask(port, token, "POST", path, b"[]")
        try:
            is_told = "error" in json.loads(body)
        except (ValueError, TypeError):
            is_told = False
        if status != 400 or not is_told:
            found.append(name)
    return found


def _ask(
    port: int, token: str, method: str, path: str, body: bytes | None = None
) -> tuple[int, bytes]:
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_S)
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    try:
        line.request(method, path, body=body, headers=headers)
        answer = line.getresponse()
        return answer.status, answer.read(1024 * 1024)
    except (OSError, http.client.HTTPException) as error:
        raise Silent(f"nothing answers there: {error}") from error
    finally:
        line.close()
