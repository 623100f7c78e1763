"""A tool call that a parser has read: what it may do, or that its agent refused it."""

from collections.abc import Mapping, Sequence, Set

from msgspec import structs

from fallbackd.backends.lines import tool_key
from fallbackd.backends.outside import act_of
from fallbackd.core.protocol import Reply, ToolStarted


def started(
    name: str, arguments: object, *, call: str, harmless: Set[str], key: str | None = None
) -> ToolStarted:
    """
    Args:
        harmless: Names of the tools that read, list and search.
        key: For tools whose arguments are not shown: what tells two calls apart.
    """
    key = tool_key(name, arguments) if key is None else key
    if name in harmless:
        return ToolStarted(key=key, name=name, effects="none", call=call)
    act = act_of(name, arguments)
    return ToolStarted(
        key=key,
        name=name,
        outside="" if act is None else act.what,
        all_or_nothing=act is not None and act.all_or_nothing,
        call=call,
    )


MAX_REFUSED = 5
"""Calls that a warning names."""
MAX_REFUSED_CHARS = 80
_TELLING = ("command", "cmd", "file_path", "filePath", "path", "url")


def call_words(name: str, arguments: object) -> str:
    """A call in short, for people: `Bash (git push origin main)`."""
    given = arguments if isinstance(arguments, Mapping) else {"command": arguments}
    found = next((given[word] for word in _TELLING if given.get(word)), "")
    if isinstance(found, list):
        found = " ".join(word for word in found if isinstance(word, str))
    shown = " ".join(found.split())[:MAX_REFUSED_CHARS] if isinstance(found, str) else ""
    words = f"{name[:MAX_REFUSED_CHARS]} ({shown})" if shown else name[:MAX_REFUSED_CHARS]
    return "".join(char for char in words if char.isprintable())


def with_refused(reply: Reply, refused: Sequence[str], way_out: str) -> Reply:
    """
    The answer, with a warning about the calls that its agent refused itself.

    Args:
        refused: Of `call_words`.
        way_out: What allows them, as the end of a sentence.
    """
    calls = list(dict.fromkeys(refused))
    if not calls:
        return reply
    more = len(calls) - MAX_REFUSED
    named = ", ".join(calls[:MAX_REFUSED]) + (f" and {more} more" if more > 0 else "")
    warning = f"the agent's own rules refused: {named}; to allow this, {way_out}"
    return structs.replace(reply, warnings=(*reply.warnings, warning))
