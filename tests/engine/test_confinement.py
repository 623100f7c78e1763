"""To which places the program of an attempt is confined, by its kind and the configuration."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.support.running_engine import agent, ended, engine_in, tried
from tests.support.running_engine import settings as two
from tests.support.running_engine import work as delegate
from tests.support.scripts import script

from fallbackd.app.configuration import refused_shells, settings_of
from fallbackd.backends import KINDS
from fallbackd.backends.codex_cli import CONFIG as CONFIG_OF_CODEX
from fallbackd.backends.toolchains import CACHES, TOOLCHAINS
from fallbackd.config.load import load
from fallbackd.core.failures import make_failure
from fallbackd.core.ids import BackendId
from fallbackd.core.protocol import (
    CommandLine,
    Confinement,
    HttpRequest,
    OwnCopy,
    Permissions,
    ServedPrompt,
    Work,
)
from fallbackd.core.reasons import Reason
from fallbackd.core.routing.candidates import shell_of
from fallbackd.engine import attempts
from fallbackd.engine.confinement import (
    confined,
    confinement_of,
    copies_of,
    explained,
    is_looser,
    with_own_roots,
)
from fallbackd.engine.environment import Settings, World
from fallbackd.engine.requests import NewWork
from fallbackd.transports.process.runner.landlock import WHOLE_ABI

CONFIG = """
[backends.mine]
kind = "generic-cli"
command = ["/opt/agents/goose", "run"]
writable = ["~/notes/", "/srv/shared"]
[backends.other]
kind = "openai-http"
base_url = "https://api.example.com/v1"
credentials = [{ label = "one", file = "~/.keys/one" }]
tls_client_cert = "/etc/keys/client.pem"
tls_client_key = "/etc/keys/client"
[backends.codex.env]
CODEX_HOME = "/srv/codex"
"""
WORLD = cast(
    World,
    SimpleNamespace(
        kinds=KINDS,
        environ={"HOME": "/home/me", "CLAUDE_CONFIG_DIR": "/srv/claude"},
        home="/home/me",
        inheritable={"HOME": "/home/me"},
        open_places=lambda given, environ: (
            (*given.writable, *(each.name for each in given.toolchains), *environ.values()),
            (f"{given.cwd}/.git",),
        ),
        private=("/home/me/.local/state/fallbackd",),
        read_text=lambda _: None,
        runs_root=Path("/home/me/.local/state/fallbackd/runs"),
    ),
)


def settings(more: str = "", *, abi: int = WHOLE_ABI) -> Settings:
    return settings_of(load(CONFIG + more, path="config.toml"), abi=abi)


def work(**changes: Any) -> Work:
    given = {"prompt": "p", "prompt_path": "/p", "cwd": "/w", "scratch": "/s", **changes}
    return Work(**given)


def of(
    backend: str, more: str = "", *, abi: int = WHOLE_ABI, inside: bool = False, **changes: Any
) -> Any:
    found = settings(more, abi=abi)
    return confinement_of(found, WORLD, BackendId(backend), work(**changes), inside=inside)


def roots(more: str, *, abi: int = WHOLE_ABI, inside: bool = False, **changes: Any) -> Work:
    text = CONFIG.partition("[backends.codex.env]")[0] + more
    found = settings_of(load(text, path="config.toml"), abi=abi)
    return with_own_roots(found, WORLD, BackendId("codex"), work(**changes), inside=inside)


def test_the_directory_is_written_at_workspace_and_not_at_read() -> None:
    assert of("claude").cwd == "/w"
    assert of("claude", permissions="read").cwd == ""
    assert of("claude", permissions="full") is None


@pytest.mark.parametrize("backend", ["claude", "gemini", "opencode", "numasec", "mine"])
def test_a_program_writes_what_is_its_own_and_no_caches_of_all(backend: str) -> None:
    writable = of(backend).writable
    own = {
        "claude": "${CLAUDE_CONFIG_DIR:-~/.claude}/projects/",
        "gemini": "${GEMINI_CLI_HOME:-~}/.gemini/tmp/",
        "opencode": "${XDG_DATA_HOME:-~/.local/share}/opencode/",
        "numasec": "${XDG_DATA_HOME:-~/.local/share}/numasec/",
        "mine": "${XDG_STATE_HOME:-~/.local/state}/goose/",
    }
    assert own[backend] in writable
    assert not {"${XDG_CACHE_HOME:-~/.cache}/", "${npm_config_cache:-~/.npm}/"} & set(writable)
    assert not any(place in writable for name, place in own.items() if name != backend)


@pytest.mark.parametrize("backend", ["claude", "gemini", "opencode", "numasec", "mine"])
def test_tools_that_build_and_sign_write_their_places_where_the_agent_may_write(
    backend: str,
) -> None:
    assert of(backend).toolchains == TOOLCHAINS
    assert of(backend, permissions="read").toolchains == ()


@pytest.mark.parametrize(
    ("command", "made"),
    [
        ("qwen", True),
        ("/usr/local/bin/qwen", True),
        ("./run.sh", False),
        ("bash", False),
        ("python3.11", False),
        ("npx", False),
    ],
)
def test_places_named_after_a_program_are_made_for_an_installed_agent(
    command: str, made: bool
) -> None:
    name = command.rpartition("/")[2]
    more = f'[backends.qwen]\nkind = "generic-cli"\ncommand = ["{command}"]\n'
    own = f"~/.{name}/" if made else f"~/.{name}"
    assert own in of("qwen", more).writable


@pytest.mark.parametrize("backend", ["claude", "codex", "gemini", "opencode", "numasec", "mine"])
def test_caches_are_its_own_but_for_those_of_tools_where_it_may_write(backend: str) -> None:
    def copies(permissions: Permissions) -> dict[str, OwnCopy]:
        found = copies_of(settings(), WORLD, BackendId(backend), permissions, inside=False)
        return {each.variable: each for each in found}

    cargo = "${CARGO_HOME:-~/.cargo}/registry/"
    assert CACHES.keys() <= copies("workspace").keys()
    for variable in CACHES:
        assert cargo in copies("workspace")[variable].shared
        assert cargo in copies("read")[variable].fresh
        assert copies("read")[variable].shared == ()
    assert copies("full") == {}


@pytest.mark.parametrize(
    ("said", "place"),
    [
        ("sh: 1: cannot create /tmp/x/y: Permission denied", "/tmp/x/"),
        (
            "fatal: could not create leading directories of '/src/x/.git': Permission denied",
            "/src/x/",
        ),
        ("fatal: could not create '../x': Permission denied", "DIRECTORY/"),
    ],
)
def test_a_refusal_says_how_the_place_is_allowed(said: str, place: str) -> None:
    failure = make_failure(Reason.PERMISSION, now=0.0, evidence=said, signature="x")
    assert explained(failure).evidence == (
        f'{said} (it is confined: `writable = ["{place}"]` in its table lets it write there too)'
    )


def test_a_configuration_names_further_places() -> None:
    assert {"~/notes/", "/srv/shared", "~/.goose/"} <= set(of("mine").writable)
    assert "/srv/shared" not in of("claude").writable


def test_keys_of_others_are_hidden_where_their_programs_have_them() -> None:
    hidden = of("mine").hidden
    assert {
        "/home/me/.local/state/fallbackd",
        "/home/me/.keys/one",
        "/etc/keys/client",
        "/srv/codex/auth.json",
        "/srv/claude/.credentials.json",
        "/home/me/.local/share/opencode/auth.json",
    } <= set(hidden)
    assert "/srv/claude/.credentials.json" not in of("claude").hidden


def test_its_own_directory_is_read_where_the_daemon_keeps_it() -> None:
    own = f"{WORLD.runs_root}/d1/work"
    assert of("claude", cwd=own, permissions="read").readable == ("/p", own)
    assert of("claude", permissions="read").readable == ("/p",)


def test_codex_is_left_to_its_own_sandbox_which_gets_the_same_places() -> None:
    assert of("codex") is None
    found = roots('[backends.codex]\nwritable = ["/srv/shared/"]\n[backends.codex.env]\nA = "b"\n')
    assert {"/srv/shared/", "cargo", "b"} <= set(found.writable)
    assert found.repositories == ("/w/.git",)


def test_codex_gets_no_places_where_it_only_reads_or_confine_is_off() -> None:
    assert roots("", permissions="read").writable == ()
    assert roots("[backends.codex]\nconfine = false\n").writable == ()
    assert roots("[defaults]\nconfine = false\n").writable == ()


def test_codex_needs_no_landlock_for_its_places() -> None:
    assert roots("", abi=0).writable


@pytest.mark.parametrize(
    ("more", "confines"),
    [
        ("[defaults]\nconfine = false", {"claude": False, "mine": False}),
        ("[backends.claude]\nconfine = false", {"claude": False, "mine": True}),
        (
            "[defaults]\nconfine = false\n[backends.claude]\nconfine = true",
            {"claude": True, "mine": False},
        ),
    ],
)
def test_it_can_be_switched_off_for_all_and_for_one(more: str, confines: dict[str, bool]) -> None:
    assert {name: of(name, more) is not None for name in confines} == confines


@pytest.mark.parametrize(
    "more", ["[defaults]\nconfine = false", "[backends.claude]\nconfine = false"]
)
def test_no_configuration_frees_what_is_part_of_other_work(more: str) -> None:
    assert of("claude", more) is None
    assert of("claude", more, inside=True, permissions="read").cwd == ""
    assert of("claude", more, inside=True).cwd == "/w"
    assert of("claude", more, inside=True, permissions="full") is None


def test_codex_is_left_to_itself_inside_other_work_unless_its_command_is_a_configured_one() -> None:
    off = "[backends.codex]\nconfine = false\n"
    assert roots(off, inside=True).repositories == ("/w/.git",)
    assert of("codex", inside=True) is None
    own = 'command = ["codex", "exec", "--yolo"]\n'
    text = CONFIG.replace("[backends.codex.env]", f"[backends.codex]\n{own}[backends.codex.env]")
    found = settings_of(load(text, path="config.toml"), abi=WHOLE_ABI)
    codex = BackendId("codex")
    assert confinement_of(found, WORLD, codex, work(), inside=False) is None
    held = confinement_of(found, WORLD, codex, work(), inside=True)
    assert held is not None
    assert held.cwd == "/w"


def test_on_a_kernel_that_cannot_nothing_is_asked_of_it() -> None:
    assert of("claude", abi=0) is None
    assert of("claude", abi=2) is not None


def test_a_confined_program_has_temporary_files_of_its_own() -> None:
    call = confined(CommandLine(argv=("a",), cwd="/w"), of("claude"))
    assert isinstance(call, CommandLine)
    assert call.own_tmp
    assert call.confinement == of("claude")
    request = HttpRequest(method="POST", url="https://api.example.com")
    assert confined(request, of("other")) is request


def test_a_server_of_opencode_is_of_one_directory_and_one_set_of_rules() -> None:
    def served(cwd: str, **more: Any) -> ServedPrompt:
        call = KINDS["opencode"].start(work(cwd=cwd), settings().options_of(BackendId("opencode")))
        made = confined(call, of("opencode", cwd=cwd, **more))
        assert isinstance(made, ServedPrompt)
        return made

    one = served("/w")
    assert one.key == served("/w", prompt_path="/another").key
    assert one.key != served("/x").key
    assert one.key.startswith(one.family)
    assert served("/x").family == one.family
    changed = served("/w", more='[backends.opencode]\nwritable = ["/srv/data"]')
    assert changed.key != one.key
    assert isinstance(one.server.confinement, Confinement)
    assert one.otherwise is not None
    assert one.otherwise.confinement is not None
    open_to_all = served("/w", permissions="full")
    assert open_to_all.family == ""
    assert open_to_all.server.confinement is None


@pytest.mark.parametrize(
    ("bad", "place"),
    [('["notes"]', "[0]"), ('["$HOME/x"]', "[0]"), ('["~other/x"]', "[0]"), ('"~/x"', "")],
)
def test_a_place_that_is_no_path_is_left_out_loudly(bad: str, place: str) -> None:
    loaded = load(f"[backends.claude]\nwritable = {bad}\n", path="config.toml")
    assert [one.path for one in loaded.warnings] == [f"backends.claude.writable{place}"]
    assert loaded.options[BackendId("claude")].writable == ()


def test_the_settings_of_codex_are_read_where_its_own_variable_says() -> None:
    files = {"/home/me/.codex/config.toml": "usual", "/srv/codex/config.toml": "moved"}
    world = cast(World, SimpleNamespace(home="/home/me", read_text=files.get))

    def read(environ: dict[str, str]) -> dict[str, str]:
        return attempts.texts_of(world, KINDS["codex"], environ)

    assert read({}) == {CONFIG_OF_CODEX: "usual"}
    assert read({"CODEX_HOME": "/srv/codex"}) == {CONFIG_OF_CODEX: "moved"}
    assert read({"CODEX_HOME": "/srv/none"}) == {}


SHELL = 'shell = "confined"\n'


@pytest.mark.parametrize(
    ("more", "role", "shell"),
    [
        ("", None, "own"),
        (f"[defaults]\n{SHELL}", None, "confined"),
        (f"[backends.claude]\n{SHELL}", None, "confined"),
        (f'[defaults]\n{SHELL}[backends.claude]\nshell = "own"\n', None, "own"),
        (f"[roles.builder]\n{SHELL}", "builder", "confined"),
        (f"[roles.builder]\n{SHELL}", None, "own"),
        (f'[roles.builder]\nshell = "own"\n[defaults]\n{SHELL}', "builder", "own"),
        (f'[roles.builder]\nshell = "own"\n[defaults]\n{SHELL}', "Builder-Agent", "own"),
        (f"[roles.builder]\n{SHELL}", "Builder-Agent", "confined"),
        (f"[roles.builder]\n{SHELL}", "nameless", "own"),
        (f"[defaults]\nconfine = false\n{SHELL}", None, "own"),
        (f"[backends.claude]\nconfine = false\n{SHELL}", None, "own"),
    ],
)
def test_the_role_then_the_backend_then_the_defaults_say_whether_commands_ask(
    more: str, role: str | None, shell: str
) -> None:
    policy = settings(more).policy
    assert shell_of(policy, policy.backends[BackendId("claude")], role) == shell


@pytest.mark.parametrize("abi", [0, WHOLE_ABI - 1])
def test_a_kernel_that_does_not_confine_wholly_runs_no_command_unasked(abi: int) -> None:
    policy = settings(f"[defaults]\n{SHELL}", abi=abi).policy
    assert shell_of(policy, policy.backends[BackendId("claude")], None) == "own"


@pytest.mark.parametrize(
    ("more", "abi", "places"),
    [
        (f"[defaults]\n{SHELL}", WHOLE_ABI, []),
        (f"[defaults]\n{SHELL}", 0, ["defaults.shell"]),
        (
            f"[backends.claude]\n{SHELL}[roles.r]\n{SHELL}",
            0,
            ["backends.claude.shell", "roles.r.shell"],
        ),
        (f"[defaults]\nconfine = false\n{SHELL}", WHOLE_ABI, ["defaults.shell"]),
        (f"[backends.claude]\nconfine = false\n{SHELL}", WHOLE_ABI, ["backends.claude.shell"]),
        (f"[defaults]\nconfine = false\n[backends.claude]\nconfine = true\n{SHELL}", WHOLE_ABI, []),
    ],
)
def test_commands_that_nothing_would_hold_are_refused_to_run_unasked(
    more: str, abi: int, places: list[str]
) -> None:
    found = refused_shells(load(more, path="config.toml"), abi=abi)
    assert [one.path for one in found] == places
    assert all("is refused" in one.message for one in found)


ASKS = [
    ("codex", "claude", True),  # the first one holds itself, nothing holds the second
    ("codex", "mine", True),
    ("codex", "codex", False),
    ("claude", "opencode", False),  # nothing holds either of them
    ("other", "claude", False),
]


@pytest.mark.parametrize(("asker", "id", "looser"), ASKS)
def test_without_landlock_what_holds_itself_delegates_to_nothing_that_is_not_held(
    asker: str, id: str, looser: bool
) -> None:
    for permissions in cast(tuple[Permissions, ...], ("read", "workspace")):
        ask = (BackendId(asker), permissions)
        args: Any = (BackendId(id), permissions)
        assert is_looser(settings(abi=0), WORLD, *args, asker=ask) is looser
        assert not is_looser(settings(), WORLD, *args, asker=ask)
        full: Any = (BackendId(asker), "full")
        assert not is_looser(settings(abi=0), WORLD, *args, asker=full)
        assert is_looser(settings(abi=0), WORLD, *args, asker=None) is (id != "codex")


async def test_work_from_inside_codex_is_refused_where_nothing_holds_it(tmp_path: Path) -> None:
    (tmp_path / "programs").mkdir()
    gate = 'cat >/dev/null; while [ ! -e "$PLACE/go" ]; do sleep 0.02; done'
    for name in ("codex", "claude"):
        script(tmp_path / "programs", name, gate.replace("$PLACE", str(tmp_path)))
    environ = {"PATH": f"{tmp_path / 'programs'}:/usr/bin:/bin"}
    config = two(agent("codex", kind="codex"), agent("claude", kind="claude"))
    async with engine_in(tmp_path, config, environ=environ) as engine:
        outer = await engine.delegate(NewWork(prompt="x", backend="codex", failover=False))
        asked: Any = {"parent": outer.delegation, "failover": False}
        inner = await delegate(engine, backend="claude", **asked)
        (tmp_path / "go").touch()
        free = await delegate(engine, backend="claude", failover=False)
        await ended(engine, outer)
    failure = inner.attempts[0].failure
    assert failure is not None
    assert "no Landlock to hold claude to `workspace`, to which codex holds" in failure.evidence
    assert not failure.marks_health
    assert tried(free) != [("claude", "not_configured")]
