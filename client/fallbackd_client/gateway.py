"""Programs that use the daemon's HTTP endpoint: settings, a first question, a new key."""

from __future__ import annotations

import http.client
import json
import os
import re
import shlex
import socket

from fallbackd_client.settings import jsonc, toml_block
from fallbackd_client.settings.editing import Command, Part
from fallbackd_client.settings.files import regular
from fallbackd_client.settings.jsonc import Unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fallbackd_client.calls import Json


_URL = re.compile(r"http://127\.0\.0\.1:([0-9]{1,5})(?:/v1)?")
_MAX_CHARS = 64 * 1024
"""Of the file of a token."""
_PROVIDER = "fallbackd"
_HEAD, _TABLE = "fallbackd gateway", "fallbackd gateway table"
"""Label the two blocks in the settings of codex."""


class Gateway:
    """
    Args:
        token: Command that prints the token.
        token_file: Where it is kept.
        models: Names that a program may ask for.
    """

    def __init__(
        self, port: int, *, token: Command, token_file: str, models: Sequence[str] = ()
    ) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.token = token
        self.token_file = token_file
        self.models = models

    def token_text(self) -> str:
        """Read the token, for a program that can get it only from its own settings."""
        return _text_of(self.token_file)


class Tool:
    """
    Args:
        part: The change of its settings.
        port: Which port its settings name; None: they are not ours.
        token: The token that its settings hold, or the command that prints it; None: it is said in
            another way than `part` does. Raises `Unreadable` where it cannot be had.
        api: In which it asks.
        names_models: Its settings name each model that it offers.
        others: Changes of its other files, by environment.
    """

    def __init__(
        self,
        name: str,
        *,
        file: Callable[[Mapping[str, str]], str],
        part: Callable[[str, Gateway], Part],
        port: Callable[[str], int | None],
        token: Callable[[str], str | Command | None],
        api: str,
        names_models: bool = False,
        others: Callable[[Mapping[str, str]], list[Part]] = lambda _: [],
    ) -> None:
        self.name = name
        self.file = file
        self.part = part
        self.port = port
        self.token = token
        self.api = api
        self.names_models = names_models
        self.others = others


def _text_of(path: str) -> str:
    try:
        with open(path, encoding="ascii", opener=regular) as file:
            return file.read(_MAX_CHARS).strip()
    except (OSError, ValueError) as error:
        raise Unreadable(f"{path}: {getattr(error, 'strerror', None) or error}") from error


def _port(value: object) -> int | None:
    found = _URL.fullmatch(value) if isinstance(value, str) else None
    return None if found is None else int(found[1])


def _at(value: Json, *path: str) -> Json:
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _words(token: Command) -> list[str]:
    return [token.program, *token.arguments]


# --- Claude Code: the token is asked for by a command, so that no file holds it ------------------

_BASE = ("env", "ANTHROPIC_BASE_URL")
_HELPER = ("apiKeyHelper",)
_BEFORE = (("env", "ANTHROPIC_API_KEY"), ("env", "ANTHROPIC_AUTH_TOKEN"))
"""Would be sent in place of what the command prints."""


def _claude_file(environ: Mapping[str, str]) -> str:
    own = environ.get("CLAUDE_CONFIG_DIR") or _home(environ, ".claude")
    return os.path.join(own, "settings.json")


def _claude(path: str, gateway: Gateway) -> Part:
    helper = shlex.join(_words(gateway.token))
    snippet = {"env": {_BASE[1]: gateway.url}, _HELPER[0]: helper}

    def put(text: str) -> str:
        found = jsonc.load(text)
        if _at(found, *_BASE) is not None and _port(_at(found, *_BASE)) is None:
            raise _taken(_BASE)
        if _at(found, *_HELPER) is not None and not _is_our_helper(_at(found, *_HELPER)):
            raise _taken(_HELPER)
        for place in _BEFORE:
            if _at(found, *place) is not None:
                raise _taken(place)
        if _at(found, *_BASE) != gateway.url:
            text = jsonc.with_member(text, _BASE, gateway.url)
        if _at(found, *_HELPER) != helper:
            text = jsonc.with_member(text, _HELPER, helper)
        return text

    def take(text: str) -> str:
        found = jsonc.load(text)
        if _is_our_helper(_at(found, *_HELPER)):
            text = jsonc.without_member(text, _HELPER)
            if _port(_at(found, *_BASE)) is not None:
                text = jsonc.without_member(text, _BASE)
        return text

    return Part(path, json.dumps(snippet, indent=2), put=put, take=take)


