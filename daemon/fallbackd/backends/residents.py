"""
Ways for programs that stay to take one prompt after another, each a row of `WAYS`.

A way is made for each process. It says what to write to its stdin, and what a line on its stdout
means for the turn; what the line says otherwise is read by the parser of the kind.
"""

import json
import re
from collections.abc import Callable, Generator, Mapping
from typing import Any, Protocol

from msgspec import Struct

from fallbackd.backends.outside import stays_here
from fallbackd.lib import foreign_json

MAX_LINE_BYTES = 32 * 1024 * 1024
"""A longer line says nothing about the turn."""
TURN = "fallbackd.turn"
"""Type of the line of our own that begins a later turn of a process: what it had counted before."""


class Heard(Struct, frozen=True, kw_only=True):
    """The meaning of a line for turns."""

    mark: str = ""
    """What was asked of the process with this mark is done: all that it printed before is older."""
    conversation: str = ""
    began: bool = False
    """It works on a prompt."""
    exit_code: int | None = None
    """The turn has ended, as a program of its own would have ended with this status."""
    answer: bytes = b""
    """The process asked for something; this is the reply."""
    refused: bool = False
    """It does not do what was asked with `mark`."""


NOTHING = Heard()


class Way(Protocol):
    is_known: bool
    """The program has shown that it knows this way."""
    takes_up: bool
    """One that has no conversation yet can continue any."""

    def ready(self, mark: str) -> bytes:
        """Ask for a sign that it is ready, which costs no call of a model."""
        ...

    def before(self, mark: str, conversation: str) -> bytes:
        """
        Ask for the state in which a prompt is taken, and for a sign that it is there.

        Args:
            conversation: The one that the prompt continues; empty: it begins one.
        """
        ...

    def prompt(self, stdin: bytes) -> bytes:
        """
        Args:
            stdin: What a program that takes this prompt alone reads.
        """
        ...

    def ends(self) -> str:
        """Return the beginning of the line that ends the turn, also where nothing else is read."""
        ...

    def interrupt(self, mark: str) -> bytes:
        """End the turn, and stay."""
        ...

    def read(self, line: bytes) -> Heard: ...

    def counted(self) -> Mapping[str, Any]:
        """The usage that the next turn counts as well, for the line that begins it."""
        ...


class ClaudeWay:
    """`claude -p --input-format stream-json --output-format stream-json`, 2.1.197 and later."""

    takes_up = False

    def __init__(self, session: Mapping[str, Any], conversation: str | None) -> None:
        self.is_known = False
        self._session = session
        self._cost_usd = 0.0

    def ready(self, mark: str) -> bytes:
        return self._ask(mark, {"subtype": "initialize"})

    def before(self, mark: str, conversation: str) -> bytes:
        # A tool of the turn before may have changed it.
        return self._ask(mark, {"subtype": "set_permission_mode", **self._session})

    def prompt(self, stdin: bytes) -> bytes:
        return stdin

    def ends(self) -> str:
        return '{"type":"result",'

    def interrupt(self, mark: str) -> bytes:
        return self._ask(mark, {"subtype": "interrupt"})

    def _ask(self, mark: str, request: Mapping[str, str]) -> bytes:
        return _line({"type": "control_request", "request_id": mark, "request": request})

    def read(self, line: bytes) -> Heard:
        event = _object(line)
        match event.get("type"):
            case "control_response":
                response = event.get("response")
                if not isinstance(response, dict):
                    return NOTHING
                refused = response.get("subtype") != "success"
                self.is_known = self.is_known or not refused
                return Heard(mark=_word(response.get("request_id")), refused=refused)
            case "control_request":
                # Nothing that it may ask is granted: its own rules have decided before.
                refusal = {
                    "subtype": "error",
                    "request_id": _word(event.get("request_id")),
                    "error": "no person is there to answer",
                }
                return Heard(answer=_line({"type": "control_response", "response": refusal}))
            case "result":
                cost = event.get("total_cost_usd")
                if isinstance(cost, int | float) and not isinstance(cost, bool):
                    self._cost_usd = float(cost)
                code = 1 if event.get("is_error") else 0
                return Heard(exit_code=code, conversation=_word(event.get("session_id")))
            case "system" if event.get("subtype") == "init":
                return Heard(began=True, conversation=_word(event.get("session_id")))
            case "assistant" | "user" | "stream_event":
                return Heard(began=True)
            case _:
                return NOTHING

    def counted(self) -> Mapping[str, Any]:
        return {"cost_usd": self._cost_usd}


