"""`continue`: which sessions are found, and what a conversation becomes for the other agent."""

import json
import os
import pty
import select
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from tests.client.conftest import RunCli
from tests.support.agents import program
from tests.support.command import client_argv, client_environ
from tests.support.daemon import HANG_S

from fallbackd_client.cli.commands import continue_ as command
from fallbackd_client.cli.main import main
from fallbackd_client.interactive import carrying, hook
from fallbackd_conversations.agents import AGENTS
from fallbackd_conversations.turns import Attachment, OwnerWord, Utterance

SAID = (
    Utterance(role="user", text="remember marzipan"),
    Utterance(role="assistant", text="I will. The key is sk-ant-api03-abcdefghijklmnop."),
)
LIMIT = {
    "type": "assistant",
    "uuid": "l1",
    "parentUuid": "u1",
    "isApiErrorMessage": True,
    "error": "rate_limit",
    "message": {"role": "assistant", "model": "<synthetic>", "content": []},
}
ID = "b4aa40fd-00e7-44ab-ba2a-6581bba52b3c"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "home"
    (place / "bin").mkdir(parents=True)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("HOME", str(place))
    monkeypatch.setenv("PATH", str(place / "bin"))
    for name in ("XDG_STATE_HOME", "XDG_DATA_HOME", "CODEX_HOME", "CLAUDE_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)
    return place


def installed(home: Path, *names: str) -> None:
    for name in names:
        (home / "bin" / name).write_text("#!/bin/sh\n")
        (home / "bin" / name).chmod(0o755)


def configured(home: Path, backend: str, variable: str) -> str:
    """A second account, in a directory of its own."""
    path = home / "config.toml"
    path.write_text(f'[backends.{backend}]\nenv = {{ {variable} = "~/{backend}", KEY = "x" }}\n')
    return str(path)


def stored(
    agent: str,
    home: Path,
    *,
    id: str = ID,
    more: tuple[Any, ...] = (),
    said: tuple[Utterance, ...] = SAID,
    owner: OwnerWord = "person",
) -> Path:
    """A session in this directory, as the agent keeps it."""
    one = AGENTS[agent]
    written = one.render(
        said, place=one.place({}, str(home)), cwd=os.getcwd(), now=1e9, seed=id, owner=owner
    )
    assert written is not None
    assert written.path is not None
    written.path.parent.mkdir(parents=True, exist_ok=True)
    written.path.write_bytes(
        written.data + b"".join(json.dumps(line).encode() + b"\n" for line in more)
    )
    return written.path


def asked(text: str) -> dict[str, Any]:
    message = {"role": "user", "content": text}
    return {"type": "user", "uuid": "u1", "parentUuid": "p", "message": message}


def limited(home: Path) -> Path:
    path = stored("claude", home)
    last = json.loads(path.read_text().splitlines()[-1])["uuid"]
    with path.open("a") as file:
        for line in ({**asked("and which word"), "parentUuid": last}, LIMIT):
            file.write(json.dumps({**line, "sessionId": ID, "cwd": os.getcwd()}) + "\n")
    return path


def document(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["--socket", "/nowhere", "--json", "continue", *words]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_agents_of_the_command_are_those_that_can_be_read() -> None:
    assert set(command.AGENTS) == set(AGENTS)


def test_the_session_that_met_a_limit_goes_on_with_its_unanswered_prompt(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    installed(home, "codex")
    path = limited(home)
    stored("codex", home)
    before = path.read_bytes()
    found = document(capsys, "--from", "@last-limited")
    assert found["from"] == {"agent": "claude", "id": ID}
    new = found["to"]["id"]
    assert found["command"] == ["codex", "resume", new, "and which word"]
    assert (found["turns"], found["prompt"], found["cwd"]) == (1, "and which word", os.getcwd())
    carried = AGENTS["codex"].read(home / ".codex", new)
    assert carried is not None
    assert [one.role for one in carried.said] == ["user", "assistant"]
    assert carried.said[0].text == "remember marzipan"
    assert "abcdefghijklmnop" not in carried.said[1].text
    assert path.read_bytes() == before


MANY = tuple(
    Utterance(role=role, text=f"{word} {number}. " + "x" * 2000)
    for number in range(60)
    for role, word in (("user", "ask"), ("assistant", "answer"))
)


@pytest.mark.parametrize(
    ("toml", "turns"),
    [
        ("", 40),
        ("[handoff]\nmax_turns = 3\n", 3),
        ("[handoff]\nmax_turns = 'many'\n", 40),
        ("not toml", 40),
    ],
)
def test_without_a_daemon_the_file_says_how_many_turns_are_carried_over(
    home: Path, capsys: pytest.CaptureFixture[str], toml: str, turns: int
) -> None:
    installed(home, "codex")
    stored("claude", home, said=MANY)
    (home / ".config" / "fallbackd").mkdir(parents=True)
    (home / ".config" / "fallbackd" / "config.toml").write_text(toml)
    found = document(capsys, "--from", "claude")
    assert found["turns"] == turns
    carried = AGENTS["codex"].read(home / ".codex", found["to"]["id"])
    assert carried is not None
    assert carried.said[-1].text.startswith("answer 59.")


def test_what_is_left_out_is_said(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    installed(home, "codex")
    paper = Attachment(type="application/pdf", data="aGVsbG8=", size_bytes=6)
    stored("claude", home, said=(*MANY[:-2], structs.replace(MANY[-2], files=(paper,)), MANY[-1]))
    words = ["continue", "--from", "claude", "--to", "codex"]
    assert document(capsys, *words[1:])["left_out"] == "20 earlier turns and 1 file"
    assert main(["--socket", "/nowhere", *words]) == 0
    said = capsys.readouterr().err
    assert "40 turns carried over; 20 earlier turns and 1 file left out" in said


def test_a_picture_without_an_answer_stays_in_the_history(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command line takes none."""
    installed(home, "codex")
    picture = Attachment(type="image/png", data="aGVsbG8=", size_bytes=6)
    asked = Utterance(role="user", text="look at this", files=(picture,))
    stored("claude", home, said=(*SAID, asked))
    found = document(capsys, "--from", "claude")
    assert (found["prompt"], found["waits"], found["turns"]) == ("", True, 2)
    carried = AGENTS["codex"].read(home / ".codex", found["to"]["id"])
    assert carried is not None
    assert carried.said[-1].files == (picture,)


@pytest.mark.parametrize(("context_tokens", "turns"), [(None, 40), (13_000, 4), (1_000_000, 50)])
def test_a_conversation_is_cut_to_half_of_what_the_other_agent_holds(
    home: Path, run_cli: RunCli, context_tokens: int | None, turns: int
) -> None:
    installed(home, "codex")
    stored("claude", home, said=MANY)
    handoff = {"max_turns": 50} if turns == 50 else {}
    backends = {"codex": {"kind": "codex", "context_tokens": context_tokens}}
    config = {"backends": backends, "handoff": handoff}
    ran = run_cli(
        ["--json", "continue", "--from", "claude", "--to", "codex"],
        {"config.get": {"config": config, "path": None}},
    )
    assert json.loads(ran.out)["turns"] == turns


def test_a_turn_that_is_too_long_for_the_other_agent_is_not_cut_in_the_middle(
    home: Path, run_cli: RunCli
) -> None:
    installed(home, "codex")
    stored("claude", home, said=MANY)
    config = {"backends": {"codex": {"kind": "codex", "context_tokens": 500}}}
    ran = run_cli(
        ["continue", "--from", "claude", "--to", "codex"],
        {"config.get": {"config": config, "path": None}},
    )
    assert ran.code == 2
    assert "too long for codex, which holds 500 tokens" in ran.err


def test_sessions_of_codex_go_on_with_claude(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    installed(home, "claude", "opencode")
    stored("codex", home)
    found = document(capsys, "--from", "codex")
    assert found["command"] == ["claude", "--resume", found["to"]["id"]]
    assert AGENTS["claude"].read(home / ".claude", found["to"]["id"]) is not None


def test_another_account_of_the_same_agent_can_continue(home: Path, run_cli: RunCli) -> None:
    installed(home, "claude")
    limited(home)
    answers = {
        "config.get": {
            "config": {
                "backends": {
                    "claude": {"kind": "claude"},
                    "claude-work": {"kind": "claude"},
                }
            },
            "path": configured(home, "claude-work", "CLAUDE_CONFIG_DIR"),
        },
        "resolve": {
            "candidates": [
                {"backend": "claude", "verdict": "cooldown"},
                {"backend": "claude-work", "verdict": "chosen"},
            ]
        },
    }
    ran = run_cli(["continue", "--from", "@last-limited"], answers)
    assert ran.out.startswith(f"CLAUDE_CONFIG_DIR={home}/claude-work claude --resume ")
    assert len(list((home / "claude-work" / "projects").rglob("*.jsonl"))) == 1


def test_an_agent_that_cannot_be_given_it_is_passed_over(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    installed(home, "opencode", "gemini")  # opencode has no model yet
    limited(home)
    assert document(capsys, "--from", "claude")["to"]["backend"] == "gemini"
    assert main(["--socket", "/nowhere", "continue", "--from", "claude", "--to", "opencode"]) == 2
    assert "not been used with any model" in capsys.readouterr().err


def test_gemini_is_given_a_private_file(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    installed(home, "gemini")
    limited(home)
    words = document(capsys, "--from", f"claude:{ID}", "--to", "gemini")["command"]
    assert (words[:2], words[3:]) == (["gemini", "--session-file"], ["-i", "and which word"])
    assert Path(words[2]).stat().st_mode & 0o777 == 0o600


def test_opencode_shows_the_unanswered_prompt_which_it_would_not_send(
    home: Path, run_cli: RunCli
) -> None:
    installed(home, "opencode")
    limited(home)
    backends = {"opencode": {"kind": "opencode", "model": "acme/m"}}
    answers = {"config.get": {"config": {"backends": backends}, "path": None}}
    words = ["continue", "--from", "@last-limited", "--to", "opencode"]
    found = json.loads(run_cli(["--json", *words], answers).out)
    assert found["command"] == ["opencode", "--session", found["to"]["id"]]
    assert (found["prompt"], found["waits"], found["turns"]) == ("", True, 2)
    assert 'send "continue" to have it answered' in run_cli(words, answers).err


def test_without_a_choice_the_sessions_are_listed(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limited(home)
    assert main(["--socket", "/nowhere", "continue"]) == 0
    said = capsys.readouterr()
    assert "claude" in said.out
    assert "remember marzipan" in said.out
    assert f"continue --from claude:{ID}" in said.err
    found = document(capsys)
    assert [one["id"] for one in found["sessions"]] == [ID]
    assert found["default"]["agent"] == "claude"


def test_sessions_of_programs_are_not_listed(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored("codex", home, owner="program")
    stored("claude", home, owner="program")
    assert main(["--socket", "/nowhere", "continue"]) == 2
    assert "no sessions" in capsys.readouterr().err


def test_sessions_of_attempts_are_not_listed_where_only_the_daemon_knows_them(
    home: Path, run_cli: RunCli
) -> None:
    written = AGENTS["gemini"].render(
        SAID, place=home, cwd=os.getcwd(), now=1e9, seed=ID, owner="program"
    )
    assert written is not None
    chats = home / ".gemini/tmp/work/chats"
    chats.mkdir(parents=True)
    (chats / f"session-2026-11-23T15-09-{ID[:8]}.jsonl").write_bytes(written.data)
    attempts = {"delegations": [{"attempts": [{"conversation": ID}]}]}
    assert run_cli(["continue"], {"delegation.list": {"delegations": []}}).code == 0
    ran = run_cli(["continue"], {"delegation.list": attempts})
    assert (ran.code, "no sessions" in ran.err) == (2, True)


def test_a_limit_in_the_session_that_was_continued_is_the_last_one(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It belongs to the person, who has gone on in it."""
    installed(home, "codex", "claude")
    old = limited(home)
    os.utime(old, (1e9, 1e9))
    new = document(capsys, "--from", "claude", "--to", "codex")["to"]["id"]
    (path,) = (home / ".codex").rglob("*.jsonl")
    asked = {"type": "message", "role": "user"}
    asked |= {"content": [{"type": "input_text", "text": "and a third thing"}]}
    spent = {"type": "task_complete", "error": {"codex_error_info": "usage_limit_exceeded"}}
    with path.open("a") as file:
        file.write(json.dumps({"type": "response_item", "payload": asked}) + "\n")
        file.write(json.dumps({"type": "event_msg", "payload": spent}) + "\n")
    assert document(capsys)["default"]["id"] == new
    assert document(capsys, "--from", "codex", "--to", "claude")["from"]["id"] == new
    found = document(capsys, "--from", "@last-limited", "--to", "claude")
    assert (found["from"]["id"], found["prompt"]) == (new, "and a third thing")


NOTICE = "Usage limit reached \u00b7 set to continue automatically at 3:04pm"
CANCELLED = "Automatic continue cancelled \u00b7 /rate-limit-options to wait again"
STARTED = "Usage limit available again \u00b7 continuing now"


def noted(path: Path, content: str) -> None:
    with path.open("a") as file:
        file.write(json.dumps({"type": "system", "content": content}) + "\n")


@contextmanager
def open_claude(home: Path) -> Iterator[None]:
    """In this directory, until it is left. Its first line proves that the kernel shows its name."""
    (home / "bin" / "claude").write_text("#!/bin/sh\necho open\nread word\n")
    (home / "bin" / "claude").chmod(0o755)
    pipe = subprocess.PIPE
    with subprocess.Popen([home / "bin" / "claude"], stdin=pipe, stdout=pipe) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"open\n"
            yield
        finally:
            process.kill()


class Terminal:
    """`continue --from claude --to codex --interactive`, on a terminal of its own."""

    def __init__(self, home: Path) -> None:
        self._fd, theirs = pty.openpty()
        words = ("--from", "claude", "--to", "codex", "--interactive")
        env = {"HOME": str(home), "PATH": f"{home}/bin", "TERM": "dumb"}
        self.process = subprocess.Popen(
            client_argv("continue", *words),
            env=client_environ("/nowhere", env),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        self.seen = ""

    def until(self, words: str) -> None:
        while words not in self.seen:
            assert select.select([self._fd], [], [], HANG_S)[0], self.seen
            self.seen += os.read(self._fd, 65_536).decode()

    def press_enter(self) -> None:
        os.write(self._fd, b"\n")

    def end(self) -> int:
        code = self.process.wait(HANG_S)
        os.close(self._fd)
        return code


def test_claude_that_continues_by_itself_is_cancelled_first(home: Path) -> None:
    installed(home, "codex")
    (home / "bin" / "codex").write_text("#!/bin/sh\necho codex has started\n")
    path = limited(home)
    noted(path, NOTICE)
    with open_claude(home):
        shown = Terminal(home)
        shown.until("press Esc in claude first")
        assert not (home / ".codex").exists()
        noted(path, CANCELLED)
        shown.until("codex has started")
        assert shown.end() == 0


def test_claude_is_found_where_its_session_has_changed_the_directory(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    installed(home, "codex")
    path = limited(home)
    text = path.read_text()
    path.write_text(text.replace(json.dumps(os.getcwd()), json.dumps(str(home))))
    noted(path, NOTICE)
    with open_claude(home):
        found = document(capsys, "--from", f"claude:{ID}", "--to", "codex")
    assert (found["press_esc"], found["cwd"]) == (True, str(home))


def test_a_person_can_continue_all_the_same(home: Path) -> None:
    installed(home, "codex")
    (home / "bin" / "codex").write_text("#!/bin/sh\necho codex has started\n")
    noted(limited(home), NOTICE)
    with open_claude(home):
        shown = Terminal(home)
        shown.until("press Enter to continue here all the same")
        shown.press_enter()
        shown.until("codex has started")
        assert shown.end() == 0


def test_nothing_is_started_beside_claude_that_has_continued_by_itself(home: Path) -> None:
    installed(home, "codex")
    path = limited(home)
    noted(path, NOTICE)
    with open_claude(home):
        shown = Terminal(home)
        shown.until("press Esc in claude first")
        noted(path, STARTED)
        shown.until("claude has continued by itself; nothing was started here")
        assert shown.end() == 2
    assert not (home / ".codex").exists()


def test_without_a_terminal_it_is_said_and_nothing_is_started(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    installed(home, "codex")
    noted(limited(home), NOTICE)
    words = ["--socket", "/nowhere", "continue", "--from", f"claude:{ID}", "--to", "codex"]
    with open_claude(home):
        assert main([*words, "--json"]) == 0
        said = capsys.readouterr()
        assert json.loads(said.out)["press_esc"] is True
        event = {"hook_event_name": "UserPromptSubmit", "session_id": ID}
        reset = {**event, "prompt": "Your claude.ai usage limit has reset. Continue the task."}
        assert hook.held(reset) is not None
        assert "press Esc in claude first" in said.err
        assert main([*words, "--interactive"]) == 2
        assert "both would do the same work" in capsys.readouterr().err
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["press_esc"] is False, "it is not open any more"


def test_the_daemon_says_which_agent_is_next(home: Path, run_cli: RunCli) -> None:
    installed(home, "codex", "gemini", "claude")
    limited(home)
    answers = {
        "config.get": {
            "config": {
                "backends": {
                    "claude": {"kind": "claude"},
                    "codex": {"kind": "codex"},
                    "second": {"kind": "codex", "env": {"CODEX_HOME": "(hidden)"}},
                }
            },
            "path": configured(home, "second", "CODEX_HOME"),
        },
        "resolve": {
            "candidates": [
                {"backend": "claude", "verdict": "rate_limited"},
                {"backend": "codex", "verdict": "rate_limited"},
                {"backend": "acme", "verdict": "healthy"},
                {"backend": "second", "verdict": "chosen"},
            ]
        },
    }
    ran = run_cli(["continue", "--from", "claude"], answers)
    assert ran.code == 0
    assert ran.params("resolve") == {"backend": "claude"}
    assert ran.out.startswith(f"CODEX_HOME={home}/second codex resume ")
    assert len(list((home / "second" / "sessions").rglob("*.jsonl"))) == 1
    assert not (home / ".codex").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--from", "cursor"], "--from takes"),
        (["--from", "claude:../../x"], "has no session"),
        (["--from", f"codex:{ID}"], "has no session"),
        (["--from", "claude", "--to", "nobody"], "--to nobody"),
        (["--from", "claude", "--to", "codex"], "none of codex is installed"),
        (["--from", "gemini"], "no sessions of gemini"),
    ],
)
def test_what_cannot_be_is_said(
    home: Path, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    limited(home)
    assert main(["--socket", "/nowhere", "continue", *words]) == 2
    assert says in capsys.readouterr().err


def test_sessions_of_a_later_opencode_are_said_to_be_unread_and_none_is_made_there(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limited(home)
    path = home / ".local/share/opencode/opencode.db"
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE session_v3 (id TEXT PRIMARY KEY)")
    assert main(["--socket", "/nowhere", "continue", "--from", "opencode"]) == 2
    why = f"{path} is of a later opencode than 2, whose sessions are not read yet"
    assert capsys.readouterr().err.splitlines()[0].strip() == why
    program(home / "bin", "opencode", "exit 1")
    assert main(["--socket", "/nowhere", "continue", "--from", "claude", "--to", "opencode"]) == 2
    assert f"opencode cannot be given a conversation: {why}" in capsys.readouterr().err
    path.unlink()
    for version, said in (
        ("3.0.0", "opencode 3.0.0 is not supported yet"),
        ("2.1.4", "this opencode (opencode v2.1.4) has not made its own database yet"),
    ):
        program(home / "bin", "opencode", f"echo opencode v{version}")
        asked = ["continue", "--from", "claude", "--to", "opencode"]
        assert main(["--socket", "/nowhere", *asked]) == 2
        err = capsys.readouterr().err
        assert f"opencode cannot be given a conversation: {said}" in err


IMPORTS = """case "$1" in
--version) echo opencode v2.1.4 ;;
session)
    echo "$@" > "$HOME/asked"
    IFS= read -r line < "$3"
    printf %s "$line" > "$HOME/imported" ;;
esac"""


def test_opencode_2_is_given_a_conversation_by_its_own_import(home: Path, run_cli: RunCli) -> None:
    installed(home, "opencode")
    limited(home)
    path = home / ".local/share/opencode/opencode.db"
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path)) as database:
        database.executescript(
            "CREATE TABLE session_v2 (id, parent_id, directory, title, model, time_updated);"
            "CREATE TABLE session_message (id, session_id, type, seq, data);"
            "INSERT INTO session_v2 VALUES ('s', null, '/w', 't',"
            """ '{"id":"m","providerID":"p"}', 1)"""
        )
        database.commit()
    program(home / "bin", "opencode", IMPORTS)
    answers = {
        "config.get": {"config": {"backends": {"opencode": {"kind": "opencode"}}}, "path": None}
    }
    words = ["--json", "continue", "--from", "@last-limited", "--to", "opencode"]
    continued = json.loads(run_cli(words, answers).out)
    words = (home / "asked").read_text().split()
    assert (words[:2], words[3]) == (["session", "import"], "--directory")
    found = json.loads((home / "imported").read_text())
    assert {one["type"] for one in found["messages"]} == {"user", "assistant"}
    assert found["info"]["model"] == {"providerID": "p", "id": "m"}
    assert continued["command"] == ["opencode", "--session", found["info"]["id"]]


def test_a_prompt_is_never_an_option() -> None:
    assert carrying.command("claude", ID, "", "--help")[-1] == " --help"


def test_a_prompt_that_is_too_long_for_a_command_line_stays_in_the_history() -> None:
    long = Utterance(role="user", text="x" * 40_000)
    assert carrying.unanswered((*SAID, long)) == ((*SAID, long), "")
    assert carrying.unanswered((SAID[0],)) == ((), "remember marzipan")
