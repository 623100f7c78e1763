"""
Conversations as the four agents stored them: recorded runs of codex 0.169.0, claude 2.1.197,
gemini 0.61.0 and opencode 1.18.33 that held the same two turns, long texts shortened.
"""

import json
import os
import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from tests.support import opencode2

from fallbackd_conversations import agents, claude, codex, files, gemini, opencode
from fallbackd_conversations.turns import (
    TITLE_OF_PROGRAM,
    Attachment,
    OutcomeWord,
    OwnerWord,
    ToolUse,
    Utterance,
    attachment,
    attachment_at,
)
from fallbackd_conversations.words import given_to

DATA = Path(__file__).parent / "data"
ID = "11111111-2222-4333-8444-555555555555"
CODEX_ID = "01a208f3-f8fe-70f2-9e22-4d04acf14463"
OPENCODE_ID = "ses_df70bc3e1ffe2BlTniw8uGT78z"
SEED = "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee"
NOW = 1795446584.0
FIRST, SECOND = "alpha: run the command", "beta: and which word was it"

PLACES = {
    "claude": f".claude/projects/-home-dev-work/{ID}.jsonl",
    "codex": f".codex/sessions/2026/11/23/rollout-2026-11-23T15-08-56-{CODEX_ID}.jsonl",
    "gemini": ".gemini/tmp/work/chats/session-2026-11-23T15-09-11111111.jsonl",
}
IDS = {"claude": ID, "codex": CODEX_ID, "gemini": ID, "opencode": OPENCODE_ID}
PARSERS = {"claude": claude.parse, "codex": codex.parse, "gemini": gemini.parse}


def user(text: str) -> Utterance:
    return Utterance(role="user", text=text)


def agent(text: str, *tools: ToolUse) -> Utterance:
    return Utterance(role="assistant", text=text, tools=tools)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """With one session of each agent."""
    for name, place in PLACES.items():
        files.make(tmp_path / place, (DATA / f"{name}.jsonl").read_bytes())
    path = tmp_path / ".local/share/opencode/opencode.db"
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path)) as database:
        database.executescript((DATA / "opencode.sql").read_text())
    return tmp_path


@pytest.mark.parametrize("name", agents.AGENTS)
def test_a_recorded_conversation_is_read_with_its_tools(home: Path, name: str) -> None:
    stored = agents.find(name, IDS[name], {}, home=str(home))
    assert stored is not None
    # The command line of opencode puts a prompt with spaces between quotes.
    asked, answer, again, last = [one.text.strip('"') for one in stored.said]
    assert [asked, answer, again, last] == [FIRST, "answer-one", SECOND, "answer-two"]
    (tool,) = stored.said[1].tools
    assert (tool.command, tool.outcome) == ("echo tool-marker", "done")
    assert "tool-marker" in tool.result
    assert stored.cwd == ("" if name == "gemini" else "/home/dev/work")


def made_by_a_person(home: Path) -> None:
    """The recorded sessions were held by programs."""
    path = home / PLACES["claude"]
    path.write_bytes(path.read_bytes().replace(b'"sdk-cli"', b'"cli"'))
    path = home / PLACES["codex"]
    path.write_bytes(path.read_bytes().replace(b'"source":"exec"', b'"source":"cli"'))
    with closing(sqlite3.connect(home / ".local/share/opencode/opencode.db")) as database:
        database.execute("UPDATE session SET title = 'Marzipan'")
        database.commit()


@pytest.mark.parametrize("name", agents.AGENTS)
def test_a_list_names_the_session_and_its_first_words(home: Path, name: str) -> None:
    made_by_a_person(home)
    one = agents.AGENTS[name]
    (found,) = one.newest(one.place({"HOME": str(home)}, "/nowhere"), 5)
    assert (found.id, found.first_words.strip('"')) == (IDS[name], FIRST)
    assert found.changed_at > 0


@pytest.mark.parametrize("name", ["claude", "codex"])
@pytest.mark.parametrize("owner", ["person", "program"])
def test_a_session_that_was_written_is_listed_where_it_belongs_to_a_person(
    tmp_path: Path, name: str, owner: OwnerWord
) -> None:
    one = agents.AGENTS[name]
    place = one.place({}, str(tmp_path))
    written = one.render(
        (user("x"), agent("y")), place=place, cwd="/w", now=NOW, seed=SEED, owner=owner
    )
    assert written is not None
    assert written.path is not None
    files.make(written.path, written.data)
    assert [found.id for found in one.newest(place, 5)] == [SEED] * (owner == "person")


def test_the_beginning_of_a_session_decides_whose_it_is(tmp_path: Path) -> None:
    """What follows may be long, and may have come by another door."""
    first = line("1", None, "user", "x" * files.HEAD_BYTES, entrypoint="cli")
    last = line("2", "1", "assistant", "y", entrypoint="sdk-cli")
    assert claude.owner_of(first + last) == "person"
    assert claude.owner_of(last + first) == "program"


