"""
The settings that make an open agent report to the daemon, and their places.

claude: its own settings get two hooks (see `hook`) and a status line, which runs the user's own
one too. codex: it reports nothing by itself; our configuration has its sessions watched. opencode:
its settings name our plugin.
"""

from __future__ import annotations

import json
import os
import re
import shlex

from fallbackd_client.settings import jsonc, toml_block
from fallbackd_client.settings.editing import Part
from fallbackd_client.settings.jsonc import Unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from fallbackd_client.calls import Json
    from fallbackd_client.settings.editing import Command

AGENTS = ("claude", "codex", "opencode")
HOOK_S = 5
REFRESH_S = 9
"""How often claude runs the status line while nothing happens. An unusual number, by which ours is
recognised when it is removed."""
_EVENTS = ("StopFailure", "UserPromptSubmit")
_LINE = "statusLine"
_OUR_HOOK = ["report", "--claude-hook"]
_LABEL = "fallbackd hooks"
_PLUGINS = ("plugin", "plugins")
"""Keys of the settings of opencode: of version 1, and of version 2."""
OUR_PLUGIN = re.compile(r"fallbackd|opencode-plugin/src/(?:index|second|toast)\.ts")
"""How an entry of opencode's settings is recognised that is meant to be ours."""


def claude_settings(environ: Mapping[str, str]) -> str:
    home = environ.get("HOME") or os.path.expanduser("~")
    own = environ.get("CLAUDE_CONFIG_DIR") or os.path.join(home, ".claude")
    return os.path.join(own, "settings.json")


def claude_part(path: str, hook: Command, line: Command | None) -> Part:
    """
    Args:
        hook: What answers a hook.
        line: The status line; None: that of the user stays as it is.
    """
    group: Json = {"hooks": [{"type": "command", "command": _shell(hook), "timeout": HOOK_S}]}
    snippet: dict[str, Json] = {"hooks": {name: [group] for name in _EVENTS}}
    if line is not None:
        snippet[_LINE] = {"type": "command", "command": _shell(line), "refreshInterval": REFRESH_S}

    def put(text: str) -> str:
        for name in _EVENTS:
            text = jsonc.with_element(text, ("hooks", name), group, is_ours=is_our_group)
        return text if line is None else _with_line(text, line)

    def take(text: str) -> str:
        for name in reversed(_EVENTS):
            text = jsonc.without_element(text, ("hooks", name), is_our_group)
        return _without_line(text)

    return Part(path, json.dumps(snippet, indent=2), put=put, take=take)


def codex_part(config: str) -> Part:
    """
    Args:
        config: Our configuration file.
    """
    block = '[interactive]\nwatch = ["codex"]'
    made = toml_block.block_part(
        config, block, table=("interactive",), label=_LABEL, stands_alone=True
    )

    def put(text: str) -> str:
        return text if watches_codex(text) else made.put(text)

    return Part(config, block, put=put, take=made.take)


def opencode_part(path: str, plugin: str, *, line: int = 1) -> Part:
    """
    Args:
        path: Of its settings.
        plugin: The file of our plugin.
        line: Version of opencode that is to load it.
    """
    key = _PLUGINS[line - 1]
    url = f"file://{plugin}"

    def put(text: str) -> str:
        known = jsonc.load(text)
        named = known.get(key) if isinstance(known, dict) else None
        former = next(filter(_is_our_plugin, named), None) if isinstance(named, list) else None
        # Options stay behind the name.
        entry: Json = [url, *former[1:]] if isinstance(former, list) else url
        if isinstance(former, dict):
            entry = {**former, "package": url}
        return jsonc.with_element(text, (key,), entry, is_ours=_is_our_plugin)

    def take(text: str) -> str:
        for one in _PLUGINS:
            text = jsonc.without_element(text, (one,), _is_our_plugin)
        return text

    return Part(
        path,
        json.dumps({key: [url]}, indent=2),
        put=put,
        take=take,
    )


