"""Tools about one piece of work: hand it over, wait for it, stop it."""

from __future__ import annotations

import hashlib
import json
import os
import time

from fallbackd_client.cli.output import clean, one_line, when
from fallbackd_client.cli.views import advice, failure_line, hop_sentence
from fallbackd_client.errors import NoDaemon, RpcError
from fallbackd_client.mcp.call import Abandoned, NeedsInput, ToolFailed
from fallbackd_client.mcp.tools import DEFAULT_LEVEL, DEFAULT_WAIT_S
from fallbackd_client.wire.codes import BUSY, END_STATES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.calls import Json
    from fallbackd_client.client import Client
    from fallbackd_client.mcp.call import Call

MAX_TEXT_CHARS = 20_000
"""Size of an answer: clients cut long results, or warn about them."""
_COPIED = ("served_by", "fallback_from", "fallback_reason", "retry_at")


def structured(found: dict[str, Json], *, is_error: bool = False) -> dict[str, Json]:
    """Some clients read only the text, so it holds the same."""
    text = json.dumps(found, ensure_ascii=False)
    return {
        "content": [{"type": "text", "text": text}],
        "structuredContent": found,
        "isError": is_error,
    }


def worded(text: str, found: dict[str, Json]) -> dict[str, Json]:
    """A text that is easier to read than the structure beside it."""
    return {"content": [{"type": "text", "text": text}], "structuredContent": found}


def outcome(found: dict[str, Json]) -> dict[str, Json]:
    """Return the result of work that has ended."""
    state = found.get("state")
    shown = _shown(found)
    message = _message(found)
    if message:
        shown["message"] = message
    if state == "handed_back":
        shown["next"] = "do this work yourself: it was handed back to you"
    return structured(shown, is_error=state in ("failed", "refused", "cancelled"))


def handle(found: dict[str, Json]) -> dict[str, Json]:
    """Return the handle of work that continues."""
    shown = _shown(found)
    delegation = found["delegation"]
    shown["next"] = f"call wait with delegation {delegation}, or cancel"
    question = found.get("question")
    if found["state"] == "awaiting_answer" and isinstance(question, dict):
        choices = [str(one["choice"]) for one in question["options"]]
        shown["question"] = {
            "question": question["question"],
            "text": question["text"],
            "choices": {str(one["choice"]): one["text"] for one in question["options"]},
        }
        shown["next"] = (
            "only a person may decide this: show your user the choices, and the command"
            f" `fallbackd-client answer {question['question']} {'|'.join(choices)}`;"
            f" then call wait with delegation {delegation}"
        )
    elif found.get("blocked_by"):
        shown["message"] = (
            f"waiting for {found['blocked_by']}, which is using the session or directory"
        )
    elif standby := found.get("standby"):
        shown["message"] = _standing_by(standby)
    return structured(shown)


def working(found: dict[str, Json]) -> str:
    """Describe the current work in a line."""
    shown = clean(found)
    words = [hop_sentence(hop, shown) for hop in (shown.get("hops") or [])[-1:]]
    backend = one_line(shown.get("active") or shown.get("requested") or "?")
    if shown.get("blocked_by"):
        words.append(f"waiting for {shown['blocked_by']}, which is using the session or directory")
    else:
        words.append(f"{backend}: {one_line(shown.get('phase') or shown.get('state') or '?')}")
    return " ".join(words)


def _shown(found: dict[str, Json]) -> dict[str, Json]:
    shown: dict[str, Json] = {"delegation": found["delegation"], "state": found["state"]}
    shown |= {name: found[name] for name in _COPIED if found.get(name) is not None}
    usage = found.get("usage") or {}
    if any(usage.values()):
        shown["usage"] = {name: value for name, value in usage.items() if value is not None}
    text = found.get("text")
    if isinstance(text, str):
        shown["text"] = text[:MAX_TEXT_CHARS]
        if len(text) > MAX_TEXT_CHARS or found.get("text_truncated"):
            whole = found.get("text_path") or f"`fallbackd-client show {found['delegation']}`"
            shown["next"] = f"the answer is cut at {MAX_TEXT_CHARS} characters; all of it: {whole}"
    return shown


def _standing_by(standby: dict[str, Json]) -> str:
    """Say until when work waits for a backend, and when it is refused."""
    now, expects_at = time.time(), standby.get("expects_at")
    until = "a repair" if expects_at is None else when(expects_at, now)
    limit = when(standby["limit_at"], now)
    return f"no backend is available: waits until {until}, is refused at {limit}"


def _message(found: dict[str, Json]) -> str:
    """Say why there is no answer, and what helps; or how it came to this one."""
    shown = clean(found)
    lines = [hop_sentence(hop, shown) for hop in shown.get("hops") or [] if hop.get("to")]
    failure = shown.get("failure")
    if shown.get("message"):
        lines.append(one_line(shown["message"]))
    elif isinstance(failure, dict):
        lines.append(failure_line(failure))
    if shown.get("state") == "refused":
        lines += advice(found, now=time.time()) or ["no backend in the chain is available"]
    lines += [one_line(word) for word in shown.get("warnings") or [] if isinstance(word, str)]
    return "\n".join(dict.fromkeys(lines))