Opening = Generator[tuple[str, Mapping[str, Any]], dict[str, Any], None]
"""Calls to be made one after another, each of which is given what the one before has returned."""


class _UnfitError(Exception):
    """Raised by an opening: this program cannot be had in the state that is wanted."""


class RpcWay:
    """Calls and notifications as lines of JSON, in both directions."""

    takes_up = True
    version: Mapping[str, Any] = {}
    """Fields that every message has."""
    initialized = ""
    """Notification behind the first call, where one is wanted."""

    def __init__(self, session: Mapping[str, Any], conversation: str | None) -> None:
        self.is_known = False
        self._session = session
        self._conversation = conversation or ""
        self._continues = conversation is not None
        self._opening: Opening | None = None
        self._mark = ""
        self._call = ""
        """Id of the call of the opening that is under way."""
        self._calls = 0
        self._prompt = ""
        """Id of the call that is the turn. Empty: an earlier daemon has made it."""

    # For a way to say.

    def opening(self) -> Opening:
        raise NotImplementedError

    def conversing(self) -> Opening:
        """The calls that begin or continue the conversation."""
        raise NotImplementedError

    def sign(self) -> Opening:
        """The calls before a later prompt of it."""
        raise NotImplementedError

    def heard(self, method: str, params: dict[str, Any]) -> Heard:
        """A notification."""
        raise NotImplementedError

    def answered(self, reply: dict[str, Any]) -> Heard:
        """The answer to the call that is the turn."""
        raise NotImplementedError

    def granted(self, method: str, params: dict[str, Any]) -> Mapping[str, Any] | None:
        """The reply to a request; None: that is an error."""
        return None

    # What they share.

    def ready(self, mark: str) -> bytes:
        return self._begin(mark, self.opening())

    def before(self, mark: str, conversation: str) -> bytes:
        if conversation not in ("", self._conversation):
            self._conversation, self._continues = conversation, True
            return self._begin(mark, self.conversing())
        return self._begin(mark, self.sign())

    def counted(self) -> Mapping[str, Any]:
        return {"conversation": self._conversation}

    def accepts(self, reply: dict[str, Any]) -> bool:
        """Test whether a call of the opening was done."""
        return "error" not in reply

    def _new(self, prefix: str) -> str:
        self._calls += 1
        return f"{prefix}{self._calls}"

    def _begin(self, mark: str, calls: Opening) -> bytes:
        self._opening, self._mark = calls, mark
        return self._open(next(calls))

    def _open(self, call: tuple[str, Mapping[str, Any]]) -> bytes:
        # The parser knows by its name what an answer is to.
        self._call = f"{self._new(OPENS)}.{call[0]}"
        return self._said(call, self._call)

    def _turn(self, method: str, params: Mapping[str, Any]) -> bytes:
        self._prompt = self._new(_TURN_CALL)
        return self._said((method, params), self._prompt)

    def _said(self, call: tuple[str, Mapping[str, Any]], id: str = "") -> bytes:
        method, params = call
        numbered = {"id": id} if id else {}
        return _line({**self.version, **numbered, "method": method, "params": params})

    def read(self, line: bytes) -> Heard:
        event = _object(line)
        method, params, id = event.get("method"), event.get("params"), event.get("id")
        params = params if isinstance(params, dict) else {}
        if isinstance(method, str):
            return self.heard(method, params) if id is None else self._refusal(id, method, params)
        if isinstance(id, str) and id and id == self._call:
            return self._went_on(event)
        is_turn = isinstance(id, str) and id.startswith(_TURN_CALL)
        return self.answered(event) if is_turn and id == (self._prompt or id) else NOTHING

    def _refusal(self, id: object, method: str, params: dict[str, Any]) -> Heard:
        reply = self.granted(method, params)
        error = {"code": -32601, "message": "no person is there to answer"}
        said = {"error": error} if reply is None else {"result": reply}
        return Heard(answer=_line({**self.version, "id": id, **said}))

    def _went_on(self, reply: dict[str, Any]) -> Heard:
        calls, result = self._opening, reply.get("result")
        self._call = ""
        if calls is None or not self.accepts(reply):
            return Heard(mark=self._mark, refused=True)
        opens = b"" if self.is_known or not self.initialized else self._said((self.initialized, {}))
        self.is_known = True
        try:
            following = calls.send(result if isinstance(result, dict) else {})
        except StopIteration:
            return Heard(mark=self._mark, answer=opens)
        except _UnfitError:
            self.is_known = False
            return Heard(mark=self._mark, refused=True)
        return Heard(answer=opens + self._open(following))