def has_plugin(settings: Json) -> bool:
    found = [settings.get(key) for key in _PLUGINS] if isinstance(settings, dict) else []
    return any(_is_our_plugin(one) for named in found if isinstance(named, list) for one in named)


def _is_our_plugin(entry: Json) -> bool:
    name = entry[0] if isinstance(entry, list) and entry else entry
    name = name.get("package") if isinstance(name, dict) else name
    return isinstance(name, str) and OUR_PLUGIN.search(name) is not None


def watches_codex(text: str) -> bool:
    """
    Raises:
        Unreadable: The configuration is not valid TOML.
    """
    table = toml_block.parse(text).get("interactive")
    watched = table.get("watch") if isinstance(table, dict) else None
    return isinstance(watched, list) and "codex" in watched


def is_our_group(group: Json) -> bool:
    """A group of hooks that holds ours and nothing else."""
    hooks = group.get("hooks") if isinstance(group, dict) else None
    return isinstance(hooks, list) and len(hooks) == 1 and _is_our_hook(hooks[0])


def has_hook(settings: Json) -> bool:
    hooks = settings.get("hooks") if isinstance(settings, dict) else None
    groups = hooks.get("StopFailure") if isinstance(hooks, dict) else None
    return isinstance(groups, list) and any(
        _is_our_hook(one)
        for group in groups
        if isinstance(group, dict) and isinstance(group.get("hooks"), list)
        for one in group["hooks"]
    )


def has_line(settings: Json) -> bool:
    line = settings.get(_LINE) if isinstance(settings, dict) else None
    return isinstance(line, dict) and _then(line.get("command")) is not None


def _is_our_hook(hook: Json) -> bool:
    words = _words(hook.get("command")) if isinstance(hook, dict) else []
    return words[-2:] == _OUR_HOOK


def _with_line(text: str, line: Command) -> str:
    settings = jsonc.load(text)
    own = settings.get(_LINE)
    if own is None:
        new = {"type": "command", "command": _shell(line), "refreshInterval": REFRESH_S}
        return jsonc.with_member(text, (_LINE,), new)
    command = own.get("command") if isinstance(own, dict) else None
    if not isinstance(command, str) or own.get("type") != "command":
        raise Unreadable(f"{_LINE} is not a command; use --no-statusline")
    before = _then(command)
    then = command if before is None else before
    wrapped = _shell(line) + (f" --then {shlex.quote(then)}" if then else "")
    if wrapped != command:
        text = jsonc.with_member(text, (_LINE, "command"), wrapped)
    if "refreshInterval" not in own:
        text = jsonc.with_member(text, (_LINE, "refreshInterval"), REFRESH_S)
    return text


def _without_line(text: str) -> str:
    settings = jsonc.load(text)
    own = settings.get(_LINE) if isinstance(settings, dict) else None
    then = _then(own.get("command")) if isinstance(own, dict) else None
    if then is None or own is None:
        return text
    if not then:
        return jsonc.without_member(text, (_LINE,))
    if own.get("refreshInterval") == REFRESH_S:
        text = jsonc.without_member(text, (_LINE, "refreshInterval"))
    return jsonc.with_member(text, (_LINE, "command"), then)


def _then(command: Json) -> str | None:
    """The user's own command within ours; empty: there is none; None: the command is not ours."""
    words = _words(command)
    if "statusline" not in words[1:]:
        return None
    rest = words[words.index("statusline", 1) + 1 :]
    if not rest:
        return ""
    return rest[1] if len(rest) == 2 and rest[0] == "--then" else None


def _words(command: Json) -> list[str]:
    if not isinstance(command, str) or "fallbackd" not in command:
        return []
    try:
        return shlex.split(command)
    except ValueError:
        return []


def _shell(command: Command) -> str:
    return shlex.join([command.program, *command.arguments])