_ROOTS_S = 2.0
_MAX_SESSION = 150
_OWN = os.urandom(4).hex()
"""Names the conversation of a client that does not: it starts one server for each."""


def session(call: Call) -> str:
    """`mcp/claude/<id>`: the conversation of the client, so that its work stays together."""
    claude = os.environ.get("CLAUDE_CODE_SESSION_ID")
    if claude:
        name = f"mcp/claude/{claude}"
    elif found := _codex_turn(call).get("session_id"):
        name = f"mcp/codex/{found}"
    else:
        name = f"mcp/{call.peer.name or 'client'}/{_OWN}"
    return "".join(one if one.isprintable() else "_" for one in name)[:_MAX_SESSION]


def directory(call: Call) -> str:
    """
    The directory of the work, absolute.

    Raises:
        ToolFailed: It lies outside of the project.
    """
    base = _project(call)
    given = call.arguments.get("cwd")
    if not given:
        return base
    if not _is_path(given):
        raise ToolFailed("`cwd` is not a path: no file name holds such a character")
    path = os.path.normpath(os.path.join(base, os.path.expanduser(given)))
    allowed = [base]
    if _is_below(path, allowed):
        return path
    allowed += _roots(call)
    if not _is_below(path, allowed):
        raise ToolFailed(
            f"cwd: {path} is outside of the project ({', '.join(allowed)}); name a directory inside"
            " of it, or have the user start the client there"
        )
    return path


def _project(call: Call) -> str:
    claude = os.environ.get("CLAUDE_PROJECT_DIR")
    if claude and os.path.isabs(claude):
        return claude
    workspaces = _codex_turn(call).get("workspaces")
    if isinstance(workspaces, dict):
        for path in workspaces:
            if os.path.isabs(path) and _is_path(path):
                return str(path)
    try:
        return os.getcwd()
    except FileNotFoundError as error:
        raise ToolFailed("the working directory is gone: pass `cwd`") from error


def _codex_turn(call: Call) -> dict[str, Json]:
    found = call.meta.get("x-codex-turn-metadata")
    if isinstance(found, str):
        try:
            found = json.loads(found)
        except (ValueError, RecursionError):
            return {}
    return found if isinstance(found, dict) else {}


def _is_path(text: str) -> bool:
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:  # half of a character
        return False


def _is_below(path: str, allowed: list[str]) -> bool:
    real = os.path.realpath(path)
    for one in allowed:
        root = os.path.realpath(one)
        if real == root or real.startswith(root.rstrip("/") + "/"):
            return True
    return False


def _roots(call: Call) -> list[str]:
    if not call.peer.has_roots:
        return []
    found = call.ask("roots/list", {}, _ROOTS_S)
    roots = found.get("roots") if isinstance(found, dict) else None
    paths = []
    for root in roots if isinstance(roots, list) else []:
        uri = root.get("uri") if isinstance(root, dict) else None
        if isinstance(uri, str) and uri.startswith("file:///"):
            from urllib.parse import unquote

            paths.append(unquote(uri.removeprefix("file://")))
    return [path for path in paths if _is_path(path)]


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
    Return whether the same question still waits for its answer.

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


STEP_S = 1.0
"""Between two looks at the work: as late a cancellation is noticed, or a hop is shown."""
MIN_WAIT_S = 5.0
"""Of `wait`: a model that calls it in a loop pays for each turn."""
ORPHAN_S = 60.0
"""How long work continues whose client was killed before it had a handle."""
_PASSED_ON = ("backend", "role", "model", "timeout_s", "permissions", "when_available")


def delegate(call: Call) -> dict[str, Json]:
    """Hand work over and follow it; a cancelled call stops the work."""
    request_id = call.arguments.get("request_id") or _request_id(call)
    again = call.params.get("requestState")
    work = {"delegation": again} if isinstance(again, str) else {"request_id": request_id}
    with call.connect() as client:
        try:
            found = answered(call, client) or _accepted(call, client, request_id)
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
        found = answered(call, client) or client.call(
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
        "cwd": directory(call),
        "session": given.get("session") or session(call),
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
    """Derive the id so that a call of a tool, sent again, is the same delegation."""
    own = call.meta.get("claudecode/toolUseId") or call.meta.get("callId")
    if not isinstance(own, str) or not own:
        return "mcp-" + os.urandom(16).hex()
    whole = f"{session(call)}\0{own}"
    return "mcp-" + hashlib.sha256(whole.encode(errors="replace")).hexdigest()[:32]


def _wait_s(call: Call) -> float:
    return float(call.arguments.get("wait_s", DEFAULT_WAIT_S))


def _followed(call: Call, client: Client, found: dict[str, Json], wait_s: float) -> dict[str, Json]:
    """Follow until its end, a question that stays open, or the end of the wait."""
    while found.get("state") not in END_STATES:
        call.require_wanted()
        if found.get("state") == "awaiting_answer":
            if not ask(call, client, found):
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