@pytest.mark.parametrize(
    ("fields", "owner"),
    [
        ('"originator":"codex_exec","source":"exec"', "program"),
        ('"originator":"fallbackd_resident","source":"vscode"', "program"),
        ('"originator":"codex_vscode","source":"vscode"', "person"),
    ],
)
def test_a_codex_that_a_program_runs_is_no_persons(fields: str, owner: str) -> None:
    head = f'{{"type":"session_meta","payload":{{{fields}}}}}\n'
    assert codex.owner_of(head.encode()) == owner


def test_sessions_of_opencode_with_the_title_of_attempts_are_not_listed(home: Path) -> None:
    made_by_a_person(home)
    path = home / ".local/share/opencode/opencode.db"
    assert len(opencode.newest_in(path, limit=5)) == 1
    with closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE session SET title = ?", (TITLE_OF_PROGRAM,))
        database.commit()
    assert opencode.newest_in(path, limit=5) == []


@pytest.mark.parametrize(("owner", "title"), [("person", "x"), ("program", TITLE_OF_PROGRAM)])
def test_a_session_written_for_opencode_has_the_title_of_its_owner(
    owner: OwnerWord, title: str
) -> None:
    written = agents.AGENTS["opencode"].render(
        (user("x"), agent("y")),
        place=Path("/nowhere"),
        cwd="/w",
        now=NOW,
        seed=SEED,
        owner=owner,
        model="a/b",
    )
    assert written is not None
    assert json.loads(written.data)["info"]["title"] == title


@pytest.mark.parametrize("name", agents.AGENTS)
@pytest.mark.parametrize("id", ["ses_unknown", "../../etc/passwd", "*", "", "a" * 101])
def test_an_unknown_id_is_nothing(home: Path, name: str, id: str) -> None:
    assert agents.find(name, id, {}, home=str(home)) is None


@pytest.mark.parametrize("name", agents.AGENTS)
def test_where_nothing_is_stored_there_is_nothing(tmp_path: Path, name: str) -> None:
    assert agents.find(name, ID, {}, home=str(tmp_path)) is None
    assert agents.AGENTS[name].newest(agents.AGENTS[name].place({}, str(tmp_path)), 5) == []


@pytest.mark.parametrize(
    ("name", "variable", "below"),
    [
        ("codex", "CODEX_HOME", ".codex"),
        ("claude", "CLAUDE_CONFIG_DIR", ".claude"),
        ("gemini", "GEMINI_CLI_HOME", ""),
        ("opencode", "XDG_DATA_HOME", ".local/share"),
    ],
)
def test_a_variable_moves_the_place(home: Path, name: str, variable: str, below: str) -> None:
    environ = {variable: str(home / below)}
    assert agents.find(name, IDS[name], environ, home="/nowhere") is not None


@pytest.mark.parametrize("name", PARSERS)
def test_a_file_that_is_cut_anywhere_is_read_as_far_as_it_goes(name: str) -> None:
    data = (DATA / f"{name}.jsonl").read_bytes()
    whole = PARSERS[name](data)
    assert whole.said
    for at in range(0, len(data), 7):
        texts = {one.text for one in PARSERS[name](data[:at]).said}
        assert texts <= {one.text for one in whole.said} | {""}


@pytest.mark.parametrize("name", PARSERS)
def test_no_damage_makes_a_reader_fail(name: str) -> None:
    chance = random.Random(name)
    data = (DATA / f"{name}.jsonl").read_bytes()
    words = [
        b"null",
        b"[]",
        b"{}",
        b'"',
        b"\x00",
        b"\xff",
        b"\\ud800",
        b"1e999",
        b"-1",
        b"[" * 2000,
    ]
    for _ in range(300):
        damaged = bytearray(data)
        for _ in range(chance.randint(1, 8)):
            at = chance.randrange(len(damaged))
            damaged[at : at + chance.randint(0, 40)] = chance.choice(words)
        PARSERS[name](bytes(damaged))


@pytest.mark.parametrize("name", agents.AGENTS)
@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "type",
                        "payload",
                        "content",
                        "message",
                        "uuid",
                        "parentUuid",
                        "$set",
                        "messages",
                        "parts",
                        "info",
                        "role",
                        "toolCalls",
                        "text",
                        "output",
                    ]
                ),
                inner
                | st.sampled_from(
                    [
                        "user",
                        "assistant",
                        "message",
                        "response_item",
                        "gemini",
                        "function_call",
                        "tool",
                        "text",
                    ]
                ),
                max_size=4,
            )
        ),
        max_leaves=20,
    )
)
@settings(max_examples=60, deadline=None)
def test_no_shape_makes_a_reader_fail(name: str, value: object) -> None:
    agents.AGENTS[name].parse(json.dumps(value).encode())


_TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cf"]), min_size=1).filter(
    lambda text: text.strip() and not text.lstrip().startswith(("<", "#", "This is", "Caveat", "["))
)
_TOOL = st.builds(
    ToolUse,
    name=st.sampled_from(["Bash", "Read", "shell"]),
    command=st.none() | _TEXT,
    args=st.just("{}"),
    result=_TEXT | st.just(""),
    outcome=st.sampled_from(["done", "failed", "no_result"]),
)
_TALK = st.lists(st.tuples(_TEXT, _TEXT, st.lists(_TOOL, max_size=3)), min_size=1, max_size=4).map(
    lambda turns: tuple(
        one for asked, answer, tools in turns for one in (user(asked), agent(answer, *tools))
    )
)


@pytest.mark.parametrize("name", agents.AGENTS)
@given(said=_TALK)
@settings(max_examples=60, deadline=None)
def test_what_is_written_reads_back_the_same(name: str, said: tuple[Utterance, ...]) -> None:
    written = agents.AGENTS[name].render(
        said,
        place=Path("/nowhere"),
        cwd="/home/dev/work",
        now=NOW,
        seed=SEED,
        owner="program",
        model="a/b",
    )
    assert written is not None
    assert agents.is_same(said, agents.AGENTS[name].parse(written.data))


@pytest.mark.parametrize("name", agents.AGENTS)
@pytest.mark.parametrize("outcome", ["done", "failed", "no_result"])
def test_how_a_command_ended_is_kept(name: str, outcome: OutcomeWord) -> None:
    for result in ("", "it said so"):
        tool = ToolUse(name="shell", command="./deploy", result=result, outcome=outcome)
        said = (user("go"), agent("I did", tool))
        written = agents.AGENTS[name].render(
            said, place=Path("/nowhere"), cwd="/w", now=NOW, seed=SEED, owner="program", model="a/b"
        )
        assert written is not None
        (_, answer) = agents.AGENTS[name].parse(written.data).said
        if outcome == "no_result":
            assert answer.tools == ()
            assert "./deploy → no result, it may or may not have run" in answer.text
        else:
            assert [(one.result, one.outcome) for one in answer.tools] == [(result, outcome)]


@pytest.mark.parametrize("name", agents.AGENTS)
@pytest.mark.parametrize("outcome", ["done", "failed", "no_result"])
def test_a_call_at_the_end_is_written_as_words_so_that_no_reader_runs_it(
    name: str, outcome: OutcomeWord
) -> None:
    """An agent can end what it has stored with any call."""
    tool = ToolUse(name="shell", command="rm -rf ~", result="", outcome=outcome)
    for said in ((user("go"), agent("", tool)), (user("go"), agent("", tool, tool))):
        written = agents.AGENTS[name].render(
            said, place=Path("/nowhere"), cwd="/w", now=NOW, seed=SEED, owner="program", model="a/b"
        )
        assert written is not None
        (_, answer) = agents.AGENTS[name].parse(written.data).said
        assert len(answer.tools) == (0 if outcome == "no_result" else len(said[1].tools) - 1)
        assert answer.text.endswith("]"), "the last of all is a text"
        assert "ran: rm -rf ~" in answer.text


PICTURE = Attachment(type="image/png", data="aGVsbG8=", size_bytes=6)
PAPER = Attachment(type="application/pdf", data="aGVsbG8=", size_bytes=6)


@pytest.mark.parametrize("name", agents.AGENTS)
@pytest.mark.parametrize("text", ["look at this", ""])
def test_files_are_written_where_the_agent_takes_them(name: str, text: str) -> None:
    asked = Utterance(role="user", text=text, files=(PICTURE, PAPER))
    one = agents.AGENTS[name]
    said = given_to((asked, agent("a cat")), one.takes)
    written = one.render(
        said, place=Path("/nowhere"), cwd="/w", now=NOW, seed=SEED, owner="person", model="a/b"
    )
    assert written is not None
    stored = one.parse(written.data)
    assert agents.is_same(said, stored)
    found = stored.said[0]
    kept = [(one.type, one.data) for one in found.files]
    if name == "codex":  # its messages have no other files than pictures
        assert kept == [("image/png", "aGVsbG8=")]
        assert "[attached: application/pdf, 1 kB]" in found.text
    else:
        assert kept == [("image/png", "aGVsbG8="), ("application/pdf", "aGVsbG8=")]
    other = structs.replace(said[0], files=(structs.replace(PICTURE, data="eA=="),))
    assert not agents.is_same((other, said[1]), stored)


def test_a_file_that_a_tool_has_returned_is_named_in_its_result() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "aGVsbG8="}
    use = {"type": "tool_use", "id": "a", "name": "Read", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "a"}
    data = line("1", None, "assistant", [use])
    data += line("2", "1", "user", [{**result, "content": [{"type": "image", "source": source}]}])
    (answer,) = claude.parse(data).said
    assert answer.tools[0].result == "[attached: image/png, 1 kB]"


