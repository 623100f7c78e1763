"""What each kind starts, by permission, model and the user's own settings."""

import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fallbackd.backends import KINDS, codex_cli
from fallbackd.backends.commands import MENTIONS_ESCAPED
from fallbackd.backends.outside import LEAVES
from fallbackd.backends.spec import Options
from fallbackd.classify.classifier import classify
from fallbackd.core.failures import NO_CONVERSATION
from fallbackd.core.protocol import (
    Chunk,
    CommandLine,
    Conversation,
    Evidence,
    ProcessExit,
    Reply,
    ServedPrompt,
    Work,
)

PROMPT = "say pong\n--not-an-option\n"


def work(**changes: Any) -> Work:
    base = Work(
        prompt=PROMPT, prompt_path="/run/d1/prompt", cwd="/srv/project", scratch="/run/d1/s"
    )
    return msgspec.structs.replace(base, **changes)


def start(kind: str, options: Options | None = None, **changes: Any) -> CommandLine:
    call = KINDS[kind].start(work(**changes), options or Options(serve=False))
    assert isinstance(call, CommandLine)
    return call


NO_SANDBOX = "--dangerously-bypass-approvals-and-sandbox"
CLIS = ("claude", "codex", "gemini", "numasec", "opencode")


def prompt_in(call: CommandLine) -> list[str]:
    """Blocks of text that reach the model."""
    assert call.stdin is not None
    if "--input-format" not in call.argv:
        return [call.stdin.decode()]
    message = msgspec.json.decode(call.stdin)["message"]
    assert message["role"] == "user"
    return [block["text"] for block in message["content"]]


@pytest.mark.parametrize("kind", CLIS)
def test_a_prompt_goes_through_stdin_and_never_into_an_argument(kind: str) -> None:
    call = start(kind)
    assert prompt_in(call) == [PROMPT]
    assert not any("pong" in part for part in call.argv)
    assert call.cwd == "/srv/project"


def test_codex_confines_itself_to_where_it_is_and_not_to_a_name_that_may_lead_elsewhere() -> None:
    """Those that the kernel confines are held to the directory itself, whatever its name is."""
    for permissions in ("read", "workspace", "full"):
        argv = start("codex", permissions=permissions).argv
        assert not any("/srv/project" in part for part in argv)


@pytest.mark.parametrize("kind", CLIS)
def test_a_prompt_may_hold_what_no_argument_can(kind: str) -> None:
    prompt = "a\0b" + "x" * 300_000
    assert prompt_in(start(kind, prompt=prompt)) == [prompt]
    assert prompt_in(start(kind, prompt="a\ud800b")) == ["a?b"]


@pytest.mark.parametrize("prompt", ["/clear", " /help me", "\n/init", "@/etc/passwd", "a @b c"])
def test_a_prompt_that_claude_would_act_on_is_not_the_block_that_it_looks_at(prompt: str) -> None:
    first, last = prompt_in(start("claude", prompt=prompt))
    assert first == prompt
    assert "@" not in last
    assert not last.startswith("/")


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("/clear", "\n/clear"),
        ("see a/b, x @ y", "see a/b, x @ y"),
        ("@/etc/passwd", "\\@/etc/passwd\n\n" + MENTIONS_ESCAPED),
        ("/x @.env \\@y", "\n/x \\@.env \\@y\n\n" + MENTIONS_ESCAPED),
    ],
)
def test_gemini_gets_a_prompt_in_which_it_finds_no_command_and_no_file(
    prompt: str, expected: str
) -> None:
    assert prompt_in(start("gemini", prompt=prompt)) == [expected]
    assert re.search(r"(?<!\\)@\S", expected) is None
    own = Options(command=("claude", "-p"))
    assert prompt_in(start("claude", own, prompt=prompt)) == [expected]


@pytest.mark.parametrize("kind", CLIS)
def test_a_model_is_named_and_may_not_be_an_option(kind: str) -> None:
    assert "some/model" in start(kind, model="some/model").argv
    assert "some/model" in start(kind, Options(serve=False, model="some/model")).argv
    with pytest.raises(ValueError, match="option"):
        start(kind, model="--dangerous")


