"""
Owners of the processes around opencode, by what the kernel and the log of opencode say.

Whose a session is is one question, answered from processes, open requests and the log of opencode,
asked at every way to it: an attempt's is the engine's, what a program waits for is not stopped, the
rest is a person's.
"""

import os
from collections.abc import Callable, Sequence
from datetime import datetime
from urllib.parse import urlsplit

from fallbackd.lib.privatefile import regular
from fallbackd.lib.processes import Unanswered, listener, read_arguments, read_variables, unanswered
from fallbackd.ports.opencode import Owner, Written

OF_PERSONS = frozenset({"", "attach", "pr"})
"""Commands of opencode that open its interface; empty: none is named."""
OF_ANYBODY = frozenset({"serve", "web"})
OF_PROGRAMS = frozenset(
    {
        *("acp", "agent", "auth", "completion", "db", "debug", "export", "generate", "github"),
        *("import", "mcp", "models", "plug", "plugin", "providers", "run", "session", "stats"),
        *("uninstall", "upgrade"),
    }
)
"""The process ends with its turn, or answers a program with it."""
BROWSERS = (
    *("brave", "chrome", "chromium", "electron", "epiphany", "firefox", "google-chrome", "msedge"),
    *("opera", "vivaldi", "webkitnetworkprocess"),
)
"""Beginnings of the names of programs in which the interface of a server may be open."""
_WITH_VALUE = frozenset(
    {
        *("--agent", "--cors", "--hostname", "--log-level", "--mdns-domain", "--model", "--port"),
        *("--prompt", "--session", "-m", "-s"),
    }
)
LONGEST_BEFORE_S = 60.0
"""Longest time from a request to its message: the plugins of a project are loaded first."""
CLOSE_S = 2.0
ROUNDED_S = 0.1
"""Time by which a request may seem to come after the message that it writes."""
LOG_TAIL_BYTES = 1024 * 1024


class ProcessOwners:
    """
    Args:
        above: What of ours a process is below; None: nothing.
    """

    def __init__(self, above: Callable[[int], object | None]) -> None:
        self._above = above

    def owner(self, pid: int | None) -> Owner:
        if pid is None:
            return "person"
        try:
            is_ours = self._above(pid) is not None
        except ProcessLookupError:
            is_ours = False
        except OSError:
            is_ours = True  # what cannot be seen is left alone
        if is_ours:
            return "engine"
        return "program" if command_of(read_arguments(pid)) in OF_PROGRAMS else "person"

    def server_at(self, url: str) -> int | None:
        return listener(url)

    def is_awaited(self, url: str, written: Sequence[Written], *, certainly: bool) -> bool | None:
        port = urlsplit(url).port if url.startswith("http") else None
        if port is None:
            return False
        try:
            waiting = unanswered(port)
        except OSError:
            return None
        server = listener(url) if waiting else None
        ours = (os.getpid(), server)
        return any(
            one.client not in ours and self._is_for(one, each)
            for one in waiting
            for each in written
            if one.is_certain or not certainly
        )

    def _is_for(self, request: Unanswered, message: Written) -> bool:
        before_s = message.at - request.came_at
        if not -ROUNDED_S <= before_s <= (LONGEST_BEFORE_S if request.is_certain else CLOSE_S):
            return False
        if request.came_at < (message.named_at or 0.0) - ROUNDED_S:
            return False  # it came before there was such a message
        if request.client is None or not request.is_certain:
            return message.named_at is None
        return not _is_interface(read_arguments(request.client))

    def stops(self, pid: int | None, session: str, *, since_at: float) -> int | None:
        places = {} if pid is None else read_variables(pid, ("XDG_DATA_HOME", "HOME"))
        data = places.get("XDG_DATA_HOME") or os.path.join(places.get("HOME", ""), ".local/share")
        if not os.path.isabs(data):
            return None
        try:
            path = os.path.join(data, "opencode/log/opencode.log")
            with open(path, "rb", opener=regular) as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError:
            return None
        return sum(1 for line in lines if _asks_to_stop(line, session) and _at(line) >= since_at)


def _is_interface(arguments: Sequence[str]) -> bool:
    """Return whether a client shows a person the session, where the work is seen to continue."""
    is_browser = os.path.basename(arguments[0] if arguments else "").lower().startswith(BROWSERS)
    return is_browser or command_of(arguments) in OF_PERSONS


def command_of(arguments: Sequence[str]) -> str | None:
    """The command that an opencode runs; empty: its interface. None: it is no opencode."""
    names = [os.path.basename(one) for one in arguments[:3]]
    at = next((at for at, one in enumerate(names) if one.startswith("opencode")), None)
    if at is None:
        return None
    is_value = False
    for one in arguments[at + 1 :]:
        if is_value or one.startswith("-"):
            is_value = not is_value and one in _WITH_VALUE
        else:
            return one if one in OF_PROGRAMS | OF_PERSONS | OF_ANYBODY else ""
    return ""


def _asks_to_stop(line: str, session: str) -> bool:
    return line.endswith(f" message=cancel session.id={session}")


def _at(line: str) -> float:
    """Unix seconds; 0 where the line does not begin with a time."""
    name, _, rest = line.partition("=")
    try:
        found = datetime.fromisoformat(rest.partition(" ")[0])
    except ValueError:
        return 0.0
    return found.timestamp() if name == "timestamp" else 0.0