OPENS = "open."
"""Beginning of the id of a call that comes before a prompt; the name of its method is the end."""
_TURN_CALL = "turn."


class CodexWay(RpcWay):
    """`codex app-server`, 0.169.0 and later: one thread in one directory."""

    initialized = "initialized"

    def __init__(self, session: Mapping[str, Any], conversation: str | None) -> None:
        super().__init__(session, conversation)
        self._turn_id = ""
        self._is_interrupted = False

    def opening(self) -> Opening:
        yield "initialize", {"clientInfo": {"name": "fallbackd_resident", "version": "1"}}
        yield from self.conversing()

    def conversing(self) -> Opening:
        # With `cwd` it would note in its user's settings that the directory is trusted.
        thread = {"approvalPolicy": "never", **self._session}
        if self._continues:
            thread |= {"threadId": self._conversation, "excludeTurns": True}
            found = yield "thread/resume", thread
        else:
            found = yield "thread/start", thread
        # A thread that is continued keeps the permissions that it had, unless others are given.
        profile = _dict(self._session.get("config")).get("default_permissions")
        if profile is not None and _dict(found.get("activePermissionProfile")).get("id") != profile:
            raise _UnfitError
        self._conversation = _word(_dict(found.get("thread")).get("id"))

    def sign(self) -> Opening:
        yield "thread/loaded/list", {}

    def prompt(self, stdin: bytes) -> bytes:
        self._turn_id, self._is_interrupted = "", False
        text = stdin.decode("utf-8", "replace")
        given = [{"type": "text", "text": text}]
        return self._turn("turn/start", {"threadId": self._conversation, "input": given})

    def ends(self) -> str:
        return f'{{"method":"turn/completed","params":{{"threadId":"{self._conversation}",'

    def interrupt(self, mark: str) -> bytes:
        self._is_interrupted = True
        if not self._turn_id:
            return b""  # it is said once the turn has an id
        params = {"threadId": self._conversation, "turnId": self._turn_id}
        return self._said(("turn/interrupt", params), mark)

    def heard(self, method: str, params: dict[str, Any]) -> Heard:
        thread = _word(params.get("threadId"))
        if not thread or thread != (self._conversation or thread):
            return NOTHING  # of a subagent
        turn = _dict(params.get("turn"))
        match method:
            case "turn/started":
                self._conversation = thread
                return Heard(began=True, conversation=thread, answer=self._known(turn))
            case "turn/completed" if _word(turn.get("id")) == (self._turn_id or turn.get("id")):
                code = 0 if turn.get("status") == "completed" else 1
                return Heard(exit_code=code, conversation=thread)
            case "error":
                return Heard(began=True)
            case _:
                return Heard(began=method.startswith("item/"))

    def answered(self, reply: dict[str, Any]) -> Heard:
        if "error" in reply:
            return Heard(began=True, exit_code=1)
        return Heard(answer=self._known(_dict(_dict(reply.get("result")).get("turn"))))

    def _known(self, turn: dict[str, Any]) -> bytes:
        is_new = not self._turn_id
        self._turn_id = _word(turn.get("id"))
        return self.interrupt(self._new("end.")) if is_new and self._is_interrupted else b""

    def granted(self, method: str, params: dict[str, Any]) -> Mapping[str, Any] | None:
        return _CODEX_DECLINES.get(method)


_CODEX_DECLINES: Mapping[str, Mapping[str, Any]] = {
    "item/commandExecution/requestApproval": {"decision": "decline"},
    "item/fileChange/requestApproval": {"decision": "decline"},
    "mcpServer/elicitation/request": {"action": "decline"},
}