@pytest.mark.parametrize("kind", CLIS)
@pytest.mark.parametrize("value", ["--dangerous", "-c", "-x=1"])
def test_nothing_that_a_caller_names_is_an_option(kind: str, value: str) -> None:
    assert start(kind, prompt=value, session=value, effort=value).argv == start(kind).argv
    own = Options(command=("tool", "{session}"), serve=False)
    with pytest.raises(ValueError, match="option"):
        start(kind, own, session=value)


@pytest.mark.parametrize("kind", CLIS)
def test_the_model_of_the_work_goes_before_the_configured_one(kind: str) -> None:
    argv = start(kind, Options(serve=False, model="old"), model="new").argv
    assert "new" in argv
    assert "old" not in argv


@pytest.mark.parametrize(
    ("kind", "permissions", "present", "absent"),
    [
        ("codex", "read", ["-s", "read-only"], NO_SANDBOX),
        ("codex", "workspace", ["-s", "workspace-write"], NO_SANDBOX),
        ("codex", "full", [NO_SANDBOX], "-s"),
        ("claude", "read", ["--permission-mode", "plan"], "bypassPermissions"),
        ("claude", "workspace", ["--permission-mode", "acceptEdits"], "bypassPermissions"),
        ("claude", "full", ["--permission-mode", "bypassPermissions"], "acceptEdits"),
        ("gemini", "read", ["--approval-mode", "default"], "yolo"),
        ("gemini", "workspace", ["--approval-mode", "auto_edit"], "yolo"),
        ("gemini", "full", ["--approval-mode", "yolo"], "auto_edit"),
        ("opencode", "workspace", ["run", "--format", "json"], "--auto"),
        ("opencode", "full", ["--auto"], "--attach"),
        ("numasec", "workspace", ["run", "--format", "json"], "--dangerously-skip-permissions"),
        ("numasec", "full", ["--dangerously-skip-permissions"], "--attach"),
    ],
)  # fmt: skip
def test_permissions_are_words_of_the_vendor(
    kind: str, permissions: str, present: list[str], absent: str
) -> None:
    argv = list(start(kind, permissions=permissions).argv)
    at = argv.index(present[0])
    assert argv[at : at + len(present)] == present
    assert absent not in argv


def test_opencode_that_may_only_read_is_denied_the_rest() -> None:
    env = start("opencode", permissions="read").env
    config = msgspec.json.decode(env["OPENCODE_CONFIG_CONTENT"])
    assert config["permission"]["edit"] == config["permission"]["bash"] == "deny"


def test_inline_settings_of_the_user_stay_below_ours() -> None:
    inherited = {"OPENCODE_CONFIG_CONTENT": '{"model":"a/b","permission":{"bash":"allow"}}'}
    env = start("opencode", permissions="read", inherited=inherited).env
    config = msgspec.json.decode(env["OPENCODE_CONFIG_CONTENT"])
    assert config["model"] == "a/b"
    assert config["permission"]["bash"] == "deny"


def test_opencode_is_served_unless_the_configuration_says_otherwise() -> None:
    served = KINDS["opencode"].start(work(model="a/b"), Options())
    assert isinstance(served, ServedPrompt)
    assert (served.prompt, served.model, served.cwd) == (PROMPT, "a/b", "/srv/project")
    assert served.server.argv[:2] == ("opencode", "serve")
    assert served.title
    own = Options(command=("opencode", "run", "--format", "json"))
    assert isinstance(KINDS["opencode"].start(work(), own), CommandLine)


def test_servers_with_other_permissions_are_not_shared() -> None:
    keys = set()
    for permissions in ("read", "workspace", "full"):
        call = KINDS["opencode"].start(work(permissions=permissions), Options())
        assert isinstance(call, ServedPrompt)
        keys.add(call.key)
    assert len(keys) == 3


def test_the_environment_of_one_prompt_is_not_given_to_a_shared_server() -> None:
    call = KINDS["opencode"].start(work(env={"TICKET": "7"}), Options())
    assert isinstance(call, CommandLine)
    assert call.env["TICKET"] == "7"


def settings_of(call: CommandLine) -> list[str]:
    argv = list(call.argv)
    return [argv[i + 1] for i, part in enumerate(argv) if part == "-c"]


