"""
One more of each kind, built in a copy of the tree: it works, and changes the files that
CONTRIBUTING.md names.

The pages, and `make weights`, are left out: other tests compare them with the code.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec import Struct

ROOT = Path(__file__).parents[1]
DAEMON, CLIENT = "daemon/fallbackd", "client/fallbackd_client"


class Addition(Struct, frozen=True, kw_only=True):
    """
    Attributes:
        row: The first words of its row in CONTRIBUTING.md.
        code: By file: a line that is there once, or more of them, and what follows it; without
            such a line: the content of a new file.
        program: Prints JSON.
        says: That JSON.
    """

    row: str
    code: Mapping[str, tuple[tuple[str, str], ...] | str]
    program: str
    says: object


METHOD = Addition(
    row="an RPC method",
    code={
        f"{CLIENT}/wire/methods/usage.py": (
            (
                "from msgspec import Struct\n",
                '''

class UsageDaysParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    at_least: int = 0
    """Days with fewer attempts are left out."""


class UsageDaysResult(Struct, frozen=True, kw_only=True):
    days: int
    """How many days saw any use."""

''',
            ),
            (
                "\nMETHODS = (USAGE,)\n",
                """
USAGE_DAYS: Method[UsageDaysParams, UsageDaysResult] = Method(
    "usage.days",
    params=UsageDaysParams,
    result=UsageDaysResult,
    read_only=True,
    who="person",
    summary="How many days saw any use.",
    example=({"at_least": 2}, {"days": 3}),
)
METHODS = (USAGE, USAGE_DAYS)
""",
            ),
        ),
        f"{DAEMON}/api/usage.py": (
            (
                "import USAGE, UsageParams, UsageResult\n",
                "from fallbackd_client.wire.methods.usage import (\n"
                "    USAGE_DAYS, UsageDaysParams, UsageDaysResult,\n)\n",
            ),
            (
                "\nHANDLERS: tuple[Handler[Any, Any], ...] = (Handler(USAGE, usage),)\n",
                """
def usage_days(engine: "Engine", params: UsageDaysParams, caller: Caller) -> UsageDaysResult:
    return UsageDaysResult(days=len([one for one in engine.used if one >= params.at_least]))


HANDLERS: tuple[Handler[Any, Any], ...] = (*HANDLERS, Handler(USAGE_DAYS, usage_days))
""",
            ),
        ),
    },
    program="""
from types import SimpleNamespace
from fallbackd.core.authority import PERSON
from fallbackd.fronts.rpc.discover import HANDLERS, document
from fallbackd.fronts.rpc.dispatch import Dispatcher
from fallbackd_client.wire.methods import METHODS

peer = SimpleNamespace(
    number=1, peer_pid=None, peer_uid=None, client=None, backlog_bytes=0, is_open=True,
    has_hung_up=False, host=None, authority=PERSON,
    subscriptions=None,
)
dispatcher = Dispatcher(SimpleNamespace(used=[4, 1, 2]), HANDLERS)

def ask(**params):
    asked = {"jsonrpc": "2.0", "id": 1, "method": "usage.days", "params": params}
    return json.loads(dispatcher.take(json.dumps(asked).encode(), peer))

say({
    "is_listed": "usage.days" in [one.name for one in METHODS],
    "is_described": "usage.days" in [one["name"] for one in document("1")["methods"]],
    "answer": ask(at_least=2).get("result"),
    "refused": ask(at_least="two").get("error", {}).get("code"),
})
""",
    says={
        "is_listed": True,
        "is_described": True,
        "answer": {"days": 2},
        "refused": -32602,
    },
)
KNOB = Addition(
    row="a knob",
    code={
        f"{DAEMON}/core/policy.py": (
            (
                '    """`[defaults]` of the configuration."""\n',
                """
    hush_s: Annotated[float, Meta(ge=0, le=60)] = 4.0
    \"\"\"How long it is quiet, in seconds.\"\"\"
""",
            ),
        ),
    },
    program="""
from fallbackd.config.load import load
from fallbackd.config.schema import json_schema
from fallbackd.config.show import as_dict

