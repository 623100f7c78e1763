"""Every command, by group. Its module is loaded when it is chosen."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Command:
    """
    Args:
        help_line: One line for `--help`; a verb first.
        example: What a person would type after the program's name.
        waits: It may last: a daemon that restarts meanwhile gets more time to come back.
        aliases: Other names for it.
        home: Its module of this package, where that is not called like it.
    """

    __slots__ = ("aliases", "example", "help_line", "home", "name", "waits")

    def __init__(
        self,
        name: str,
        help_line: str,
        example: str,
        *,
        waits: bool = False,
        aliases: tuple[str, ...] = (),
        home: str = "",
    ) -> None:
        self.name = name
        self.help_line = help_line
        self.example = example
        self.waits = waits
        self.aliases = aliases
        self.home = home or name

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)


GROUPS: tuple[tuple[str, tuple[Command, ...]], ...] = (
    (
        "work",
        (
            Command(
                "delegate",
                "run a prompt on the best available backend",
                'delegate --backend codex "Explain this repository"',
                waits=True,
                home="work",
            ),
            Command(
                "reply",
                "send a further prompt into a delegation's conversation",
                'reply @last "Now add a test for it"',
                waits=True,
                home="work",
            ),
            Command(
                "retry",
                "run a delegation again, with the same parameters",
                "retry @last",
                waits=True,
                home="work",
            ),
            Command(
                "wait",
                "wait for a delegation and print its answer",
                "wait --wait-for 5m ID",
                waits=True,
                aliases=("attach",),
                home="work",
            ),
            Command(
                "cancel",
                "stop a delegation and wait for its processes to exit",
                "cancel ID",
                waits=True,
                home="work",
            ),
            Command(
                "standby",
                "list what waits for a backend; start or move it",
                "standby start @last",
            ),
            Command(
                "continue",
                "move a conversation to another agent",
                "continue --from claude --to codex",
                home="continue_",
            ),
        ),
    ),
    (
        "see",
        (
            Command("status", "show the daemon, its backends and its work", "status --watch"),
            Command(
                "list",
                "list delegations: running ones, then the last ended",
                "list --since 2h",
                aliases=("ps", "ls", "history"),
            ),
            Command("show", "show a delegation and its answer", "show ID", home="see"),
            Command(
                "log", "show what the agent of a delegation said and did", "log -f ID", waits=True
            ),
            Command("explain", "explain how a delegation was routed", "explain ID"),
            Command(
                "sessions",
                "list sessions, or show one with its turns",
                "sessions show S",
                home="see",
            ),
            Command(
                "events",
                "print events as they happen, one per line",
                "events --count 10",
                waits=True,
                home="see",
            ),
            Command(
                "stats", "show availability, failovers and cost over time", "stats --since 30d"
            ),
            Command("metrics", "print figures for Prometheus", "metrics"),
            Command("limits", "show how much of each plan is used", "limits", home="see"),
            Command(
                "usage", "show usage by backend and period", "usage --backend codex", home="see"
            ),
        ),
    ),
    (
        "decide",
        (
            Command(
                "questions", "list the decisions that need a human", "questions", home="decide"
            ),
            Command(
                "answer",
                "answer a question that needs a human",
                "answer q1a206cc use:claude",
                home="decide",
            ),
            Command(
                "health",
                "show which backends are unavailable, and override it",
                "health mark codex --ttl 1h",
                home="decide",
            ),
            Command(
                "resolve",
                "show which backend would be used now",
                "resolve --backend codex",
                home="decide",
            ),
            Command(
                "prepare",
                "start the agent for a prompt that comes soon",
                "prepare --role voice",
                home="decide",
            ),
            Command(
                "suggest",
                "suggest a backend for a task",
                'suggest --complexity high "port it to Rust"',
                home="decide",
            ),
            Command(
                "classify",
                "show which failure a backend's output means",
                "classify --kind codex out.log",
            ),
            Command(
                "report",
                "report the outcome of a call you made yourself",
                "report --backend codex failure --file out.log",
                home="classify",
            ),
        ),
    ),
    (
        "set up",
        (
            Command(
                "setup",
                "set up configuration and service; --undo removes them",
                "setup",
                waits=True,
                aliases=("init",),
            ),
            Command("doctor", "diagnose problems and suggest fixes", "doctor"),
            Command(
                "config",
                "show, check or change the configuration",
                'config set chains.claude \'["codex", "gemini"]\'',
            ),
            Command(
                "accounts",
                "list or add accounts of one agent",
                "accounts add codex work",
                waits=True,
            ),
            Command(
                "hooks",
                "let your open agent sessions report their limits",
                "hooks install claude",
            ),
            Command(
                "statusline",
                "print Claude Code's status line, and report its plan",
                "statusline --then 'starship prompt'",
            ),
            Command(
                "gateway", "point a program at the daemon's HTTP endpoint", "gateway env claude"
            ),
            Command("mcp", "serve an agent the daemon's tools over MCP", "mcp"),
            Command(
                "share", "show or test how health is shared with other machines", "share status"
            ),
            Command("notify", "check that notifications arrive", "notify test", home="share"),
            Command("completions", "print the completions for a shell", "completions bash"),
        ),
    ),
    (
        "serve",
        (
            Command(
                "service",
                "install, start, stop or show the user service",
                "service install",
                waits=True,
            ),
            Command("ping", "check that the daemon answers", "ping", home="serve"),
            Command(
                "drain", "stop accepting work and let running work finish", "drain", home="serve"
            ),
            Command("undrain", "accept work again after a drain", "undrain", home="serve"),
            Command("shutdown", "drain, then stop the daemon", "shutdown", home="serve"),
            Command("restore", "put a backup of the database back", "restore ~/backup"),
            Command(
                "call", "call any method of the daemon with JSON", "call daemon.ping", home="serve"
            ),
        ),
    ),
)
"""Every command, below the word for what a person does with it; the most used ones first."""
COMMANDS: tuple[Command, ...] = tuple(
    sorted((one for _, group in GROUPS for one in group), key=lambda one: one.name)
)


MEANT = {
    **dict.fromkeys(("ask", "run", "prompt", "exec"), 'delegate "PROMPT"'),
    **dict.fromkeys(("why", "reason", "trace"), "explain @last"),
    **dict.fromkeys(("chat", "follow-up"), 'reply @last "PROMPT"'),
    **dict.fromkeys(("last", "output", "result", "answers"), "show @last"),
    **dict.fromkeys(("tail", "follow", "watch"), "log -f @last"),
    **dict.fromkeys(("use", "agent", "model", "models"), 'delegate --backend B --model M "PROMPT"'),
    **dict.fromkeys(("disable", "skip", "exclude", "pause"), "health pause BACKEND"),
    **dict.fromkeys(("enable", "unpause"), "health resume BACKEND"),
    **dict.fromkeys(("reset", "clear", "unmark"), "health clear BACKEND"),
    **dict.fromkeys(("stop", "kill", "abort"), "cancel DELEGATION (the daemon: shutdown)"),
    **dict.fromkeys(("uninstall", "remove", "undo"), "setup --undo"),
    **dict.fromkeys(("login", "logins", "account"), "accounts add AGENT NAME"),
    **dict.fromkeys(("backend", "backends", "agents", "providers"), "health list"),
    **dict.fromkeys(("add", "add-backend", "edit"), "config edit"),
    **dict.fromkeys(
        ("chain", "chains", "order", "route", "default", "prefer"),
        """config set chains.claude '["codex", "gemini"]'""",
    ),
    **dict.fromkeys(("cost", "costs", "spend", "price", "tokens"), "usage"),
    **dict.fromkeys(("statistics", "availability", "uptime", "outages"), "stats"),
    **dict.fromkeys(("quota", "plan", "limit"), "limits"),
    **dict.fromkeys(
        ("permission", "permissions", "allow", "cwd"),
        'delegate --permissions workspace --cwd DIR "PROMPT"',
    ),
    **dict.fromkeys(("resume", "switch", "move"), "continue"),
    **dict.fromkeys(("install", "configure"), "setup"),
    **dict.fromkeys(("update", "upgrade"), "service install (once the new version is installed)"),
    "version": "--version",
    **dict.fromkeys(("start", "restart", "logs"), "service start|restart|logs"),
    **dict.fromkeys(("api", "proxy", "endpoint"), "gateway env AGENT"),
    **dict.fromkeys(("tools", "server"), "mcp install AGENT"),
}
"""Words that people try, and the command that does what they mean."""


def load(command: Command, what: str) -> Callable[..., int]:
    """
    One of the two functions of a command: `register` takes its parser, `run` the arguments and the
    client. They carry its name (`run_show`) in a module of several commands.
    """
    module = __import__(f"{__name__}.{command.home}", fromlist=["run"])
    found: Callable[..., int] | None = getattr(module, f"{what}_{command.name}", None)
    return found or getattr(module, what)
