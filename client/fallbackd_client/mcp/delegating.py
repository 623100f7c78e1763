"""Tools about one piece of work: hand it over, wait for it, stop it."""

from __future__ import annotations

import hashlib
import os

from fallbackd_client.errors import RpcError
from fallbackd_client.mcp import place, questions
from fallbackd_client.mcp.call import Abandoned
from fallbackd_client.mcp.outcomes import handle, outcome, working
from fallbackd_client.mcp.tools import DEFAULT_LEVEL, DEFAULT_WAIT_S
from fallbackd_client.wire.codes import BUSY
from fallbackd_client.wire.states import END_STATES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.calls import Json
    from fallbackd_client.client import Client
    from fallbackd_client.mcp.call import Call

STEP_S = 1.0
"""Between two looks at the work: as late a cancellation is noticed, or a hop is shown."""
MIN_WAIT_S = 5.0
"""Of `wait`: a model that calls it in a loop pays for each turn."""
ORPHAN_S = 60.0
"""How long work continues whose client was killed before it had a handle."""
_PASSED_ON = ("backend", "role", "model", "timeout_s", "permissions")


def delegate(call: Call) -> dict[str, Json]:
    """Hand work over and follow it; a cancelled call stops the work."""
    request_id = call.arguments.get("request_id") or _request_id(call)
    again = call.params.get("requestState")
    work = {"delegation": again} if isinstance(again, str) else {"request_id": request_id}
    with call.connect() as client:
        try:
            found = questions.answered(call, client) or _accepted(call, client, request_id)
            work = {"delegation": found["delegation"]}
            return _followed(call, client, found, _wait_s(call))
        except Abandoned:
            _withdraw(call, client, work)
            raise


def _withdraw(call: Call, client: Client, work: dict[str, str]) -> None:
    """Stop the work of a cancelled call, also where the answer that names it never came."""
    call.withdraw()
    try:
        client.call("delegation.cancel", work)
    except RpcError:  # it was never accepted
        pass


def wait(call: Call) -> dict[str, Json]:
    """Follow work that runs; a cancelled call stops only the waiting."""
    with call.connect() as client:
        found = questions.answered(call, client) or client.call(
            "delegation.get", {"delegation": call.arguments["delegation"]}
        )
        return _followed(call, client, found, max(MIN_WAIT_S, _wait_s(call)))


def cancel(call: Call) -> dict[str, Json]:
    with call.connect() as client:
        wanted = {"delegation": call.arguments["delegation"]}
        return outcome(client.call("delegation.cancel", wanted))


def _accepted(call: Call, client: Client, request_id: str) -> dict[str, Json]:
    """
    The work, as it was accepted.

    A conversation has one running delegation. An agent that hands over two at once, or has
    subagents that do, need not have them queue for each other: the second one gets a name of its
    own, the same one where it is sent again.
    """
    given = call.arguments
    params: dict[str, Json] = {
        "prompt": given["prompt"],
        "cwd": place.directory(call),
        "session": given.get("session") or place.session(call),
        "wait": "accepted",
        "mode": "interactive",
        "orphan_s": ORPHAN_S,
        "request_id": request_id,
        "permissions": DEFAULT_LEVEL,
        **{name: given[name] for name in _PASSED_ON if name in given},
    }
    if "session" in given:
        return _sent(client, params)
    try:
        return _sent(client, {**params, "queue": False})
    except RpcError as error:
        if error.kind in ("busy", "request_id"):
            params["session"] += f"/{hashlib.sha256(request_id.encode()).hexdigest()[:6]}"
        elif error.code != BUSY:
            raise
    return _sent(client, params)


def _sent(client: Client, params: dict[str, Json]) -> dict[str, Json]:
    found: dict[str, Json] = client.call("delegate", params)
    return found


def _request_id(call: Call) -> str:
    """The same call of a tool, sent again, is the same delegation."""
    own = call.meta.get("claudecode/toolUseId") or call.meta.get("callId")
    if not isinstance(own, str) or not own:
        return "mcp-" + os.urandom(16).hex()
    whole = f"{place.session(call)}\0{own}"
    return "mcp-" + hashlib.sha256(whole.encode(errors="replace")).hexdigest()[:32]


def _wait_s(call: Call) -> float:
    return float(call.arguments.get("wait_s", DEFAULT_WAIT_S))


def _followed(call: Call, client: Client, found: dict[str, Json], wait_s: float) -> dict[str, Json]:
    """Until its end, a question that stays open, or the end of the wait."""
    while found.get("state") not in END_STATES:
        call.require_wanted()
        if found.get("state") == "awaiting_answer":
            if not questions.ask(call, client, found):
                return _kept(client, found)
        elif call.elapsed_s >= wait_s:
            return _kept(client, found)
        call.progress(working(found))
        step_s = max(0.05, min(STEP_S, wait_s - call.elapsed_s))
        wanted = {"delegation": found["delegation"], "timeout_s": step_s}
        found = client.call("delegation.wait", wanted)
    return outcome(found)


def _kept(client: Client, found: dict[str, Json]) -> dict[str, Json]:
    """The handle is out: its holder comes back for the work, or does not."""
    client.call("delegation.keep", {"delegation": found["delegation"]})
    return handle(found)