def read(text):
    return load(text, path="/etc/fallbackd/config.toml")

wrong = read("[defaults]\\nhush_s = 61")
say({
    "set": read("[defaults]\\nhush_s = 7").policy.defaults.hush_s,
    "shown": as_dict(read(None))["defaults"]["hush_s"],
    "is_described": "hush_s" in json.dumps(json_schema()),
    "is_bounded": "hush_s" in str((*wrong.errors, *wrong.warnings)),
})
""",
    says={"set": 7, "shown": 4.0, "is_described": True, "is_bounded": True},
)
REASON = Addition(
    row="a reason of failures",
    code={
        f"{DAEMON}/core/reasons.py": (
            (
                '`Reason.AUTH.row` is what follows from it."""\n',
                """
    MOONLIGHT = "moonlight", Row(
        flags=_LATER,
        window=_window(30, 600, retries=1),
        marked="model", about="backend", ended_by="time", verdict="broken",
        is_outage=True, is_passing=True, is_limit=True, may_be_notice=False,
        fix=None,
    )
""",
            ),
        ),
        f"{CLIENT}/wire/bounds.py": (('        "rate_limit", "usage_limit", ', '"moonlight", '),),
        f"{DAEMON}/backends/gemini_cli.py": (
            ("RULES = (\n", '    Rule("moonlight", Reason.MOONLIGHT, "the moon is up"),\n'),
        ),
    },
    program="""
from fallbackd.backends import SIGNATURES
from fallbackd.config.load import load
from fallbackd.core.reasons import Reason
from fallbackd.fronts.rpc.discover import document

text = "[policy.moonlight]\\nwindow_s = 11"
loaded = load(text, path="/etc/fallbackd/config.toml")
say({
    "set": loaded.policy.reasons[Reason("moonlight")].window_s,
    "is_described": "moonlight" in json.dumps(document("1")),
    "is_found": any(rule.reason == "moonlight" for rule in SIGNATURES["gemini"]),
})
""",
    says={"set": 11, "is_described": True, "is_found": True},
)
REQUEST_FIELD = Addition(
    row="a field of a request",
    code={
        f"{CLIENT}/wire/methods/delegations.py": (
            (
                '`wait_s` bounds only the waiting of this call."""\n',
                '\n    shade: Name | None = None\n    """The shade of the answer."""\n',
            ),
        ),
        f"{CLIENT}/arguments.py": (
            ("class DelegateArguments(TypedDict, total=False):\n", "    shade: str | None\n"),
        ),
        f"{DAEMON}/core/records.py": (
            (
                "class Terms(Struct, frozen=True, kw_only=True, omit_defaults=True):\n",
                '    """What a caller wants."""\n\n    shade: str | None = None\n',
            ),
        ),
    },
    program="""
from msgspec import UNSET
from fallbackd.core.events import DelegateRequested
from fallbackd.core.records import Delegation
from fallbackd.engine.requests import NewWork
from fallbackd.lib.alike import alike
from fallbackd_client.arguments import DelegateArguments
from fallbackd_client.wire.methods.delegations import DelegateParams

params = DelegateParams(prompt="hi", shade="dark")
work = alike(NewWork, params, permissions="read", env={}, metadata={}, chain=None, client=None)
here = {"delegation": "d", "session": "s", "cwd": "/", "mode": "batch", "chain": None}
event = alike(DelegateRequested, work, **here)
say({
    "is_an_argument": "shade" in DelegateArguments.__annotations__,
    "asked": event.shade,
    "is_kept": "shade" in Delegation.__struct_fields__,
})
""",
    says={"is_an_argument": True, "asked": "dark", "is_kept": True},
)
RESULT_FIELD = Addition(
    row="a field of a result",
    code={
        f"{CLIENT}/wire/shapes.py": (
            (
                '    """One request, from acceptance to its one answer."""\n',
                '\n    weight: int = 0\n    """Weight of the answer in grams."""\n',
            ),
        ),
        f"{DAEMON}/core/records.py": (
            ("class Delegation(Terms, frozen=True, kw_only=True):\n", "    weight: int = 0\n"),
        ),
    },
    program="""
from fallbackd.api import shapes
from fallbackd.core.records import Delegation

one = Delegation(
    delegation="d", session="s", requested="a", active="a", created_at=1.0, weight=5
)
say(shapes.delegation(one).weight)
""",
    says=5,
)
AGENT = Addition(
    row="a kind of agent CLI",
    code={
        f"{DAEMON}/backends/poet_cli.py": '''
"""Poet: `poet -p PROMPT`, whose last line is the answer."""

from fallbackd.backends.commands import command_line, program
from fallbackd.backends.lines import CliParser
from fallbackd.backends.spec import BackendKind, Options
from fallbackd.classify.rules import Rule
from fallbackd.core.protocol import Call, Evidence, Exit, GivenUp, Outcome, Reply, Work
from fallbackd.core.reasons import Reason


def start(work: Work, options: Options) -> Call:
    return command_line(work, options, ("poet", "-p", work.prompt))


class PoetParser(CliParser):
    def finish(self, exit: Exit) -> Outcome:
        text = self.stdout.text.strip()
        return Reply(text=text) if text else GivenUp(evidence=Evidence(text="", stream="stdout"))


KIND = BackendKind(
    name="poet",
    start=start,
    parser=PoetParser,
    rules=(Rule("poet-tired", Reason.OVERLOADED, "the poet is tired"),),
    program=lambda options: program("poet", options),
)
''',
        f"{DAEMON}/backends/__init__.py": (
            ("    opencode_cli,\n)\n", "from fallbackd.backends import poet_cli\n"),
            ("    opencode_cli.KIND,\n", "    poet_cli.KIND,\n"),
        ),
    },
    program="""
from fallbackd.config.load import load

loaded = load('[backends.bard]\\nkind = "poet"', path="/etc/fallbackd/config.toml")
say({
    "errors": [str(one) for one in loaded.errors],
    "kind": loaded.policy.backends["bard"].kind,
})
""",
    says={"errors": [], "kind": "poet"},
)
API = Addition(
    row="a kind of HTTP API",
    code={
        f"{DAEMON}/backends/http_calls.py": (
            (
                "HTTP_KINDS = (\n",
                '    http_kind("ode-http", Endpoint(base_url="https://ode.example/v1")),\n',
            ),
        ),
    },
    program="""
from fallbackd.config.load import load

loaded = load('[backends.ode]\\nkind = "ode-http"', path="/etc/fallbackd/config.toml")
say({"errors": [str(one) for one in loaded.errors], "kind": loaded.policy.backends["ode"].kind})
""",
    says={"errors": [], "kind": "ode-http"},
)
ADDITIONS = (METHOD, KNOB, REASON, REQUEST_FIELD, RESULT_FIELD, AGENT, API)
SAY = "import json\ndef say(it):\n    print(json.dumps(it))\n"


