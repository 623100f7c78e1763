"""Each file that the daemon reads stands in docs/security.md with who may write it."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CODE = ROOT / "daemon" / "fallbackd"
PROJECT = "settings of a project, for opencode"
DIRECTORY = "git and configuration of a working directory"
TALK = "conversations and logs of agents"
LOGINS = "logins of agents"
SETTINGS = "settings and versions of agents"
RECORDS = "records of attempts"
STATE = "fallbackd's configuration, state and tokens"
VOICE = "the file that voice programs share"
KERNEL = "what the kernel says"
READ_BY = {
    PROJECT: ("config/project_files.py", "config/files.py"),
    DIRECTORY: ("engine/workspaces.py", "transports/process/gitguard.py"),
    TALK: ("transports/session_files.py", "transports/opencode/whose.py"),
    LOGINS: ("engine/credentials.py", "transports/secrets.py", "transports/machine.py"),
    SETTINGS: ("engine/attempts.py", "engine/readiness.py", "transports/probe.py"),
    RECORDS: (
        "engine/runs.py",
        "transports/http/running.py",
        "transports/opencode/record.py",
        "transports/opencode/session.py",
        "transports/output_log.py",
        "transports/process/orphans.py",
        "transports/process/recording.py",
        "transports/process/runner/attempt.py",
        "transports/process/runner/cgroup.py",
        "transports/process/runner/confine.py",
        "transports/process/runner/meeting.py",
        "transports/process/runner/recorder.py",
        "transports/process/runner/start.py",
        "transports/process/runner/tree.py",
        "transports/resident/record.py",
    ),
    STATE: (
        "app/configuration.py",
        "app/gateway.py",
        "app/main.py",
        "app/places.py",
        "engine/environment.py",
        "engine/feedback.py",
        "fronts/gateway/makers.py",
        "fronts/rpc/endpoint.py",
        "lib/atomicfile.py",
        "lib/privatefile.py",
        "stores/opening.py",
        "transports/http/clients.py",
    ),
    VOICE: ("app/voice.py",),
    KERNEL: (
        *("lib/clock.py", "lib/descriptors.py", "lib/directories.py", "lib/processes.py"),
        *("transports/http/loopback_owner.py", "transports/resident/machine.py"),
        *("transports/systemd_jobs.py", "engine/admission.py", "backends/lines.py"),
    ),
}
"""By line of the table, the modules that read such files (`lines` reads from a stream)."""
READS = {
    *(
        "open",
        "fdopen",
        "read_text",
        "read_bytes",
        "read_content",
        "read_file",
        "load_record",
        "read_start",
    ),
    *("regular", "readlink", "listdir", "scandir"),
}


def readers() -> set[str]:
    found = set()
    for path in CODE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = node.func
            word = name.attr if isinstance(name, ast.Attribute) else getattr(name, "id", "")
            of_a_path = not (word == "open" and isinstance(name, ast.Attribute)) or (
                isinstance(name, ast.Attribute) and getattr(name.value, "id", "") == "os"
            )
            if word in READS and of_a_path:
                found.add(str(path.relative_to(CODE)))
    return found


def test_each_reader_of_files_has_its_line_and_each_line_its_reader() -> None:
    named = [one for modules in READ_BY.values() for one in modules]
    assert sorted(named) == sorted(readers()), "see docs/security.md, and READ_BY"


def test_what_the_files_may_decide_is_documented() -> None:
    text = (ROOT / "docs" / "security.md").read_text()
    head = "| File | Written by an agent | It may decide |"
    table = text.partition(head)[2].partition("\n\n")[0].strip().splitlines()[1:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    assert [row[0] for row in rows] == list(READ_BY)
    assert all(len(row) == 3 and all(row) for row in rows)