OWN_PROVIDER = 'model_provider = "mine"\n[model_providers.mine]\nname = "Mine"\n'


def test_codex_keeps_the_retries_that_it_reports() -> None:
    for mode in ("interactive", "batch"):
        settings = settings_of(start("codex", mode=mode, files={codex_cli.CONFIG: OWN_PROVIDER}))
        assert not any("stream_max_retries" in each for each in settings)


def test_codex_makes_its_silent_retries_only_where_there_is_time() -> None:
    silent = "model_providers.mine.request_max_retries=0"
    files = {codex_cli.CONFIG: OWN_PROVIDER}
    assert silent in settings_of(start("codex", mode="interactive", files=files))
    assert silent not in settings_of(start("codex", mode="batch", files=files))


@pytest.mark.parametrize(
    "config",
    [
        "",
        "not toml [",
        'model_provider = "openai"\n[model_providers.openai]\nname = "x"',
        'model_provider = "gone"',
        'model_provider = "a b"\n[model_providers."a b"]\nname = "x"',
        "model_provider = 3",
        'model_providers = 3\nmodel_provider = "mine"',
    ],
)
def test_codex_gets_no_setting_for_a_provider_that_it_does_not_know(config: str) -> None:
    files = {codex_cli.CONFIG: config}
    settings = settings_of(start("codex", mode="interactive", files=files))
    assert not any(s.startswith("model_providers") for s in settings)
    assert "check_for_update_on_startup=false" in settings


def profile_of(call: CommandLine) -> dict[str, Any]:
    """The settings of its sandbox, as codex reads them."""
    found: dict[str, Any] = {}
    for each in settings_of(call):
        name, _, value = each.partition("=")
        found[name] = tomllib.loads(f"v = {value}")["v"]
    return found


def test_codex_opens_the_same_places_to_its_commands_as_the_kernel_to_others() -> None:
    places = {"writable": ("/home/me/.cargo/registry",), "repositories": ("/srv/p/.git",)}
    call = start("codex", cwd="/srv/p", **places)
    assert "-s" not in call.argv
    found = profile_of(call)
    assert found["sandbox_mode"] == "workspace-write"
    assert found["sandbox_workspace_write.writable_roots"] == ["/home/me/.cargo/registry"]
    assert found["default_permissions"] == "fallbackd"
    places = found["permissions.fallbackd.filesystem"]
    assert places[":root"] == "read"
    assert places["/home/me/.cargo/registry"] == "write"
    assert places[":project_roots"] == {
        ".": "write",
        ".git": "write",
        ".git/hooks": "read",
        ".git/config": "read",
    }
    assert found["permissions.fallbackd.network"] == {"enabled": False}


def test_codex_opens_a_repository_elsewhere_without_its_hooks_and_configuration() -> None:
    call = start("codex", writable=("/c",), repositories=("/srv/main/.git",))
    places = profile_of(call)["permissions.fallbackd.filesystem"]
    assert places["/srv/main/.git"] == "write"
    assert places["/srv/main/.git/hooks"] == places["/srv/main/.git/config"] == "read"
    assert places[":project_roots"] == {".": "write"}


def test_codex_keeps_what_its_user_has_set_for_the_sandbox() -> None:
    config = '[sandbox_workspace_write]\nnetwork_access = true\nwritable_roots = ["/srv/own"]\n'
    found = profile_of(start("codex", writable=("/c",), files={codex_cli.CONFIG: config}))
    assert found["permissions.fallbackd.network"] == {"enabled": True}
    assert found["permissions.fallbackd.filesystem"]["/srv/own"] == "write"
    assert found["sandbox_workspace_write.writable_roots"] == ["/c", "/srv/own"]


@pytest.mark.parametrize("config", ["[sandbox_workspace_write", "sandbox_workspace_write = 3"])
def test_codex_starts_with_a_strange_configuration(config: str) -> None:
    found = profile_of(start("codex", writable=("/c",), files={codex_cli.CONFIG: config}))
    assert found["permissions.fallbackd.network"] == {"enabled": False}