def added(tree: Path, addition: Addition) -> None:
    for name, code in addition.code.items():
        path = tree / name
        if isinstance(code, str):
            path.write_text(code)
            continue
        for line, more in code:
            text = path.read_text()
            assert text.count(line) == 1, f"{name}: {line}"
            path.write_text(text.replace(line, line + more))


def changed_files(row: str) -> str:
    """What CONTRIBUTING.md says about new and changed files."""
    lines = (ROOT / "CONTRIBUTING.md").read_text().splitlines()
    (found,) = (one for one in lines if one.startswith(f"| {row} |"))
    return "|".join(found.split("|")[2:4])


@pytest.mark.parametrize("addition", ADDITIONS, ids=[one.row for one in ADDITIONS])
def test_one_more_works_and_changes_the_files_that_are_named(
    addition: Addition, tmp_path: Path
) -> None:
    ignored = shutil.ignore_patterns("__pycache__")
    for folder in ("daemon", "client"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    added(tmp_path, addition)
    ran = subprocess.run(
        [sys.executable, "-c", SAY + addition.program],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{tmp_path}/daemon:{tmp_path}/client", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == addition.says
    said = changed_files(addition.row)
    for name in addition.code:
        where, _, file = name.rpartition("/")
        assert file in said or where.rpartition("/")[2] in said, f"{name} is not named"