class AcpWay(RpcWay):
    """The Agent Client Protocol, version 1: one session in one directory."""

    version: Mapping[str, Any] = {"jsonrpc": "2.0"}

    def __init__(self, session: Mapping[str, Any], conversation: str | None) -> None:
        super().__init__(session, conversation)
        self._mode: tuple[str, Mapping[str, Any]] | None = None
        """The call that sets the mode in which it asks; None: it has no modes."""
        self._used: dict[str, Any] = {}
        """The usage that it stated last."""
        self._calls_seen: dict[str, dict[str, Any]] = {}
        """Tool calls of the turn, with all that was said of each."""

    def opening(self) -> Opening:
        yield (
            "initialize",
            {
                "protocolVersion": 1,
                "clientCapabilities": {
                    "fs": {"readTextFile": False, "writeTextFile": False},
                    "terminal": False,
                },
                "clientInfo": {"name": "fallbackd", "version": "1"},
            },
        )
        yield from self.conversing()

    def conversing(self) -> Opening:
        place = {"cwd": self._session.get("cwd", "/"), "mcpServers": []}
        if self._continues:
            found = yield "session/load", {"sessionId": self._conversation, **place}
        else:
            found = yield "session/new", place
            self._conversation = _word(found.get("sessionId"))
            if not self._conversation:
                raise _UnfitError
        self._mode = _with_mode(found)
        yield from self.sign()
        if model := _word(self._session.get("model")):
            id = _word(_option(found, "model").get("id"))
            asked = {"configId": id, "value": model} if id else {"modelId": model}
            method = "session/set_config_option" if id else "session/set_model"
            yield method, {"sessionId": self._conversation, **asked}

    def sign(self) -> Opening:
        # Many begin in a mode that asks for nothing, and a tool may have changed it.
        method, asked = self._mode or (PING, {})
        yield method, {"sessionId": self._conversation, **asked}

    def accepts(self, reply: dict[str, Any]) -> bool:
        # Of what it does not know, an error is the answer.
        return "error" not in reply or self._call.endswith(PING)

    def prompt(self, stdin: bytes) -> bytes:
        self._calls_seen.clear()
        text = {"type": "text", "text": stdin.decode("utf-8", "replace")}
        return self._turn("session/prompt", {"sessionId": self._conversation, "prompt": [text]})

    def ends(self) -> str:
        return f'{{"jsonrpc":"2.0","id":"{self._prompt}",'

    def interrupt(self, mark: str) -> bytes:
        return self._said(("session/cancel", {"sessionId": self._conversation}))

    def counted(self) -> Mapping[str, Any]:
        return {**super().counted(), "usage": self._used}

    def heard(self, method: str, params: dict[str, Any]) -> Heard:
        session, update = _word(params.get("sessionId")), _dict(params.get("update"))
        if session and session != (self._conversation or session):
            return NOTHING
        if method != "session/update":
            return Heard(began=method == "_session/retrying")
        kind = update.get("sessionUpdate")
        if kind in ("tool_call", "tool_call_update"):
            self._note_call(update)
        has_news = kind == "session_info_update" and "codex" in _dict(update.get("_meta"))
        return Heard(began=has_news or kind in _OF_A_TURN, conversation=session)

    def _note_call(self, said: dict[str, Any]) -> dict[str, Any]:
        """Keep what is said of a tool call, and return all that is known of it."""
        id = _word(said.get("toolCallId"))
        known = self._calls_seen.pop(id, {})
        known |= substance_of(said)
        if len(self._calls_seen) < _MAX_CALLS:
            self._calls_seen[id] = known
        return known

    def answered(self, reply: dict[str, Any]) -> Heard:
        code = 1 if "error" in reply else 0
        self._used = _dict(_dict(reply.get("result")).get("usage")) or self._used
        return Heard(began=True, exit_code=code, conversation=self._conversation)

    def granted(self, method: str, params: dict[str, Any]) -> Mapping[str, Any] | None:
        if method != "session/request_permission":
            return None
        call = self._note_call(_dict(params.get("toolCall")))
        options = params.get("options")
        chosen = _chosen(options, may=self._may(call)) if isinstance(options, list) else None
        outcome = {"outcome": "cancelled"}
        if chosen is not None:
            outcome = {"outcome": "selected", "optionId": chosen}
        return {"outcome": outcome}

    def _may(self, call: dict[str, Any]) -> bool:
        """
        Decide on a tool call by the permission of the session. A later daemon that does not know
        the permission allows what reads.
        """
        permission, kind = self._session.get("permission"), call.get("kind")
        if permission == "full" or kind in _READING:
            return True
        if permission != "workspace":
            return False
        if kind in _WRITING:
            return _is_inside(call.get("locations"), self._session.get("cwd"))
        runs_commands = kind == "execute" and self._session.get("runs_commands") is True
        return runs_commands and stays_here(call.get("rawInput"))


