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
        help_line: One line for `--help`; a verb first.
        example: What a person would type after the program's name.
        waits: It may last: a daemon that restarts meanwhile gets more time to come back.
        aliases: Other names for it.
    """

    __slots__ = ("aliases", "example", "help_line", "name", "waits")

    def __init__(
        self,
        name: str,
        help_line: str,
        example: str,
        *,
        waits: bool = False,
        aliases: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self.help_line = help_line
        self.example = example
        self.waits = waits
        self.aliases = aliases

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)


COMMANDS: tuple[Command, ...] = (
    Command("accounts", "list or add accounts of one agent", "accounts add codex work", waits=True),
    Command("answer", "answer a question that needs a human", "answer q1a206cc use:claude"),
    Command("call", "call any method of the daemon with JSON", "call daemon.ping"),
    Command(
        "cancel", "stop a delegation and wait for its processes to exit", "cancel ID", waits=True
    ),
    Command(
        "classify", "show which failure a backend's output means", "classify --kind codex out.log"
    ),
    Command("completions", "print the completions for a shell", "completions bash"),
    Command("config", "show, check or change the configuration", "config set defaults.settle_s 3"),
    Command(
        "continue",
        "continue a conversation with another agent, as its own",
        "continue --from claude --to codex",
    ),
    Command(
        "delegate",
        "run a prompt on the best available backend",
        'delegate --backend codex "Explain this repository"',
        waits=True,
    ),
    Command("doctor", "diagnose problems and suggest fixes", "doctor"),
    Command("drain", "stop accepting work and let running work finish", "drain"),
    Command("events", "print events as they happen, one per line", "events --count 10", waits=True),
    Command("explain", "explain how a delegation was routed", "explain ID"),
    Command("gateway", "point a program at the daemon's HTTP endpoint", "gateway env claude"),
    Command(
        "health",
        "show which backends are unavailable, and override it",
        "health mark codex --ttl 1h",
    ),
    Command(
        "hooks",
        "have agents that you have open report their limits",
        "hooks install claude",
    ),
    Command(
        "list",
        "list delegations: running ones, then the last ended",
        "list --since 2h",
        aliases=("ps", "ls", "history"),
    ),
    Command("log", "show what the agent of a delegation said and did", "log -f ID", waits=True),
    Command("mcp", "serve an agent the daemon's tools over MCP", "mcp"),
    Command("notify", "check that notifications arrive", "notify test"),
    Command("ping", "check that the daemon answers", "ping"),
    Command("questions", "list the decisions that need a human", "questions"),
    Command(
        "reply",
        "send a further prompt into a delegation's conversation",
        'reply @last "Now add a test for it"',
        waits=True,
    ),
    Command(
        "report",
        "report the outcome of a call you made yourself",
        "report --backend codex failure --file out.log",
    ),
    Command("resolve", "show which backend would be used now", "resolve --backend codex"),
    Command("restore", "put a backup of the database back", "restore ~/backup"),
    Command(
        "retry",
        "run a delegation again, with the same parameters",
        "retry @last",
        waits=True,
    ),
    Command(
        "service",
        "install, start, stop or show the user service",
        "service install",
        waits=True,
    ),
    Command("sessions", "list sessions, or show one with its turns", "sessions show S"),
    Command(
        "setup",
        "set up configuration and service, run a first prompt",
        "setup",
        waits=True,
        aliases=("init",),
    ),
    Command("share", "show or test how health is shared with other machines", "share status"),
    Command("show", "show a delegation and its answer", "show ID"),
    Command("shutdown", "drain, then stop the daemon", "shutdown"),
    Command("status", "show the daemon, its backends and its work", "status --watch"),
    Command(
        "statusline",
        "print Claude Code's status line, and report its plan",
        "statusline --then 'starship prompt'",
    ),
    Command(
        "suggest", "suggest a backend for a task", 'suggest --complexity high "port it to Rust"'
    ),
    Command("undrain", "accept work again after a drain", "undrain"),
    Command("usage", "show usage by backend and period", "usage --backend codex"),
    Command(
        "wait",
        "wait for a delegation and print its answer",
        "wait --wait-for 5m ID",
        waits=True,
        aliases=("attach",),
    ),
)


def load(name: str) -> CommandModule:
    name = "continue_" if name == "continue" else name  # a keyword
    module: CommandModule = __import__(f"{__name__}.{name}", fromlist=["run"])
    return module
