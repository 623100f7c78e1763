"""Decisions that need a human, shown by the client to its user."""

from __future__ import annotations

from fallbackd_client.errors import NoDaemon, RpcError
from fallbackd_client.mcp.call import NeedsInput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.calls import Json
    from fallbackd_client.client import Client
    from fallbackd_client.mcp.call import Call

ANSWER_S = 900.0
"""How long a form stays open."""
LOOK_S = 1.0
"""Between two looks at the work while a form is open."""
_NOTE = "answered in a form of the MCP client"
_WAITING = "waiting for your answer"


def ask(call: Call, client: Client, found: dict[str, Json]) -> bool:
    """
    Ask the user of the client.

    Returns:
        Whether the question is closed: answered here or elsewhere, or not needed any more.

    Raises:
        NeedsInput: The client asks, and makes the call again.
        Abandoned: The client has cancelled the call.
    """
    question = found.get("question")
    if not isinstance(question, dict) or not call.peer.can_elicit:
        return False
    name = str(question["question"])
    form = _form(question)
    if call.peer.is_stateless:
        if "inputResponses" in call.params:  # it was asked, and its user did not choose
            return False
        asked = {"method": "elicitation/create", "params": {"mode": "form", **form}}
        # Between the two calls nothing follows the work, for as long as the user thinks.
        client.call("delegation.keep", {"delegation": found["delegation"]})
        raise NeedsInput({name: asked}, str(found["delegation"]))
    call.progress(_WAITING)
    looked_s = call.elapsed_s

    def is_wanted() -> bool:
        nonlocal looked_s
        is_due = call.elapsed_s >= looked_s + LOOK_S
        if is_due:
            looked_s = call.elapsed_s
        is_closed = is_due and not _is_open(client, found)
        call.progress(_WAITING)
        return not is_closed

    response = call.ask("elicitation/create", form, ANSWER_S, is_wanted)
    return _taken(client, name, response) or not _is_open(client, found)


def _is_open(client: Client, found: dict[str, Json]) -> bool:
    """
    Whether the same question still waits for its answer.

    This look counts as a caller of the work, also for a daemon that has just restarted.
    """
    wanted = {"delegation": found["delegation"], "timeout_s": 0}
    now = client.call("delegation.wait", wanted).get("question")
    return isinstance(now, dict) and now["question"] == found["question"]["question"]


def answered(call: Call, client: Client) -> dict[str, Json] | None:
    """The delegation that a call is made again for, its question answered where the user chose."""
    responses, state = call.params.get("inputResponses"), call.params.get("requestState")
    if not isinstance(responses, dict) or not isinstance(state, str) or not state:
        return None
    for name, response in responses.items():
        _taken(client, str(name), response)
    found: dict[str, Json] = client.call("delegation.get", {"delegation": state})
    return found


def _taken(client: Client, question: str, response: Json) -> bool:
    content = response.get("content") if isinstance(response, dict) else None
    if not isinstance(content, dict) or response.get("action") != "accept":
        return False
    choice = content.get("choice")
    if not isinstance(choice, str):
        return False
    answer = {"question": question, "choice": choice, "note": _NOTE}
    try:
        try:
            client.call("question.answer", answer)
        except NoDaemon:  # it may have taken the answer: then it refuses the second one
            client.call("question.answer", answer)
    except RpcError:  # answered elsewhere meanwhile, or not one of its choices: it shows
        return False
    return True


def _form(question: dict[str, Json]) -> dict[str, Json]:
    lines = [str(question["text"]), ""]
    lines += [f"{one['choice']}: {one['text']}" for one in question["options"]]
    choices = [str(one["choice"]) for one in question["options"]]
    return {
        "message": "\n".join(lines),
        "requestedSchema": {
            "type": "object",
            "properties": {"choice": {"type": "string", "title": "Choice", "enum": choices}},
            "required": ["choice"],
        },
    }