def test_a_picture_that_codex_was_shown_is_read_without_its_frame() -> None:
    texts = ["<image name=[Image #1]>", "</image>", "what is [Image #1]"]
    before, after, asked = [{"type": "input_text", "text": text} for text in texts]
    picture = {"type": "input_image", "image_url": "data:image/png;base64,aGVsbG8="}
    content = [before, picture, after, asked]
    (one,) = codex.parse(rollout({"type": "message", "role": "user", "content": content})).said
    assert (one.text, one.files) == ("what is [Image #1]", (PICTURE,))


def test_a_file_that_is_only_referred_to_is_named() -> None:
    part = {"type": "file", "mime": "text/plain", "filename": "notes.md", "url": "file:///notes.md"}
    export = {"messages": [{"info": {"role": "user"}, "parts": [part]}]}
    (one,) = opencode.parse(files.encoded(export)).said
    assert one.files == (Attachment(type="text/plain", name="notes.md"),)


def test_of_a_file_that_is_too_large_for_this_its_name_and_size_are_read(home: Path) -> None:
    path = home / ".local/share/opencode/opencode.db"
    url = "data:image/png;base64," + "A" * opencode.MAX_PART_CHARS
    part = {"type": "file", "mime": "image/png", "filename": "big.png", "url": url}
    with closing(sqlite3.connect(path)) as database:
        database.execute(
            "INSERT INTO part SELECT 'prt_0', message_id, session_id, 1, 1, ? FROM part LIMIT 1",
            (json.dumps(part, separators=(",", ":")),),
        )
        database.commit()
    stored = opencode.read_database(path, OPENCODE_ID)
    assert stored is not None
    (found,) = [each for one in stored.said for each in one.files]
    assert (found.name, found.type, found.data) == ("big.png", "image/png", "")
    assert found.size_bytes > opencode.MAX_PART_CHARS / 2


@pytest.mark.parametrize("type", ["../x", "image/png\n", 7, None, "x" * 200])
def test_what_is_no_media_type_and_no_base64_is_neither(type: object) -> None:
    found = attachment(type, "<script>", name=7)
    assert found == Attachment(type="application/octet-stream")
    assert attachment_at("data:;base64,eA==", type=type).data == "eA=="


def test_another_text_is_not_the_same() -> None:
    said = (user("one"), agent("two"))
    assert not agents.is_same(
        said, claude.parse(claude.render(said[:1], id=ID, cwd="/", now=NOW, owner="person"))
    )
    assert not agents.is_same(said, None)


# --- what each format has of its own ---


def line(uuid: str, parent: str | None, role: str, content: object, **more: object) -> bytes:
    message = {"role": role, "content": content}
    fields = {"uuid": uuid, "parentUuid": parent, "type": role, "message": message, **more}
    return json.dumps({"sessionId": ID, **fields}).encode() + b"\n"


def rollout(*items: dict[str, object]) -> bytes:
    return files.lines_of([{"type": "response_item", "payload": item} for item in items])


def test_the_newest_leaf_of_a_tree_is_the_conversation() -> None:
    data = line("1", None, "user", "first") + line("2", "1", "assistant", "one")
    data += line("3", "2", "user", "lost") + line("4", "2", "user", "kept")
    data += line("5", "4", "assistant", "two")
    assert [one.text for one in claude.parse(data).said] == ["first", "one", "kept", "two"]


def test_an_answer_that_was_written_before_its_question_follows_it() -> None:
    """As a run of claude 2.1.197 has left it, whose lines were written late."""
    lines = [
        line("d", "c", "assistant", "the answer"),
        line("a", None, "user", "asked"),
        line("b", "a", "attachment", ""),
        line("c", "b", "attachment", ""),
        line("e", "a", "attachment", ""),
    ]
    for data in (b"".join(lines), b"".join(lines[::-1])):
        assert [one.text for one in claude.parse(data).said] == ["asked", "the answer"]


LIMIT = line("1", None, "assistant", "", error="rate_limit", isApiErrorMessage=True)
ASKED = line("2", "1", "user", "go on")
ANSWER = line("3", "2", "assistant", "done")
BY_ITSELF = line("4", "1", "user", "Continue", isMeta=True, origin={"kind": "auto-continuation"})


def notice(text: str) -> bytes:
    return files.lines_of([{"type": "system", "subtype": "informational", "content": text}])


WAITS = LIMIT + notice("Usage limit reached \u00b7 set to continue automatically at 3:04pm")
STARTED = notice("Usage limit reset \u00b7 Continuing automatically")
CANCELLED = notice("Automatic continue cancelled \u00b7 /rate-limit-options to wait again")


