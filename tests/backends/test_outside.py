"""What a tool call does outside of the directory, by its command line or its name."""

from typing import Any

import msgspec
import pytest
from tests.backends.test_tools import SAYS

from fallbackd.backends import KINDS
from fallbackd.backends.outside import Act, act_of
from fallbackd.backends.spec import Options
from fallbackd.core.protocol import Chunk, ToolEnded, ToolStarted
from fallbackd.core.watch import Watch, see

ACTING = [
    ("git commit -m 'one line'", "git commit"),
    ("git commit -m \"$(cat <<'EOF'\nDo not `git push` yet\n\nIt's late\nEOF\n)\"", "git commit"),
    ("git -C /src -c user.name=x push origin main", "git push"),
    ("cd /src && git add -A && git push 2>&1", "git push"),
    ("git commit -am wip; git push", "git commit, git push"),
    ("/bin/bash -lc 'git push --force'", "git push"),
    ("sh -c \"cd a && bash -c 'git push'\"", "git push"),
    ("GIT_SSH_COMMAND='ssh -i k' sudo git push", "git push"),
    ("timeout 60 git push", "git push"),
    ("echo $(git push)", "git push"),
    ("if true; then git push; fi", "git push"),
    ("(cd x; git push)", "git push"),
    ("git status\ngit push", "git push"),
    ("cat notes.md > out.md && /usr/bin/git push", "git push"),
    ("gh pr create --fill", "gh pr create"),
    ("gh -R o/r issue comment 3 -b hello", "gh issue comment"),
    ("gh api -X POST repos/o/r/issues", "gh api repos/o/r/issues"),
    ("gh api repos/o/r/issues -f title=x", "gh api repos/o/r/issues"),
    ("npm publish --access public", "npm publish"),
    ("npm run release", "npm run release"),
    ("make -C site deploy", "make deploy"),
    ("python -m twine upload dist/*", "python twine upload"),
    ("uv publish", "uv publish"),
    ("cargo publish", "cargo publish"),
    ("docker push registry.example/app", "docker push"),
    ("kubectl -n prod apply -f x.yaml", "kubectl apply"),
    ("terraform apply -auto-approve", "terraform apply"),
    ("mail -s done me@example.org < report.txt", "mail"),
    ("echo hi | sendmail me@example.org", "sendmail"),
    ("scp -r dist web1:/srv/www", "scp to another machine"),
    ("rsync -a dist/ me@web1:/srv/www", "rsync to another machine"),
    ("curl -X POST https://example.org/hook", "curl, a request that writes"),
    ("curl https://example.org -d '{}'", "curl, a request that writes"),
    ("curl --json '{}' https://example.org", "curl, a request that writes"),
    ("wget --post-data=x https://example.org", "wget, a request that writes"),
    ("http POST example.org a=b", "http, a request that writes"),
]


@pytest.mark.parametrize(("command", "what"), ACTING)
def test_a_command_that_commits_publishes_or_sends_is_named(command: str, what: str) -> None:
    act = act_of("bash", {"command": command})
    assert act is not None
    assert act.what == what


@pytest.mark.parametrize(
    "command",
    [
        "git status",
        "git log --oneline | grep 'git push'",
        "git stash push",
        "git diff push..main",
        "git push --dry-run",
        "git merge --abort",
        "git checkout publish",
        "echo 'git push'",
        'echo "git push" >> notes.md',
        "grep -rn 'npm publish' .",
        "cat <<'EOF' > release.sh\ngit push\nEOF",
        "# git push\nls",
        "sed -i s/push/pull/ git.md",
        "gh pr view 3 --json title",
        "gh pr list",
        "gh api repos/o/r/issues",
        "gh api graphql -f query='query { viewer { login } }'",
        "npm install publish-tool",
        "npm run build",
        "npm test",
        "make",
        "docker build -t app .",
        "kubectl get pods",
        "terraform plan",
        "curl https://example.org/data.json -o data.json",
        "curl -G https://example.org -d q=words",
        "curl -X POST http://localhost:8080/api -d '{}'",
        "curl -d '{}' http://127.0.0.1:3000/",
        "scp web1:/var/log/app.log .",
        "python -m pytest -q",
        "'",
        "",
    ],
)
def test_a_command_that_stays_in_its_directory_or_reads_is_not(command: str) -> None:
    assert act_of("bash", {"command": command}) is None


@pytest.mark.parametrize(
    ("command", "is_told"),
    [
        ("git push", True),
        ("git add -A && git commit -m x", True),
        ("git push 2>&1", True),
        ("git push | tail -3", False),
        ("git commit -m x && git push", False),
        ("git push; git status", False),
        ("curl -d x https://example.org", False),
        ("terraform apply", False),
    ],
)
def test_failure_of_a_call_tells_only_where_its_last_command_acts(
    command: str, is_told: bool
) -> None:
    act = act_of("bash", {"command": command})
    assert act is not None
    assert act.all_or_nothing is is_told


