"""A method is two files: its noun on the wire, and the noun of the same name in `api`."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
WIRE = '''
class UsageDaysParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    at_least: int = 0
    """Days with fewer attempts are left out."""


class UsageDaysResult(Struct, frozen=True, kw_only=True):
    days: int
    """How many days saw any use."""


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
'''
API = """
def usage_days(engine: "Engine", params: UsageDaysParams, caller: Caller) -> UsageDaysResult:
    return UsageDaysResult(days=len([one for one in engine.used if one >= params.at_least]))


HANDLERS: tuple[Handler[Any, Any], ...] = (Handler(USAGE, usage), Handler(USAGE_DAYS, usage_days))
"""
PROGRAM = """
import json
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

print(json.dumps({
    "is_listed": "usage.days" in [one.name for one in METHODS],
    "is_described": "usage.days" in [one["name"] for one in document("1")["methods"]],
    "answer": ask(at_least=2).get("result"),
    "refused": ask(at_least="two").get("error", {}).get("code"),
}))
"""


def replaced(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1, old
    path.write_text(text.replace(old, new))


def test_a_new_method_is_its_noun_on_the_wire_and_in_the_api(tmp_path: Path) -> None:
    for folder in ("daemon", "client"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    wire = tmp_path / "client" / "fallbackd_client" / "wire" / "methods" / "usage.py"
    replaced(wire, "\nMETHODS = (USAGE,)\n", WIRE)
    api = tmp_path / "daemon" / "fallbackd" / "api" / "usage.py"
    replaced(api, "\nHANDLERS: tuple[Handler[Any, Any], ...] = (Handler(USAGE, usage),)\n", API)
    replaced(
        api,
        "import USAGE, UsageParams, UsageResult\n",
        "import USAGE, UsageParams, UsageResult\n"
        "from fallbackd_client.wire.methods.usage import (\n"
        "    USAGE_DAYS, UsageDaysParams, UsageDaysResult,\n)\n",
    )
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env={
            "PYTHONPATH": f"{tmp_path / 'daemon'}:{tmp_path / 'client'}",
            "PATH": "/usr/bin:/bin",
        },
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == {
        "is_listed": True,
        "is_described": True,
        "answer": {"days": 2},
        "refused": -32602,
    }