def _claude_port(text: str) -> int | None:
    found = jsonc.load(text)
    return _port(_at(found, *_BASE)) if _is_our_helper(_at(found, *_HELPER)) else None


def _claude_token(text: str) -> Command | None:
    found = jsonc.load(text)
    for place in _BEFORE:
        if _at(found, *place) is not None:
            raise Unreadable(f"{'.'.join(place)} of its settings is sent in place of the token")
    try:
        return _command(shlex.split(_at(found, *_HELPER)))
    except ValueError:
        return None


def _command(words: object) -> Command | None:
    """The command line that `_words` gives; None: it is another one."""
    if not isinstance(words, list) or not all(isinstance(one, str) for one in words):
        return None
    is_ours = words[-2:] == ["gateway", "token"] and os.path.isabs(words[0])
    return Command(words[0], words[1:]) if is_ours else None


def _is_our_helper(value: object) -> bool:
    return isinstance(value, str) and value.endswith(" gateway token")


def _taken(place: Sequence[str]) -> Unreadable:
    return Unreadable(f"{'.'.join(place)} is there already; remove it, or edit it")


# --- codex: a provider whose token is asked for by a command -------------------------------------


def _codex_file(environ: Mapping[str, str]) -> str:
    return os.path.join(environ.get("CODEX_HOME") or _home(environ, ".codex"), "config.toml")


def _codex(path: str, gateway: Gateway) -> Part:
    table = "\n".join(
        [
            f"[model_providers.{_PROVIDER}]",
            f'name = "{_PROVIDER}"',
            f'base_url = "{gateway.url}/v1"',
            'wire_api = "responses"',
            "",
            f"[model_providers.{_PROVIDER}.auth]",
            f"command = {json.dumps(gateway.token.program, ensure_ascii=False)}",
            f"args = {json.dumps(gateway.token.arguments, ensure_ascii=False)}",
        ]
    )
    head = f'model_provider = "{_PROVIDER}"'
    place = ("model_providers", _PROVIDER)
    first = toml_block.head_part(path, head, key="model_provider", label=_HEAD)
    last = toml_block.block_part(path, table, table=place, label=_TABLE)
    return Part(
        path,
        f"{head}\n\n{table}",
        put=lambda text: last.put(first.put(text)),
        take=lambda text: first.take(last.take(text)),
        lost=last.lost,
    )


def _codex_port(text: str) -> int | None:
    found = toml_block.parse(text)
    if _at(found, "model_provider") != _PROVIDER:
        return None
    return _port(_at(found, "model_providers", _PROVIDER, "base_url"))


def _codex_token(text: str) -> Command | None:
    auth = _at(toml_block.parse(text), "model_providers", _PROVIDER, "auth")
    arguments = _at(auth, "args")
    return _command([_at(auth, "command"), *(arguments if isinstance(arguments, list) else [])])


# --- opencode: a provider whose key is read from the file of the token ---------------------------


_INSTEAD = "{env:FALLBACKD_INSTEAD_OF_FILE}"
"""
Empty for a person. In what the daemon starts it makes the file an empty one and adds the key of the
attempt: opencode stops where it cannot read a file that its settings name. It shortens a path by
its `..` only where the path begins with `~/`.
"""
_IN_FILE = re.compile(rf"\{{file:~/([^{{}}]+){re.escape(_INSTEAD)}\}}")
_IN_FILE_ALONE = re.compile(r"\{file:/[^{}]+\}")
"""As it was written before."""


def _opencode_file(environ: Mapping[str, str]) -> str:
    base = environ.get("XDG_CONFIG_HOME", "")
    base = base if os.path.isabs(base) else _home(environ, ".config")
    paths = [os.path.join(base, "opencode", f"opencode.{ending}") for ending in ("json", "jsonc")]
    return next((path for path in paths if os.path.exists(path)), paths[0])