@pytest.mark.parametrize(
    ("data", "resuming"),
    [
        (b"", "no"),
        (LIMIT, "no"),
        (WAITS, "waits"),
        (WAITS + CANCELLED, "no"),
        (WAITS + CANCELLED + WAITS, "waits"),
        (WAITS + notice("Usage limit has reset \u00b7 Press enter to continue"), "no"),
        (WAITS + notice("Automatic continue stopped \u00b7 your login changed or ended"), "no"),
        (WAITS + STARTED + notice("Automatic continue did not run \u00b7 it was blocked"), "no"),
        (WAITS + ASKED, "no"),
        (WAITS + line("2", "1", "user", "caveat", isMeta=True), "waits"),
        (WAITS + notice("Usage limit available again \u00b7 continuing now"), "started"),
        (WAITS + STARTED, "started"),
        (WAITS + BY_ITSELF, "started"),
        (WAITS + BY_ITSELF + ANSWER, "started"),
        (WAITS + BY_ITSELF + LIMIT, "waits"),
        (WAITS + BY_ITSELF + ANSWER + ASKED, "no"),
        (line("1", None, "user", "set to continue automatically"), "no"),
    ],
)
def test_claude_writes_down_that_it_continues_by_itself(data: bytes, resuming: str) -> None:
    assert claude.resuming(data) == resuming


def test_a_tree_with_a_circle_ends_where_it_closes() -> None:
    data = line("1", "2", "user", "first") + line("2", "1", "assistant", "one")
    assert [one.text for one in claude.parse(data).said] == ["first", "one"]


def test_subagents_notices_and_what_the_program_says_itself_are_left_out() -> None:
    data = line("1", None, "user", "<command-name>/clear</command-name>")
    data += line("2", "1", "user", "asked") + line("3", "2", "user", "hidden", isMeta=True)
    data += line("4", "3", "assistant", "inner", isSidechain=True)
    data += line("5", "3", "assistant", "API Error: 429", isApiErrorMessage=True)
    data += line("6", "5", "assistant", [{"type": "thinking", "thinking": "secret thoughts"}])
    assert [one.text for one in claude.parse(data).said] == ["asked"]


def test_results_of_calls_side_by_side_are_found_on_their_own_branches() -> None:
    def use(id: str) -> list[object]:
        return [{"type": "tool_use", "id": id, "name": "Bash", "input": {"command": id}}]

    def result(id: str) -> list[object]:
        return [{"type": "tool_result", "tool_use_id": id, "content": f"of {id}"}]

    data = line("1", None, "user", "go") + line("2", "1", "assistant", use("a"))
    data += line("3", "2", "assistant", use("b")) + line("4", "2", "user", result("a"))
    data += line("5", "3", "user", result("b"))
    data += line("6", "5", "assistant", [{"type": "text", "text": "done"}])
    (_, answer) = claude.parse(data).said
    assert [(one.command, one.result) for one in answer.tools] == [("a", "of a"), ("b", "of b")]


UNANSWERED = {
    "claude": line("1", None, "user", "go")
    + line("2", "1", "assistant", [{"type": "tool_use", "id": "a", "name": "Bash", "input": {}}]),
    "codex": rollout(
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go"}]},
        {"type": "function_call", "name": "shell", "arguments": "{}", "call_id": "a"},
    ),
    "gemini": b'{"type":"user","id":"1","content":"go"}\n'
    b'{"type":"gemini","id":"2","content":[{"functionCall":{"id":"a","name":"x","args":{}}}]}',
    "opencode": b'{"messages":[{"info":{"role":"user"},"parts":[{"type":"text","text":"go"}]},'
    b'{"info":{"role":"assistant"},"parts":[{"id":"a","type":"tool","tool":"bash",'
    b'"state":{"status":"running","input":{"command":"./deploy"}}}]}]}',
}


@pytest.mark.parametrize("name", agents.AGENTS)
def test_a_call_that_has_no_result_is_never_read_as_done(name: str) -> None:
    (_, answer) = agents.AGENTS[name].parse(UNANSWERED[name]).said
    assert [one.outcome for one in answer.tools] == ["no_result"]


@pytest.mark.parametrize(
    ("output", "outcome"),
    [
        ("Process exited with code 0\nOutput:\nx", "done"),
        ("Exit code: 2\nWall time: 1 seconds\nOutput:\nx", "failed"),
        ('{"output":"x","metadata":{"exit_code":1}}', "failed"),
        ('{"output":"x"}', "no_result"),
        ("Wall time: 1.0 seconds\nProcess running with session ID 7\nOutput:\nx", "no_result"),
        ("aborted", "no_result"),
        ("Wall time: 3.2 seconds\naborted by user", "no_result"),
        ("aborted by user after 3.2s", "no_result"),
        ("exec_command failed: rejected by user", "no_result"),
    ],
)
def test_a_command_of_codex_is_done_only_where_its_status_says_so(
    output: str, outcome: OutcomeWord
) -> None:
    call = {"type": "function_call", "name": "exec_command", "call_id": "a"}
    data = rollout(
        {**call, "arguments": '{"cmd":"./deploy"}'},
        {"type": "function_call_output", "call_id": "a", "output": output},
    )
    (answer,) = codex.parse(data).said
    assert [one.outcome for one in answer.tools] == [outcome]