def test_codex_that_only_reads_or_may_do_all_gets_no_places() -> None:
    for permissions in ("read", "full"):
        call = start("codex", permissions=permissions, writable=("/c",))
        assert "default_permissions" not in profile_of(call)


def test_codex_reads_the_provider_of_the_profile_in_use() -> None:
    config = (
        'profile = "p"\n[profiles.p]\nmodel_provider = "mine"\n'
        '[model_providers.mine]\nname = "Mine"\n'
    )
    files = {codex_cli.CONFIG: config}
    settings = settings_of(start("codex", mode="interactive", files=files))
    assert "model_providers.mine.request_max_retries=0" in settings


def test_gemini_runs_under_the_settings_of_the_user_and_the_machine() -> None:
    call = start("gemini")
    assert "GEMINI_CLI_SYSTEM_SETTINGS_PATH" not in call.env


def test_claude_keeps_its_retries_and_forgets_the_session_it_was_started_from() -> None:
    call = start("claude")
    assert not any("RETRIES" in name for name in call.env)
    assert "CLAUDECODE" in call.unset
    assert "--verbose" in call.argv


@pytest.mark.parametrize("kind", CLIS)
def test_a_command_of_the_user_replaces_ours_wholly(kind: str) -> None:
    call = start(kind, Options(command=("wrapper", "exec", "-"), env={"A": "1"}), model="m")
    assert call.argv == ("wrapper", "exec", "-")
    assert call.stdin == PROMPT.encode()
    assert call.env["A"] == "1"
    program = KINDS[kind].program
    assert program(Options(command=("wrapper",))) == "wrapper"
    assert program(Options()) == kind


@pytest.mark.parametrize("kind", CLIS)
def test_a_command_of_the_user_that_prints_text_is_read_as_text(kind: str) -> None:
    parser = KINDS[kind].parser(Options(command=("wrapper", "-")))
    parser.feed(Chunk("stdout", b'{"is": "the answer"}\nsecond line\n', 0.0))
    assert parser.finish(ProcessExit(gone=True, code=0)) == Reply(
        text='{"is": "the answer"}\nsecond line', may_be_notice=True
    )


@pytest.mark.parametrize("kind", CLIS)
def test_a_program_that_prints_no_events_though_asked_to_is_read_as_text(kind: str) -> None:
    parser = KINDS[kind].parser(Options())
    parser.feed(Chunk("stdout", b"found\nnothing\n", 0.0))
    assert parser.finish(ProcessExit(gone=True, code=0)) == Reply(
        text="found\nnothing", may_be_notice=True
    )


@pytest.mark.parametrize("kind", CLIS)
def test_words_on_stderr_alone_are_no_answer(kind: str) -> None:
    parser = KINDS[kind].parser(Options())
    parser.feed(Chunk("stderr", b"welcome, version 1\n", 0.0))
    assert not isinstance(parser.finish(ProcessExit(gone=True, code=0)), Reply)


TALK = "01a202ab-e954-7612-bd46-9d7323098192"


@pytest.mark.parametrize("kind", ["claude", "gemini"])
def test_a_conversation_is_resumed_by_its_id(kind: str) -> None:
    argv = list(start(kind, resume=TALK).argv)
    assert argv[argv.index("--resume") + 1] == TALK
    assert "--resume" not in start(kind).argv


def test_codex_takes_its_options_in_front_of_what_it_resumes() -> None:
    first, again = start("codex", model="m").argv, start("codex", model="m", resume=TALK).argv
    assert again == (*first[:-1], "resume", TALK, "-")


@pytest.mark.parametrize("kind", CLIS)
def test_a_command_of_the_user_resumes_nothing(kind: str) -> None:
    assert not KINDS[kind].resumes(Options(command=("wrapper", "exec", "-")))


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("codex", {"type": "thread.started", "thread_id": TALK}),
        ("claude", {"type": "system", "subtype": "init", "session_id": TALK}),
        ("gemini", {"type": "init", "session_id": TALK}),
    ],
)
def test_a_conversation_is_named_by_the_program(kind: str, line: dict[str, Any]) -> None:
    assert KINDS[kind].resumes(Options())
    seen = KINDS[kind].parser(Options()).feed(Chunk("stdout", msgspec.json.encode(line) + b"\n", 0))
    assert seen == [Conversation(id=TALK)]


