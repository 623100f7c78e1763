"""A program that refuses the way it is started, or that its runtime cannot load."""

from typing import Any

import pytest

from fallbackd.backends import KINDS
from fallbackd.classify.classifier import classify
from fallbackd.core.failures import Failure
from fallbackd.core.protocol import Evidence
from fallbackd.core.reasons import Reason

NOW = 1785578400.0
NODE = "    at wrapSafe (node:internal/modules/cjs/loader:1464:18)\n"
REFUSALS = {
    "claude": "error: unknown option '--permission-mode'",
    "claude's choices": "error: option '--permission-mode <mode>' argument 'plan' is invalid. "
    "Allowed choices are a, b.",
    "codex": "WARNING: proceeding\nerror: unexpected argument '--skip-git-repo-check' found\n\n"
    "  tip: a similar argument exists: '--oss'\n\nUsage: codex exec [OPTIONS] [PROMPT]\n",
    "codex's choices": "error: invalid value 'workspace-write' for '--sandbox <SANDBOX_MODE>'\n"
    "  [possible values: a, b]\n",
    "codex's command": "error: unrecognized subcommand 'exec'",
    "gemini": "Unknown arguments: approval-mode, approvalMode\nUsage: gemini [options] [command]",
    "gemini's choices": 'Invalid values:\n  Argument: output-format, Given: "stream-json"',
    "opencode": "opencode run [message..]\n\nrun opencode with a message\n\nPositionals:",
    "opencode 2": "\nERROR\n  Unrecognized flag: --dir in command opencode run\n",
    "opencode 2's command": '\nERROR\n  Unknown subcommand "import"\n',
    "argparse": "usage: x [-h]\nx: error: unrecognized arguments: --json",
    "cobra": "Error: unknown flag: --json\nUsage:\n  x run [flags]",
    "go": "flag provided but not defined: -json",
    "old node": "/usr/lib/gemini.js:5\n  a ??= 1;\n    ^^^\n\nSyntaxError: Unexpected token '??='\n"
    "    at wrapSafe (internal/modules/cjs/loader.js:915:16)\n",
    "node": f"/app/x.js:1\nlet a = ;\n        ^\n\nSyntaxError: Unexpected token ';'\n{NODE}",
    "node's modules": "import { a } from 'node:util';\n         ^\n"
    "SyntaxError: The requested module 'node:util' does not provide an export named 'a'\n"
    "    at ModuleJob._instantiate (node:internal/modules/esm/module_job:123:21)\n",
    "old python": '  File "/usr/bin/agent", line 3\n    match x:\n          ^\n'
    "SyntaxError: invalid syntax",
    "runtime": "Error: Claude Code requires Node.js version 18 or higher to be installed.",
    "libc": "codex: /lib/libc.so.6: version `GLIBC_2.34' not found (required by codex)",
}


def judge(text: str, kind: str, **fields: Any) -> Failure | None:
    fields = {"stream": "stderr", "exit_code": 1, **fields}
    return classify(Evidence(text=text, **fields), KINDS[kind].rules, now=NOW)


@pytest.mark.parametrize("kind", ["claude", "codex", "gemini", "generic-cli", "opencode"])
@pytest.mark.parametrize("name", REFUSALS)
def test_it_is_not_configured_and_the_next_one_is_tried(name: str, kind: str) -> None:
    failure = judge(REFUSALS[name], kind)
    assert failure is not None
    assert (failure.reason, failure.detail) == (Reason.NOT_CONFIGURED, "version")
    assert failure.marks_health
    assert failure.reason.row.flags.hop


@pytest.mark.parametrize("fields", [{"answered": True}, {"exit_code": 0}, {"signal": 9}])
@pytest.mark.parametrize("name", REFUSALS)
def test_words_of_a_program_that_was_served_or_ended_well_are_not_its_version(
    name: str, fields: dict[str, Any]
) -> None:
    failure = judge(REFUSALS[name], "codex", **fields)
    assert failure is None or failure.detail != "version"


def test_an_answer_that_is_no_json_is_not_the_version_of_a_program() -> None:
    text = (
        "Error when talking to Gemini API SyntaxError: Unexpected token '<', \"<<<this\"... is "
        f"not valid JSON\n    at JSON.parse (<anonymous>)\n{NODE}"
    )
    failure = judge(text, "gemini")
    assert failure is not None
    assert failure.reason is Reason.SERVER_ERROR