@pytest.mark.parametrize(
    ("status", "output", "outcome"),
    [
        ("success", "Output: x\nProcess Group PGID: 7", "done"),
        ("success", "Output: x\nExit Code: 3\nProcess Group PGID: 7", "failed"),
        ("success", "Output: x\nSignal: 9", "failed"),
        ("success", "Command: ls\nDirectory: (root)\nOutput: x\nExit Code: 0", "done"),
        ("success", "Command was cancelled by user before it could complete.", "no_result"),
        ("success", "Command moved to background (PID: 7). Output hidden.", "no_result"),
        ("error", "x", "failed"),
        ("cancelled", "x", "no_result"),
        ("executing", "", "no_result"),
    ],
)
def test_a_command_of_gemini_is_done_only_where_it_came_to_its_end(
    status: str, output: str, outcome: OutcomeWord
) -> None:
    response = {"functionResponse": {"id": "a", "response": {"output": output}}}
    call = {"id": "a", "name": "run_shell_command", "args": {"command": "x"}, "status": status}
    message = {"type": "gemini", "id": "1", "content": "", "toolCalls": [{**call, "result": []}]}
    if output:
        message["toolCalls"] = [{**call, "result": [response]}]
    repeated = {"type": "user", "id": "2", "content": [response]}
    lines = [message, repeated] if output else [message]
    (answer,) = gemini.parse(files.lines_of(lines)).said
    assert [one.outcome for one in answer.tools] == [outcome]


@pytest.mark.parametrize(
    ("state", "outcome"),
    [
        ({"status": "completed", "metadata": {"exit": 0}}, "done"),
        ({"status": "completed", "metadata": {"exit": 1}}, "failed"),
        ({"status": "completed", "metadata": {"exit": None}}, "no_result"),
        ({"status": "error", "error": "not allowed"}, "failed"),
        ({"status": "error", "error": "Tool execution aborted"}, "no_result"),
        ({"status": "error", "error": "Tool execution denied by user"}, "failed"),
        ({"status": "error", "error": "x", "metadata": {"interrupted": True}}, "no_result"),
        ({"status": "pending"}, "no_result"),
    ],
)
def test_a_command_of_opencode_is_done_only_where_its_status_says_so(
    state: dict[str, object], outcome: OutcomeWord
) -> None:
    part = {"id": "p", "type": "tool", "tool": "bash", "state": state}
    export = {"messages": [{"info": {"role": "assistant"}, "parts": [part]}]}
    (answer,) = opencode.parse(files.encoded(export)).said
    assert [one.outcome for one in answer.tools] == [outcome]


def test_a_command_of_claude_that_was_interrupted_or_runs_on_has_no_result() -> None:
    use = {"type": "tool_use", "id": "a", "name": "Bash", "input": {"command": "./deploy"}}
    for text in (
        "[Request interrupted by user for tool use]",
        "half of it\n<error>Command was aborted before completion</error>",
        "Command running in background with ID: b",
        "half\nCommand did not complete within its 120s timeout and was moved to the background",
    ):
        result = {"type": "tool_result", "tool_use_id": "a", "is_error": True, "content": text}
        data = line("1", None, "assistant", [use]) + line("2", "1", "user", [result])
        (answer,) = claude.parse(data).said
        assert [one.outcome for one in answer.tools] == ["no_result"]


def test_a_result_that_comes_after_more_text_belongs_to_its_call() -> None:
    text = [{"type": "output_text", "text": "meanwhile"}]
    data = rollout(
        {"type": "function_call", "name": "shell", "arguments": '{"command":"ls"}', "call_id": "a"},
        {"type": "message", "role": "assistant", "content": text},
        {"type": "function_call_output", "call_id": "a", "output": "Exit code: 0\nOutput:\nx"},
    )
    (answer,) = codex.parse(data).said
    assert answer == agent(
        "meanwhile",
        ToolUse(name="shell", command="ls", args='{"command":"ls"}', result="x", outcome="done"),
    )


def test_the_calls_of_gemini_are_kept_when_the_session_was_resumed_after_them() -> None:
    """In its snapshot a call and its response share one id."""
    call = {"id": "c", "name": "run_shell_command", "args": {"command": "echo MARK"}}
    response = {"functionResponse": {"id": "c", "response": {"output": "Output: MARK-OUT"}}}
    snapshot = [
        {"id": "u1", "type": "user", "content": [{"text": "run it"}]},
        {"id": "g1", "type": "gemini", "content": [{"functionCall": call}]},
        {"id": "g1", "type": "user", "content": [response]},
        {"id": "u2", "type": "user", "content": [response]},
        {"id": "g2", "type": "gemini", "content": [{"text": "done"}]},
    ]
    (_, answer) = gemini.parse(files.lines_of([{"$set": {"messages": snapshot}}])).said
    assert [(one.command, one.result, one.outcome) for one in answer.tools] == [
        ("echo MARK", "MARK-OUT", "done")
    ]


