"""Calls of the gateway that reach no provider: whether it listens, and knows the token."""

from __future__ import annotations

import http.client
import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

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


def models(port: int, token: str, *, api: str = "") -> list[str]:
    """
    What may be asked for, by one name each.

    Args:
        api: In this one alone.

    Raises:
        WrongToken: It is another one.
        Silent: Nothing answers there, or it is something else.
    """
    status, body = _ask(port, token, "GET", f"/v1/models?api={api}" if api else "/v1/models")
    if status == 401:
        raise WrongToken("it does not accept the token in the state directory")
    try:
        names = [str(one["id"]) for one in json.loads(body)["data"]]
    except (ValueError, KeyError, TypeError) as error:
        raise Silent(f"what listens there is not the gateway (status {status})") from error
    aliases = {_ALIAS + one for one in names}
    return [one for one in names if one not in aliases]


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
