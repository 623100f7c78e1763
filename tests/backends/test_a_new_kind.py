"""A kind of backend is one file and one line: every list of kinds follows from `KINDS`."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
GOOSE = Path(__file__).parent / "planted" / "goose_cli.py"
PROGRAM = '''
import json
from fallbackd.backends import JUDGED, KIND_NAMES, KINDS, SIGNATURES
from fallbackd.backends.spec import Options
from fallbackd.config.load import load
from fallbackd.core.ids import BackendId
from fallbackd.core.policy import Entry
from fallbackd.core.protocol import Chunk, ProcessExit, Work
from fallbackd.core.work.workspaces import may_write

loaded = load("""
[backends.goose]
kind = "goose"
[[signatures]]
id = "full"
kind = "goose"
pattern = "pond is full"
reason = "rate_limit"
""", path="config.toml")
policy = loaded.policy
backend = policy.backends[BackendId("goose")]
kind = KINDS[backend.kind]
options = loaded.options[backend.id]
work = Work(prompt="hello", prompt_path="/p", cwd="/w", scratch="/s", permissions="read")
call = kind.start(work, options)
parser = kind.parser(options)
for event in (
    {"type": "message", "message": {"role": "assistant", "content": [
        {"type": "text", "text": "he"}]}},
    {"type": "message", "message": {"role": "assistant", "content": [
        {"type": "text", "text": "llo"}]}},
    {"type": "complete", "total_tokens": 7},
):
    line = json.dumps(event).encode() + b"\\n"
    parser.feed(Chunk(at=1.0, stream="stdout", data=line))
reply = parser.finish(ProcessExit(at=2.0, code=0, gone=True))
entries = (Entry(backend=backend.id),)
print(json.dumps({
    "problems": [one.message for one in (*loaded.errors, *loaded.warnings)],
    "named": "goose" in KIND_NAMES and "goose" not in JUDGED,
    "judged": [rule.id for rule in (*loaded.rules_for("goose"), *SIGNATURES["goose"])],
    "program": kind.program(options),
    "login": kind.setup.login,
    "is_http": backend.is_http,
    "writes": [may_write(policy, entries, reads=reads) for reads in (True, False)],
    "is_plain": backend.plain_output,
    "any": [entry.backend for entry in policy.chains["*"]],
    "argv": call.argv,
    "reply": [reply.text, reply.usage.output_tokens],
}))
'''


def test_a_new_kind_is_one_file_and_one_line(tmp_path: Path) -> None:
    shutil.copytree(
        ROOT / "daemon", tmp_path / "daemon", ignore=shutil.ignore_patterns("__pycache__")
    )
    backends = tmp_path / "daemon" / "fallbackd" / "backends"
    shutil.copy(GOOSE, backends)
    listed = backends / "__init__.py"
    before = listed.read_text()
    after = before.replace("    generic_cli,\n", "    generic_cli,\n    goose_cli,\n").replace(
        "    generic_cli.KIND,\n", "    generic_cli.KIND,\n    goose_cli.KIND,\n"
    )
    assert len(after.splitlines()) == len(before.splitlines()) + 2  # its import, and its line
    listed.write_text(after)
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{tmp_path / 'daemon'}:{ROOT / 'client'}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == {
        "problems": [],
        "named": True,
        "judged": ["full", "goose-error", "goose-config"],
        "program": "goose",
        "login": "goose configure",
        "is_http": False,
        "writes": [False, True],
        "is_plain": False,
        "any": ["claude", "codex", "opencode", "gemini", "numasec", "agy", "goose"],
        "argv": [
            "goose", "run", "--no-session", "--quiet", "--output-format", "stream-json",
            "--instructions", "-",
        ],
        "reply": ["hello", 7],
    }  # fmt: skip