def _opencode(path: str, gateway: Gateway) -> Part:
    place = ("provider", _PROVIDER)
    file = os.path.relpath(os.path.join("/", gateway.token_file), os.path.expanduser("~"))
    options = {"baseURL": f"{gateway.url}/v1", "apiKey": f"{{file:~/{file}{_INSTEAD}}}"}
    entry: dict[str, Json] = {
        "npm": "@ai-sdk/openai-compatible",
        "name": _PROVIDER,
        "options": options,
        "models": {name: {} for name in gateway.models},
    }

    def put(text: str) -> str:
        found = _at(jsonc.load(text), *place)
        if found is None:
            return jsonc.with_member(text, place, entry)
        if _port(_at(found, "options", "baseURL")) is None:
            raise _taken(place)
        return _opencode_again(text, place, entry)

    return Part(
        path,
        json.dumps({place[0]: {place[1]: entry}}, indent=2),
        put=put,
        take=lambda text: (
            text if _opencode_port(text) is None else jsonc.without_member(text, place)
        ),
    )


def _opencode_again(text: str, place: tuple[str, ...], entry: Mapping[str, Json]) -> str:
    """Return the settings with our own members as they are now; a person's own additions stay."""
    found = _at(jsonc.load(text), *place)
    known, offered = _at(found, "models"), entry["models"]
    for name, model in (known if isinstance(known, dict) else {}).items():
        if model == {} and name not in offered:  # as we have written it
            text = jsonc.without_member(text, (*place, "models", name))
    wanted: list[tuple[tuple[str, ...], Json]] = [
        (("npm",), entry["npm"]),
        *((("options", key), value) for key, value in entry["options"].items()),
    ]
    left = _at(jsonc.load(text), *place)
    missing = [("name",), *(("models", name) for name in offered)]
    missing += [] if offered else [("models",)]
    wanted += [(path, _at(entry, *path)) for path in missing if _at(left, *path) is None]
    for path, value in wanted:
        if _at(left, *path) != value:
            text = jsonc.with_member(text, (*place, *path), value)
    return text


def _opencode_port(text: str) -> int | None:
    return _port(_at(jsonc.load(text), "provider", _PROVIDER, "options", "baseURL"))


def _opencode_token(text: str) -> str | None:
    key = _at(jsonc.load(text), "provider", _PROVIDER, "options", "apiKey")
    if not isinstance(key, str):
        return None
    if _IN_FILE_ALONE.fullmatch(key):
        raise Unreadable("its settings name the token's file in a way that stops a confined one")
    named = _IN_FILE.fullmatch(key)
    if named is None:
        return None
    return _text_of(os.path.normpath(os.path.join(os.path.expanduser("~"), named[1])))


# --- gemini: reads its key from a file of variables; from no command, and from no other file ------

_GEMINI_URL, _GEMINI_KEY = "GOOGLE_GEMINI_BASE_URL", "GEMINI_API_KEY"
_VARIABLE = re.compile(r"^[ \t]*(?:export[ \t]+)?(\w+)[ \t]*=[ \t]*(.*?)[ \t\r]*$", re.M)


def _gemini_file(environ: Mapping[str, str]) -> str:
    return os.path.join(environ.get("GEMINI_CLI_HOME") or _home(environ), ".gemini", ".env")


def _gemini(path: str, gateway: Gateway) -> Part:
    url = f"{_GEMINI_URL}={gateway.url}"

    def put(text: str) -> str:
        if os.path.exists(path) and os.stat(path).st_mode & 0o077:
            raise Unreadable("other users can read it, and the token would be in it: chmod 600")
        left = take(text)
        for name, _ in _VARIABLE.findall(left):
            if name in (_GEMINI_URL, _GEMINI_KEY):
                raise _taken((name,))
        gap = "" if not left or left.endswith("\n") else "\n"
        block = f"{url}\n{_GEMINI_KEY}={gateway.token_text()}"
        return f"{left}{gap}# {_HEAD}: begin\n{block}\n# {_HEAD}: end\n"

    def is_ours(line: str) -> bool:
        found = _VARIABLE.match(line)
        return found is not None and found[1] in (_GEMINI_URL, _GEMINI_KEY)

    def take(text: str) -> str:
        return toml_block.without_lines(text, _HEAD, is_ours)

    return Part(path, f"{url}\n{_GEMINI_KEY}=…", put=put, take=take, hides=_GEMINI_KEY)