def test_every_message_of_an_agent_that_claude_is_given_is_complete() -> None:
    """It hangs without an end where one of these is missing."""
    tool = ToolUse(name="shell", command="ls", result="a")
    data = claude.render((user("x"), agent("y", tool)), id=ID, cwd="/w", now=NOW, owner="person")
    for found in files.objects(data):
        if found["type"] == "assistant":
            assert {"id", "type", "role", "model", "content", "usage"} <= found["message"].keys()
    assert claude.slug("/t/m/peers/w.s_3 x") == "-t-m-peers-w-s-3-x"
    assert claude.slug("/" + "x" * 250) is None


def test_turns_that_codex_took_back_are_gone() -> None:
    said = (user("one"), agent("1"), user("two"), agent("2"))
    data = codex.render(said, id=SEED, cwd="/w", now=NOW, provider="openai", owner="person")
    event = {"type": "event_msg", "payload": {"type": "thread_rolled_back", "num_turns": 1}}
    data += json.dumps(event).encode() + b"\n"
    assert codex.parse(data).said == said[:2]


def test_codex_is_given_the_provider_of_its_own_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('model_provider = "mine"\n')
    written = agents.AGENTS["codex"].render(
        (user("x"), agent("y")), place=tmp_path, cwd="/w", now=NOW, seed=SEED, owner="person"
    )
    assert written is not None
    assert b'"model_provider":"mine"' in written.data
    assert codex.provider_of("") == "openai"
    assert codex.provider_of("[broken") == "openai"


def test_opencode_goes_on_with_the_model_that_its_user_used_last(home: Path) -> None:
    one = agents.AGENTS["opencode"]
    said = (user("x"), agent("y"))
    known = one.render(
        said, place=one.place({}, str(home)), cwd="/w", now=NOW, seed=SEED, owner="person"
    )
    assert known is not None
    assert b'"model":{"providerID":"scripted","modelID":"m"}' in known.data
    nowhere = home / "none.db"
    assert one.render(said, place=nowhere, cwd="/w", now=NOW, seed=SEED, owner="person") is None


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ("session_v2", "has tables of opencode 2 that are not known: no such column: s.parent_id"),
        ("session_v3", "is of a later opencode than 2, whose sessions are not read yet"),
        ("session_v10", "is of a later opencode than 2, whose sessions are not read yet"),
    ],
)
def test_a_database_of_a_later_version_is_not_read_and_its_old_tables_neither(
    home: Path, table: str, why: str
) -> None:
    path = home / ".local/share/opencode/opencode.db"
    assert opencode.why_unread(path) == ""
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"CREATE TABLE {table} (id TEXT PRIMARY KEY, directory TEXT)")
        database.execute("CREATE TABLE IF NOT EXISTS session_message (id TEXT)")
        database.commit()
    assert opencode.read_database(path, OPENCODE_ID) is None
    assert opencode.newest_in(path, limit=3) == []
    assert opencode.last_model(path) == ""
    assert agents.AGENTS["opencode"].why_unread(path) == f"{path} {why}"


SECOND_TABLES = """
CREATE TABLE session_v2 (id TEXT PRIMARY KEY, parent_id TEXT, directory TEXT, title TEXT,
    model TEXT, time_created INTEGER, time_updated INTEGER);
DROP TABLE IF EXISTS session_message;
CREATE TABLE session_message (id TEXT PRIMARY KEY, session_id TEXT, type TEXT, seq INTEGER,
    time_created INTEGER, data TEXT);
"""


