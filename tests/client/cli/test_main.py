import json
import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from tests.client.conftest import RunCli
from tests.client.scripted import Failing, answering, serving

import fallbackd_client
from fallbackd_client.cli import exits
from fallbackd_client.cli.commands import COMMANDS, GROUPS, MEANT, load
from fallbackd_client.cli.main import main

PONG = {"version": "1.2", "pid": 7, "at": 1.0, "state": "running"}
HEAVY = ("msgspec", "anyio", "asyncio", "rich", "fallbackd", "httpx2", "structlog", "ssl", "typing")


def test_commands_are_sorted_and_each_has_a_module() -> None:
    names = [command.name for command in COMMANDS]
    assert names == sorted(set(names))
    folder = Path(fallbackd_client.__file__).parent / "cli/commands"
    modules = {path.stem for path in folder.glob("*.py")}
    assert modules - {"__init__"} == {command.home for command in COMMANDS}
    for command in COMMANDS:
        assert load(command, "run").__module__.endswith(f".{command.home}")


@pytest.mark.parametrize("name", [command.name for command in COMMANDS])
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    assert f"fallbackd-client {name}" in capsys.readouterr().out


def test_help_lists_every_command_and_every_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for title, group in GROUPS:
        listed = shown.partition(f"\n{title}:\n")[2].partition("\n\n")[0]
        assert [line.split()[0].rstrip(",") for line in listed.splitlines()] == [
            command.name for command in group
        ]
    for code in ("0", "1", "2", "69", "75", "77", "78", "130"):
        assert f"\n  {code} " in shown


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["nosuch"],
        ["--nosuch", "status"],
        ["status", "--nosuch"],
        ["cancel"],
        ["delegate"],
        ["delegate", "x", "--wait", "never"],
        ["delegate", "x", "--timeout", "soon"],
        ["--socket"],
    ],
)
def test_a_wrong_command_line_is_usage(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    captured = capsys.readouterr()
    words = ("usage: fallbackd-client", "unknown option")
    assert any(one in captured.out + captured.err for one in words)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["delegate", "--bakend", "codex", "hi"], "did you mean --backend?"),
        (["status", "--verbos"], "did you mean --verbose?"),
        (["delegate", "--zzz", "hi"], "unknown option --zzz; `fallbackd-client delegate --help`"),
        (["delegate", "--agent", "codex", "hi"], "did you mean --backend?"),
        (["delegate", "--background", "hi"], "did you mean --wait accepted?"),
        (["list", "--agent", "codex"], "unknown option --agent"),
        (["delegate", "fix", "the", "bug"], "put an argument of several words into quotes"),
    ],
)
def test_an_option_or_word_too_many_is_one_line_that_says_what_was_meant(
    argv: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    said = capsys.readouterr().err
    assert says in said
    assert len(said.splitlines()) == 1


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert fallbackd_client.__version__ in capsys.readouterr().out


@pytest.mark.parametrize(
    "argv",
    [
        ["--socket", "{}", "--json", "ping"],
        ["ping", "--socket", "{}", "--json"],
        ["--json", "ping", "--socket={}"],
        ["--socket={}", "ping", "--json"],
        ["--socket", "/nowhere.sock", "ping", "--socket", "{}", "--json"],
    ],
)
def test_global_flags_stand_before_or_after_the_command(
    argv: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "control.sock"
    with serving(path, answering({"daemon.ping": PONG})):
        assert main([word.replace("{}", str(path)) for word in argv]) == 0
    assert json.loads(capsys.readouterr().out) == PONG


def test_no_daemon_ends_in_69_and_says_how_to_start_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--socket", str(tmp_path / "none.sock"), "status"]) == 69
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "fallbackd-client service start" in captured.err
    assert "Traceback" not in captured.err


def test_with_json_an_error_is_a_document_too(run_cli: RunCli) -> None:
    ran = run_cli(["--json", "show", "d9"], {"delegation.get": Failing(-32001, "no d9")})
    assert ran.code == 2
    assert json.loads(ran.out)["error"] == {
        "message": "no d9",
        "code": -32001,
        "kind": "unknown",
        "data": None,
    }


def test_not_permitted_ends_in_77(run_cli: RunCli) -> None:
    refused = Failing(-32005, "/etc is outside of allowed_roots", {"kind": "path"})
    ran = run_cli(["delegate", "x"], {"delegate": refused})
    assert ran.code == 77
    assert "allowed_roots" in ran.err


def test_what_an_error_says_is_cleaned(run_cli: RunCli) -> None:
    ran = run_cli(["show", "d9"], {"delegation.get": Failing(-32001, "no \x1b[2Jd9")})
    assert "no d9" in ran.err
    assert "\x1b" not in ran.err


def test_an_invalid_configuration_shows_path_and_message(run_cli: RunCli) -> None:
    problems = {"errors": [{"path": "chains.codex", "message": "is no list"}]}
    ran = run_cli(["config", "reload"], {"config.reload": Failing(-32006, "bad", problems)})
    assert ran.code == 78
    assert "chains.codex: is no list" in ran.err


def test_interruption_ends_in_130(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fallbackd_client.client.Client.call", interrupt)
    assert main(["--socket", str(tmp_path / "x"), "status"]) == 130
    assert "Traceback" not in capsys.readouterr().err


def child(path: Path | str, *argv: str, code: str = "") -> subprocess.CompletedProcess[str]:
    script = (
        "import sys\n"
        "from fallbackd_client.cli.main import main\n"
        f"code = main({['--socket', str(path), *argv]!r})\n{code}\nsys.exit(code)"
    )
    root = str(Path(fallbackd_client.__file__).parents[1])
    return subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": root, "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_status_loads_nothing_heavy(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    answer = {"daemon": {"version": "1", "pid": 1, "uptime_s": 1}, "health": {}}
    with serving(path, answering({"status": answer, "delegation.list": {}})):
        ran = child(path, "status", code="print(*sorted(sys.modules), sep='\\n', file=sys.stderr)")
    assert ran.returncode == 0
    loaded = set(ran.stderr.split())
    assert "fallbackd_client.cli.commands.status" in loaded
    assert loaded.isdisjoint(HEAVY)
    others = {name for name in loaded if name.startswith("fallbackd_client.cli.commands.")}
    assert others == {"fallbackd_client.cli.commands.status"}
    own = {name for name in loaded if name.partition(".")[0] == "fallbackd_client"}
    foreign = {name.partition(".")[0] for name in loaded - own} - set(sys.stdlib_module_names)
    assert foreign <= modules_of_a_bare_interpreter()


def modules_of_a_bare_interpreter() -> set[str]:
    """What this installation of Python loads by itself: `sitecustomize`, hooks of `site`."""
    shown = subprocess.run(
        [sys.executable, "-c", "import sys; print(*sys.modules)"],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=True,
    )
    return {name.partition(".")[0] for name in shown.stdout.split()}


def test_help_loads_nothing_heavy_either() -> None:
    ran = child("/x", "--help", code="print(*sorted(sys.modules), sep='\\n', file=sys.stderr)")
    assert set(ran.stderr.split()).isdisjoint(HEAVY)


def shell(path: Path, line: str) -> subprocess.CompletedProcess[str]:
    """`$C` stands for the client."""
    root = str(Path(fallbackd_client.__file__).parents[1])
    client = f"{sys.executable} -m fallbackd_client.cli.main --socket {path}"
    environ = {"PYTHONPATH": root, "PATH": os.environ["PATH"], "C": client}
    return subprocess.run(
        line, shell=True, env=environ, capture_output=True, text=True, check=False, timeout=120
    )


@pytest.mark.parametrize("words", ["status", "status --json", "--help", "completions bash"])
def test_a_full_disk_is_one_line(tmp_path: Path, words: str) -> None:
    path = tmp_path / "control.sock"
    with serving(path, answering({"status": {}, "delegation.list": {}})):
        ran = shell(path, f"$C {words} > /dev/full")
    assert ran.returncode == 1
    said = "fallbackd-client: cannot write the output: No space left on device\n"
    assert ran.stderr == said


def test_closed_streams_are_no_traceback(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with serving(path, answering({"status": {}, "delegation.list": {}})):
        ran = shell(path, "$C status >&- <&-")
        assert (ran.returncode, ran.stderr) == (0, "")
        ran = shell(path, "$C status >/dev/null 2>&-")
        assert ran.returncode == 0


def test_a_prompt_beyond_ascii_survives_a_locale_without_it(tmp_path: Path) -> None:
    path, asked = tmp_path / "control.sock", []

    def delegate(params: dict[str, Any]) -> dict[str, Any]:
        asked.append(params["prompt"])
        return {"delegation": "d1", "state": "running"}

    ascii_only = "LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0"
    with serving(path, answering({"delegate": delegate})):
        ran = shell(path, f"{ascii_only} $C delegate --wait accepted 'grüß 世界'")
    assert (ran.returncode, asked) == (0, ["grüß 世界"]), ran.stderr


def test_a_reader_that_goes_away_is_no_traceback(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with serving(path, answering({"status": {"text": "x" * 1_000_000}})):
        root = str(Path(fallbackd_client.__file__).parents[1])
        module = "fallbackd_client.cli.main"
        ran = subprocess.run(
            f"{sys.executable} -m {module} --socket {path} call status | head -c 1",
            shell=True,
            env={"PYTHONPATH": root, "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
    assert ran.stdout == "{"
    assert "Traceback" not in ran.stderr
    assert "Exception" not in ran.stderr


@pytest.mark.parametrize(
    ("argv", "possible"),
    [
        (["gateway"], ["  env ", "  setup "]),
        (["gateway", "setup"], ["  claude", "  codex", "  opencode"]),
        (["hooks"], ["  install ", "  uninstall "]),
        (["notify"], ["  test"]),
        (["config"], ["  check", "  edit"]),
        (["service"], ["  install", "  logs"]),
    ],
    ids=" ".join,
)
def test_a_missing_word_is_answered_with_the_possible_ones(
    argv: list[str], possible: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    shown = capsys.readouterr().err
    assert f"`fallbackd-client {' '.join(argv)} --help` says more" in shown
    assert all(f"\n{one}" in shown for one in possible), shown


def test_a_missing_word_of_any_kind_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["wait"]) == 2
    assert "the following arguments are required: " in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv",
    [
        ["--json", "delegate", ""],
        ["delegate", "--json"],
        ["--json", "status", "--nosuch"],
        ["--json", "nosuch"],
        ["--json", "--nosuch", "status"],
    ],
)
def test_wrong_usage_is_a_document_with_json(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    captured = capsys.readouterr()
    error = json.loads(captured.out)["error"]
    assert (error["kind"], error["message"] in captured.err) == ("usage", True)


@pytest.mark.parametrize(
    ("command", "method", "answer"),
    [
        ("status", "status", None),
        ("show d1", "delegation.get", [[]]),
        ("ping", "daemon.ping", None),
    ],
)
def test_an_answer_of_something_else_is_said_not_a_traceback(
    run_cli: RunCli, command: str, method: str, answer: object
) -> None:
    ran = run_cli(command.split(), {method: answer, "delegation.list": {}})
    assert ran.code == 1
    assert "the answer was not understood" in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    "words", ["list --cwd .", "continue", "suggest x --root .", "config check"]
)
def test_a_directory_that_is_gone_is_said(tmp_path: Path, words: str) -> None:
    path = tmp_path / "control.sock"
    with serving(path, answering({"status": {}, "delegation.list": {}, "config.check": {}})):
        gone = tmp_path / "gone"
        ran = shell(path, f"mkdir {gone}; cd {gone}; rmdir {gone}; $C {words}")
    assert ran.returncode == 2
    assert (
        ran.stderr == "fallbackd-client: the current directory is gone: change to one that exists\n"
    )


def test_what_is_typed_is_not_repeated_with_its_control_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["ping", "\x1b[31mx\a" + "y" * 100_000]) == 2
    said = capsys.readouterr().err
    assert "\x1b" not in said
    assert "\a" not in said
    assert len(said) < 2000


def test_help_fits_a_terminal_of_eighty_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.get_terminal_size", lambda _: os.terminal_size((80, 24)))
    for argv in (["--help"], *([command.name, "--help"] for command in COMMANDS)):
        main(argv)
        shown = capsys.readouterr().out.splitlines()
        assert [one for one in shown if len(one) > 80 and not one.lstrip().startswith("{")] == []


def test_the_short_name_starts_the_same_program() -> None:
    scripts = {one.name: one.value for one in entry_points(group="console_scripts")}
    assert scripts["fb"] == scripts["fallbackd-client"]


def test_a_prompt_alone_leads_to_delegate(run_cli: RunCli) -> None:
    ran = run_cli(["count the files"], {})
    assert ran.code == exits.USAGE
    assert "fallbackd-client delegate 'count the files'" in ran.err


@pytest.mark.parametrize("argv", [["wait"], ["cancel"], ["reply", "and now?"]])
def test_a_missing_delegation_is_named_with_the_word_for_the_last_one(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    assert "DELEGATION is an id of `fallbackd-client list`, or @last" in capsys.readouterr().err


def test_a_word_for_the_thing_leads_to_its_command(run_cli: RunCli) -> None:
    for word, command in (("stop", "cancel"), ("uninstall", "setup --undo"), ("cost", "usage")):
        ran = run_cli([word], {})
        assert ran.code == exits.USAGE
        assert f"try: fallbackd-client {command}" in ran.err
    names = {name for one in COMMANDS for name in one.names}
    assert {one.split()[0] for one in MEANT.values()} <= names | {"--version"}
    assert not names & set(MEANT)
