"""A tool call that a parser has read, with what it may do."""

from collections.abc import Set

from fallbackd.backends.lines import tool_key
from fallbackd.backends.outside import act_of
from fallbackd.core.protocol import ToolStarted


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