def put_second(path: Path, export: bytes) -> None:
    """A database of version 2, beside the stale tables of version 1, with one session."""
    found = json.loads(export)
    info = found["info"]
    with closing(sqlite3.connect(path)) as database:
        database.executescript(SECOND_TABLES)
        model, place = json.dumps(info["model"]), info["location"]["directory"]
        row = (info["id"], None, place, info["title"], model, 1, info["time"]["updated"])
        database.execute("INSERT INTO session_v2 VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        child = ("ses_child", info["id"], place, None, None, 1, 2)
        database.execute("INSERT INTO session_v2 VALUES (?, ?, ?, ?, ?, ?, ?)", child)
        for seq, one in enumerate(found["messages"]):
            data = {k: v for k, v in one.items() if k not in ("id", "type")}
            row = (one["id"], info["id"], one["type"], seq, 1, json.dumps(data))
            database.execute("INSERT INTO session_message VALUES (?, ?, ?, ?, ?, ?)", row)
        database.commit()


def test_a_conversation_of_opencode_2_is_read_and_written_in_its_own_shapes(home: Path) -> None:
    one = agents.AGENTS["opencode"]
    path = one.place({}, str(home))
    run = ToolUse(name="bash", command="ls", args="{}", result="a.txt", outcome="done")
    failed = structs.replace(run, command="false", result="exit 1", outcome="failed")
    picture = Attachment(type="image/png", name="p.png", data="aGk=")
    said = (
        structs.replace(user("look"), files=(picture,)),
        structs.replace(agent("I look. Found a.txt."), tools=(run, failed)),
        user("and now?"),
        agent("done"),
    )
    data = opencode.render_second(
        said, id="ses_2", cwd="/w", now=NOW, model="p/m/x", owner="person"
    )
    assert agents.is_same(said, one.parse(data))
    assert_contract(json.loads(data))
    put_second(path, data)
    stored = one.read(path, "ses_2")
    assert agents.is_same(said, stored)
    assert stored is not None
    assert stored.cwd == "/w"
    assert [each.id for each in one.newest(path, 5)] == ["ses_2"]
    assert one.read(path, OPENCODE_ID) is None  # of version 1: stale
    assert opencode.last_model(path) == "p/m/x"
    written = one.render(said, place=path, cwd="/w", now=NOW, seed=SEED, owner="person")
    assert written is not None
    assert json.loads(written.data)["messages"][0]["type"] == "user"


def assert_contract(export: dict[str, Any]) -> None:
    opencode2.checked("session", export["info"])
    for message in export["messages"]:
        opencode2.checked(message["type"], message)
        for file in message.get("files", ()):
            opencode2.checked("file", file)
        for part in message.get("content", ()):
            opencode2.checked(part["type"], part)
            if part["type"] == "tool":
                shape = "tool error" if "error" in part["state"] else "tool completed"
                opencode2.checked(shape, part["state"])


def test_what_stands_before_a_compaction_of_opencode_2_is_not_carried_over(home: Path) -> None:
    messages = [
        {"id": "msg_1", "type": "user", "time": {}, "text": "old"},
        {"id": "msg_2", "type": "compaction", "time": {}, "reason": "auto", "status": "failed"},
        {"id": "msg_3", "type": "compaction", "time": {}, "reason": "auto", "summary": "short"},
        {"id": "msg_4", "type": "synthetic", "text": "unseen"},
        {"id": "msg_5", "type": "user", "time": {}, "text": "new"},
        {"id": "msg_6", "type": "never-heard-of", "text": 7},
        {"id": "msg_7", "type": "assistant", "content": 7},
    ]
    info = {"id": "ses_2", "location": {"directory": "/w"}}
    stored = opencode.parse(json.dumps({"info": info, "messages": messages}).encode())
    assert [(one.role, one.text) for one in stored.said] == [
        ("assistant", "short"),
        ("user", "new"),
    ]


def test_a_database_that_is_none_is_nothing(tmp_path: Path) -> None:
    path = tmp_path / "opencode.db"
    path.write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)
    assert opencode.read_database(path, "ses_1") is None
    assert opencode.newest_in(path, limit=3) == []
    assert opencode.why_unread(path) == ""
    path.unlink()
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE session (id TEXT)")
    assert opencode.read_database(path, "ses_1") is None


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm", "-journal"])
@pytest.mark.parametrize("kind", ["pipe", "directory", "device"])
def test_nothing_waits_where_a_database_is_no_file(home: Path, suffix: str, kind: str) -> None:
    path = home / ".local/share/opencode/opencode.db"
    place = Path(f"{path}{suffix}")
    place.unlink(missing_ok=True)
    match kind:
        case "pipe":
            os.mkfifo(place)
        case "directory":
            place.mkdir()
        case _:
            place.symlink_to("/dev/zero")
    assert opencode.read_database(path, OPENCODE_ID) is None
    assert opencode.newest_in(path, limit=5) == []
    assert opencode.last_model(path) == ""


def test_a_query_that_takes_for_ever_is_given_up(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opencode, "_STEPS_PER_LOOK", 1)
    monkeypatch.setattr(opencode, "_MAX_LOOKS", 3)
    path = home / ".local/share/opencode/opencode.db"
    assert opencode.read_database(path, OPENCODE_ID) is None


# --- files ---


def test_of_a_huge_file_the_ends_are_read(tmp_path: Path) -> None:
    path = tmp_path / "big.jsonl"
    said = (user("first"), agent("one"), user("last"), agent("two"))
    head, *rest = claude.render(said, id=ID, cwd="/w", now=NOW, owner="person").splitlines(
        keepends=True
    )
    with path.open("wb") as file:
        file.write(head)
        for _ in range(110):
            file.write(b'{"type":"attachment","x":"' + b"x" * 1024 * 1024 + b'"}\n')
        file.write(b"".join(rest))
    data = files.read_ends(path)
    assert len(data) < 20 * 1024 * 1024
    assert [one.text for one in claude.parse(data).said] == ["first", "one", "last", "two"]


def test_a_link_a_pipe_and_a_directory_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe", ".", "absent"):
        assert files.read_ends(tmp_path / name) == b""


def test_a_file_is_only_made_where_there_is_none(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b.jsonl"
    files.make(path, b"ours")
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        files.make(path, b"theirs")
    assert path.read_bytes() == b"ours"