@pytest.mark.parametrize(
    ("tool", "acts"),
    [
        ("mcp__github__create_pull_request", True),
        ("mcp__github__get_issue", False),
        ("mcp__gmail__sendEmail", True),
        ("slack.post_message", True),
        ("slack.list_channels", False),
        ("mcp_linear_create_issue", True),
        ("github_merge_pull_request", True),
        ("send_message", True),
        ("push-files", True),
        ("mcp__send__list", False),
        ("Edit", False),
        ("SendMessage", False),
        ("apply_patch", False),
        ("create_file", False),
        ("run_shell_command", False),
    ],
)
def test_a_tool_of_a_server_is_judged_by_its_name(tool: str, acts: bool) -> None:
    found = act_of(tool, {"path": "a"})
    assert found == (Act(what=tool, all_or_nothing=True) if acts else None)


@pytest.mark.parametrize(
    "arguments",
    [None, 3, [], {}, {"command": 3}, {"command": ["git", "push"]}, ["bash", "-lc", "git push"]],
)
def test_arguments_of_any_shape_are_read(arguments: object) -> None:
    act = act_of("shell", arguments)
    assert (act is not None) == ("push" in str(arguments))


def test_a_command_of_any_length_is_read_once() -> None:
    assert act_of("bash", {"command": "echo " + "a'" * 200_000}) is None
    assert act_of("bash", {"command": "(" * 100_000 + "<<E " * 10_000}) is None


# --- from the lines of each agent ------------------------------------------------------------

PUSH = "git push origin main"


def claude(*, failed: bool) -> list[dict[str, Any]]:
    used = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": PUSH}}
    ended = {"type": "tool_result", "tool_use_id": "t1", "is_error": failed}
    return [
        {"type": "assistant", "message": {"model": "m", "content": [used]}},
        {"type": "user", "message": {"content": [ended]}},
    ]


def codex(*, failed: bool) -> list[dict[str, Any]]:
    item = {"id": "i1", "type": "command_execution", "command": f"/bin/bash -lc '{PUSH}'"}
    ended = {"status": "failed", "exit_code": 1} if failed else {"exit_code": 0}
    return [
        {"type": "item.started", "item": item | {"status": "in_progress", "exit_code": None}},
        {"type": "item.completed", "item": item | ended},
    ]


def gemini(*, failed: bool) -> list[dict[str, Any]]:
    call = {"tool_name": "run_shell_command", "tool_id": "t1", "parameters": {"command": PUSH}}
    status = "error" if failed else "success"
    return [
        {"type": "tool_use", **call},
        {"type": "tool_result", "tool_id": "t1", "status": status},
    ]


def opencode(*, failed: bool) -> list[dict[str, Any]]:
    state = {"input": {"command": PUSH}}
    ended = state | ({"status": "completed", "metadata": {"exit": 1 if failed else 0}})
    part = {"id": "p1", "type": "tool", "tool": "bash", "callID": "c1"}
    return [
        {"type": "tool_use", "sessionID": "s", "part": part | {"state": state | {"status": one}}}
        if one == "running"
        else {"type": "tool_use", "sessionID": "s", "part": part | {"state": ended}}
        for one in ("running", "completed")
    ]


PUSHES = {"claude": claude, "codex": codex, "gemini": gemini, "opencode": opencode}


def watched(kind: str, lines: list[dict[str, Any]]) -> Watch:
    parser = KINDS[kind].parser(Options())
    watch = Watch(started_at=0.0)
    for line in lines:
        for one in parser.feed(Chunk("stdout", msgspec.json.encode(line) + b"\n", 0.0)):
            watch = see(watch, one, now=1.0)
    return watch


@pytest.mark.parametrize("kind", PUSHES)
def test_an_attempt_that_has_pushed_is_known_by_what_its_agent_prints(kind: str) -> None:
    watch = watched(kind, PUSHES[kind](failed=False))
    assert (watch.effects, watch.outside) == ("external", ("git push",))


@pytest.mark.parametrize("kind", PUSHES)
def test_an_attempt_that_is_pushing_counts_as_one_that_has(kind: str) -> None:
    assert watched(kind, PUSHES[kind](failed=False)[:1]).outside == ("git push",)


@pytest.mark.parametrize("kind", PUSHES)
def test_a_push_that_was_refused_has_done_nothing_outside(kind: str) -> None:
    watch = watched(kind, PUSHES[kind](failed=True))
    assert (watch.effects, watch.outside) == ("possible", ())


def test_what_a_failing_script_has_done_before_its_end_stays_done() -> None:
    act = act_of("bash", {"command": "git commit -m x && git push"})
    assert act is not None
    watch = see(
        Watch(started_at=0.0),
        ToolStarted(key="k", name="bash", outside=act.what, call="c"),
        now=1.0,
    )
    watch = see(watch, ToolEnded(call="c", failed=True), now=2.0)
    assert watch.outside == ("git commit, git push",)


def test_tools_without_a_command_line_do_nothing_outside() -> None:
    for kind, says in SAYS.items():
        parser = KINDS[kind].parser(Options())
        lines = b"".join(msgspec.json.encode(each) + b"\n" for each in says("edit"))
        for one in parser.feed(Chunk("stdout", lines, 0.0)):
            assert not isinstance(one, ToolStarted) or one.outside == ""