_GEMINI_AUTH, _BY_KEY = ("security", "auth", "selectedType"), "gemini-api-key"


def _gemini_login(environ: Mapping[str, str]) -> list[Part]:
    """
    The way of logging in that uses the key. Without a terminal gemini asks nothing: it ends where
    none is chosen, and goes past the gateway where a Google account is. With it taken out again,
    gemini asks at its next start.
    """
    path = os.path.join(os.path.dirname(_gemini_file(environ)), "settings.json")
    return [
        Part(
            path,
            json.dumps({"security": {"auth": {"selectedType": _BY_KEY}}}, indent=2),
            put=lambda text: jsonc.with_member(text, _GEMINI_AUTH, _BY_KEY),
            take=lambda text: (
                jsonc.without_member(text, _GEMINI_AUTH) if logs_in_by_key(text) else text
            ),
        )
    ]


def logs_in_by_key(settings: str) -> bool:
    """
    Return whether gemini's `settings.json` chooses the key.

    Raises:
        Unreadable: The text cannot be understood.
    """
    return bool(_at(jsonc.load(settings), *_GEMINI_AUTH) == _BY_KEY)


def _gemini_port(text: str) -> int | None:
    if f"# {_HEAD}: begin" not in text:
        return None
    return _port(dict(_VARIABLE.findall(text)).get(_GEMINI_URL))


def _gemini_token(text: str) -> str | None:
    found: dict[str, str] = dict(_VARIABLE.findall(text))
    key = found.get(_GEMINI_KEY, "")
    return None if re.search(r"[\s\"'`#]", key) else key


def _home(environ: Mapping[str, str], *names: str) -> str:
    return os.path.join(environ.get("HOME") or os.path.expanduser("~"), *names)


TOOLS: Mapping[str, Tool] = {
    one.name: one
    for one in (
        Tool(
            "claude",
            file=_claude_file,
            part=_claude,
            port=_claude_port,
            token=_claude_token,
            api="messages",
        ),
        Tool(
            "codex",
            file=_codex_file,
            part=_codex,
            port=_codex_port,
            token=_codex_token,
            api="responses",
        ),
        Tool(
            "gemini",
            file=_gemini_file,
            part=_gemini,
            port=_gemini_port,
            token=_gemini_token,
            api="generate_content",
            others=_gemini_login,
        ),
        Tool(
            "opencode",
            file=_opencode_file,
            part=_opencode,
            port=_opencode_port,
            token=_opencode_token,
            api="chat_completions",
            names_models=True,
        ),
    )
}


ANSWER_S = 5.0
_ALIAS = "claude-fallbackd-"
"""Prefix of a name that Claude Code is to show, too."""
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
    Return why the gateway does not listen at its port; None: it does, or is off.

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
    """Return whether a program listens there. Nothing is sent to it."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S).close()
    except OSError:
        return False
    return True


def models(port: int, token: str, *, api: str = "") -> list[str]:
    """
    List what may be asked for, by one name each.

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
    Return whether a backend is there for any model, in one API or in all of them. See `models`.

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


_MAX_KEY_CHARS = 4 * 1024 * 1024


def holders(token: str, gateway: Gateway, environ: Mapping[str, str]) -> list[str]:
    """Say what to do for each of them, a sentence each."""
    found = []
    for name, tool in TOOLS.items():
        path = tool.file(environ)
        text = _text(path)
        if not token or token not in text:
            continue
        try:
            is_ours = token not in tool.part(path, gateway).take(text)
        except Unreadable:
            is_ours = False
        todo = "replace it there"
        if is_ours:
            todo = f"write the new one with: fallbackd-client gateway setup {name}"
        found.append(f"{name} still has the old token in {path}; {todo}")
    return found


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace", opener=regular) as file:
            return file.read(_MAX_KEY_CHARS)
    except OSError:
        return ""