PING = "_fallbackd/ping"
"""A method that no agent knows: any answer shows that it is there."""
_READING = frozenset({"read", "search", "fetch", "think"})
_WRITING = frozenset({"edit", "delete", "move"})
_OF_A_TURN = frozenset(
    {"agent_message_chunk", "agent_thought_chunk", "tool_call", "tool_call_update", "plan"}
)
_SUBSTANCE = ("kind", "title", "locations", "rawInput")
_MAX_CALLS = 1000


def substance_of(call: dict[str, Any]) -> dict[str, Any]:
    """Read what a message says of a tool call. Some show its arguments as a text of JSON."""
    known = {name: call[name] for name in _SUBSTANCE if call.get(name)}
    shown = call.get("content")
    text = (
        _dict(_dict(shown[0]).get("content")).get("text")
        if shown and isinstance(shown, list)
        else ""
    )
    if "rawInput" not in known and isinstance(text, str) and (given := _object(text.encode())):
        known["rawInput"] = given
    return known


_ASKING = ("default", "ask", "manual", "agent")
"""Last parts of the names of modes in which an agent asks before it acts."""


def _with_mode(found: dict[str, Any]) -> tuple[str, Mapping[str, Any]] | None:
    """The call for a mode that asks, else for the one that a new session is in."""
    option, modes = _option(found, "mode"), _dict(found.get("modes"))
    listed = option.get("options", modes.get("availableModes"))
    ids = [
        _word(_dict(one).get("value", _dict(one).get("id")))
        for one in (listed if isinstance(listed, list) else ())
    ]
    ends = {re.split(r"[#/:]", id)[-1].lower(): id for id in reversed(ids) if id}
    asking = next((ends[name] for name in _ASKING if name in ends), "")
    asking = asking or _word(option.get("currentValue", modes.get("currentModeId")))
    if not asking:
        return None
    if modes:
        return "session/set_mode", {"modeId": asking}
    return "session/set_config_option", {"configId": option.get("id"), "value": asking}


def _option(found: dict[str, Any], category: str) -> dict[str, Any]:
    options = found.get("configOptions")
    each = (_dict(one) for one in (options if isinstance(options, list) else ()))
    return next((one for one in each if one.get("category", one.get("id")) == category), {})


def _chosen(options: list[Any], *, may: bool) -> str | None:
    """The option for this once. Only the kinds of options are compared: names differ."""
    wanted = ("allow_once", "allow_always") if may else ("reject_once",)
    for kind in wanted:
        for each in options:
            id = _dict(each).get("optionId")
            if _dict(each).get("kind") == kind and isinstance(id, str):
                return id
    return None


def _is_inside(locations: object, directory: object) -> bool:
    """Test whether places are named, all of them below the directory. Links are not followed."""
    if not isinstance(locations, list) or not locations or not isinstance(directory, str):
        return False
    paths = [_dict(each).get("path") for each in locations]
    return all(isinstance(path, str) and _is_below(path, directory) for path in paths)


def _is_below(path: str, directory: str) -> bool:
    is_inside = path.startswith(f"{directory.rstrip('/')}/") or path[:1] not in ("", "/")
    return is_inside and ".." not in path.split("/")


WAYS: Mapping[str, Callable[[Mapping[str, Any], str | None], Way]] = {
    "claude": ClaudeWay,
    "codex": CodexWay,
    "acp": AcpWay,
}


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _line(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def first_line(counted: Mapping[str, Any]) -> bytes:
    """The line that begins a later turn."""
    return _line({"type": TURN, **counted})


def _object(line: bytes) -> dict[str, Any]:
    """`Any`: a program's JSON of any shape. Empty where it is no object."""
    if not line.lstrip().startswith(b"{"):
        return {}
    try:
        found = foreign_json.decode(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _word(value: object) -> str:
    return value if isinstance(value, str) and len(value) <= 200 else ""
