"""Every command, sorted: its module is `commands/<name>.py`, loaded when it is chosen."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Protocol

    from fallbackd_client.client import Client

    class CommandModule(Protocol):
        """What a module of this package provides."""

        def register(self, parser: argparse.ArgumentParser) -> None: ...
        def run(self, args: argparse.Namespace, client: Client) -> int: ...


class Command:
    """
    Args:
        help_line: One line for `--help`.
        waits: It may last: a daemon that restarts meanwhile gets more time to come back.
    """

    __slots__ = ("help_line", "name", "waits")

    def __init__(self, name: str, help_line: str, *, waits: bool = False) -> None:
        self.name = name
        self.help_line = help_line
        self.waits = waits


COMMANDS: tuple[Command, ...] = (
    Command("answer", "answer a question that waits for a person"),
    Command("call", "call any method with JSON"),
    Command("cancel", "stop a delegation and wait until it is proven stopped", waits=True),
    Command("classify", "say what an output of a backend means"),
    Command("completions", "print the completions for a shell"),
    Command("config", "check, reload or show the configuration"),
    Command("delegate", "have a prompt answered by the best healthy backend", waits=True),
    Command("doctor", "find what is wrong around the daemon, and say what mends it"),
    Command("drain", "take no new work, let running work end"),
    Command("events", "print what happens, one line each", waits=True),
    Command("explain", "tell why a delegation went as it did"),
    Command("health", "list, mark, clear, pause or resume backends"),
    Command("log", "print the output of a delegation's attempt", waits=True),
    Command("ping", "see whether the daemon answers"),
    Command("questions", "list the choices that wait for a person"),
    Command("report", "tell what became of a call made without the daemon"),
    Command("resolve", "show who would be used now"),
    Command("sessions", "list sessions, or show one"),
    Command("show", "show a delegation as it is now"),
    Command("shutdown", "drain, then stop the daemon"),
    Command("status", "show the daemon, its backends and its work"),
    Command("suggest", "suggest a backend for a task"),
    Command("usage", "show what was used, by backend and period"),
    Command("wait", "wait for the end of a delegation", waits=True),
)


def load(name: str) -> CommandModule:
    module: CommandModule = __import__(f"{__name__}.{name}", fromlist=["run"])
    return module
