"""Decisions that need a human, shown by the client to its user."""

from __future__ import annotations

from fallbackd_client.errors import RpcError
from fallbackd_client.mcp.call import NeedsInput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.calls import Json
    from fallbackd_client.client import Client
    from fallbackd_client.mcp.call import Call

ANSWER_S = 900.0
"""How long a form stays open."""
_NOTE = "answered in a form of the MCP client"


def ask(call: Call, client: Client, found: dict[str, Json]) -> bool:
    """
    Ask the user of the client.

    Returns:
        Whether the question was answered.

    Raises:
        NeedsInput: The client asks, and makes the call again.
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
        raise NeedsInput({name: asked}, str(found["delegation"]))
    call.progress("waiting for your answer")
    return _taken(client, name, call.ask("elicitation/create", form, ANSWER_S))


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
    try:
        client.call("question.answer", {"question": question, "choice": choice, "note": _NOTE})
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
