"""
numasec, a security agent: `numasec run`, a relative of `opencode run` with the same events.

Unverified: written from the options and events in its public source, never run against the
program. Where it prints no event at all, what it prints is taken as the answer.
"""

from fallbackd.backends import opencode_cli
from fallbackd.backends.commands import command_line, encode_json, model_of, program
from fallbackd.backends.spec import BackendKind, Options
from fallbackd.backends.variables import PROVIDERS
from fallbackd.core.protocol import Call, Exit, Outcome, ProcessExit, Reply, Work
from fallbackd_conversations.turns import TITLE_OF_PROGRAM

_READ_ONLY = {"permission": {"edit": "deny", "bash": "deny"}}


def start(work: Work, options: Options) -> Call:
    argv = ["numasec", "run", "--format", "json", "--title", TITLE_OF_PROGRAM]
    argv += ["--dir", work.cwd]
    model = model_of(work, options)
    if model:
        argv += ["-m", model]
    env: dict[str, str] = {}
    match work.permissions:
        case "read":
            env["NUMASEC_CONFIG_CONTENT"] = encode_json(_READ_ONLY)
        case "full":
            argv += ["--dangerously-skip-permissions"]
        case "workspace":
            if work.runs_commands:
                allowed = {"permission": opencode_cli.CONFINED_SHELL}
                env["NUMASEC_CONFIG_CONTENT"] = encode_json(allowed)
    return command_line(work, options, tuple(argv), env=env)


class NumasecParser(opencode_cli.OpencodeParser):
    def finish(self, exit: Exit) -> Outcome:
        outcome = super().finish(exit)
        if isinstance(outcome, Reply) or self.has_events or not isinstance(exit, ProcessExit):
            return outcome
        text = self.stdout.text.strip()
        if exit.code == 0 and not exit.stopped and text:
            return Reply(text=text, may_be_notice=True)
        return outcome


KIND = BackendKind(
    name="numasec",
    start=start,
    parser=NumasecParser,
    rules=opencode_cli.RULES,
    program=lambda options: program("numasec", options),
    variables=("NUMASEC_*", *PROVIDERS),
    keeps_to_reading=True,
    project=opencode_cli.project_files("numasec"),
    is_plain=lambda _: True,
    structured=True,
    footprint=lambda _: opencode_cli.footprint("numasec"),
)