@pytest.mark.parametrize(
    ("kind", "said", "exit_code"),
    [
        (
            "codex",
            f"Error: thread/resume: thread/resume failed: no rollout found for thread id {TALK} "
            "(code -32600)",
            1,
        ),
        ("codex", f"Error: thread/resume: thread {TALK} already has an active writer", 1),
        ("claude", f"No conversation found with session ID: {TALK}", 1),
        ("gemini", f'Error resuming session: Invalid session identifier "{TALK}".', 42),
        ("gemini", "Error resuming session: No previous sessions found for this project.", 42),
    ],
)
def test_a_conversation_that_is_not_there_says_nothing_of_the_backend(
    kind: str, said: str, exit_code: int
) -> None:
    evidence = Evidence(text=said, stream="stderr", exit_code=exit_code)
    failure = classify(evidence, KINDS[kind].rules, now=0.0)
    assert failure is not None
    assert failure.detail == NO_CONVERSATION


def bash_rules(call: CommandLine) -> dict[str, str]:
    name = next(name for name in call.env if name.endswith("_CONFIG_CONTENT"))
    permission = msgspec.json.decode(call.env[name])["permission"]
    assert permission["external_directory"] == "allow"
    rules: dict[str, str] = permission["bash"]
    return rules


@pytest.mark.parametrize("kind", ["opencode", "numasec"])
def test_commands_run_unasked_in_opencode_but_for_those_that_leave_the_machine(kind: str) -> None:
    rules = bash_rules(start(kind, runs_commands=True))
    assert next(iter(rules.items())) == ("*", "allow"), "the last rule that fits counts"
    for command in ("git push", "git push *", "npm publish *", "gh pr create *", "scp *"):
        assert rules[command] == "deny"
    assert "git commit" not in rules


def test_commands_run_unasked_in_claude_but_for_those_that_leave_the_machine() -> None:
    argv = start("claude", runs_commands=True).argv
    rules = msgspec.json.decode(argv[argv.index("--settings") + 1])["permissions"]
    assert rules["allow"] == ["Bash"]
    assert {"Bash(git push:*)", "Bash(twine upload:*)", "Bash(gh api:*)"} <= set(rules["deny"])
    assert "Bash(git commit:*)" not in rules["deny"]


def test_commands_run_unasked_in_gemini_but_for_those_that_leave_the_machine() -> None:
    argv = start("gemini", runs_commands=True).argv
    assert argv[argv.index("--allowed-tools") + 1] == "run_shell_command"
    policy = tomllib.loads(Path(argv[argv.index("--admin-policy") + 1]).read_text())
    [rule] = policy["rule"]
    assert (rule["toolName"], rule["decision"]) == ("run_shell_command", "deny")
    assert tuple(rule["commandPrefix"]) == LEAVES


@pytest.mark.parametrize("kind", CLIS)
@pytest.mark.parametrize("permissions", ["read", "full"])
def test_only_at_workspace_are_commands_run_unasked(kind: str, permissions: str) -> None:
    own = start(kind, permissions=permissions)
    assert start(kind, permissions=permissions, runs_commands=True).argv == own.argv
    assert start(kind, permissions=permissions, runs_commands=True).env == own.env


@pytest.mark.parametrize("kind", CLIS)
def test_without_the_choice_of_a_person_the_rules_of_each_agent_hold(kind: str) -> None:
    call = start(kind)
    assert not any(word in call.argv for word in ("--settings", "--allowed-tools"))
    assert not any(name.endswith("_CONFIG_CONTENT") for name in call.env)


def test_opencode_2_runs_by_itself_and_is_told_its_directory_by_a_variable() -> None:
    own = {"version": "opencode v2.1.4", "model": "a/b", "effort": "high", "permissions": "full"}
    served = KINDS["opencode"].start(work(**own), Options(serve=False))
    assert isinstance(served, CommandLine)
    assert "--standalone" in served.argv
    assert not {"--dir", "--variant"} & set(served.argv)
    assert served.argv[served.argv.index("-m") + 1] == "a/b#high"
    assert "--auto" in served.argv
    assert served.env["PWD"] == "/srv/project"
