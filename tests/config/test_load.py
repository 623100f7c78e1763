"""The text of the configuration file becomes a policy; what is wrong is said, the rest lives."""

import pytest
from tests.support.config_file import as_toml

from fallbackd.backends import KINDS
from fallbackd.classify.classifier import classify
from fallbackd.config import profiles
from fallbackd.config.load import Loaded, load
from fallbackd.core.ids import BackendId
from fallbackd.core.policy import implicit_backend
from fallbackd.core.protocol import Evidence, Work
from fallbackd.core.reasons import Reason
from fallbackd.core.routing.candidates import candidates_for
from fallbackd.core.routing.looking import Request
from fallbackd.core.routing.resolve import resolve


def loaded(text: str | None) -> Loaded:
    return load(text, path="/etc/fallbackd/config.toml")


def test_without_a_file_the_built_in_profiles_and_chains_are_in_force() -> None:
    built_in = loaded(None)
    assert (built_in.errors, built_in.warnings) == ((), ())
    assert list(built_in.policy.backends) == [
        "opencode",
        "codex",
        "gemini",
        "numasec",
        "hermes-api",
        "claude",
        "agy",
        "in-session",
    ]
    assert built_in.options.keys() == built_in.policy.backends.keys()
    assert {
        name: [entry.backend for entry in chain] for name, chain in built_in.policy.chains.items()
    } == {
        "*": ["claude", "codex", "opencode", "gemini", "numasec", "agy"],
        "claude": ["codex", "opencode", "gemini"],
        "codex": ["opencode", "claude", "gemini"],
        "opencode": ["codex", "claude", "gemini"],
        "gemini": ["opencode", "codex", "claude"],
        "numasec": ["opencode", "codex", "claude"],
        "hermes-api": ["opencode", "codex", "claude", "gemini"],
    }


@pytest.mark.parametrize(
    ("text", "environ"),
    [(None, {"HERMES_API_KEY": "set"}), ("[backends.hermes-api]", {})],
)
def test_a_hermes_server_has_its_place_where_it_is_set_up(
    text: str | None, environ: dict[str, str]
) -> None:
    policy = load(text, path="/etc/fallbackd/config.toml", environ=environ).policy
    assert policy.backends[BackendId("hermes-api")].lacks is None
    chains = {name: [entry.backend for entry in chain] for name, chain in policy.chains.items()}
    assert chains["codex"] == ["opencode", "hermes-api", "claude", "gemini"]
    assert chains["opencode"] == ["codex", "hermes-api", "claude", "gemini"]
    assert chains["gemini"] == ["opencode", "codex", "hermes-api", "claude"]
    assert chains["numasec"] == ["opencode", "codex", "hermes-api", "claude"]
    assert chains["claude"] == ["codex", "opencode", "gemini"]
    assert chains["*"] == ["claude", "codex", "opencode", "gemini", "numasec", "agy", "hermes-api"]


@pytest.mark.parametrize("environ", [{}, {"HERMES_API_KEY": " "}, {"API_SERVER_KEY": "other"}])
def test_a_hermes_server_that_nobody_has_set_up_is_not_configured(environ: dict[str, str]) -> None:
    for text in (None, "[backends.codex]", "not = = toml"):
        found = load(text, path="/etc/fallbackd/config.toml", environ=environ)
        lacks = found.policy.backends[BackendId("hermes-api")].lacks
        assert "[backends.hermes-api]" in (lacks or "")
        assert found.options[BackendId("hermes-api")].lacks == lacks


def test_agents_of_the_file_are_behind_the_built_in_ones_where_a_caller_names_none() -> None:
    text = (
        '[backends.mine]\nkind = "generic-cli"\ncommand = ["mine"]\n'
        '[backends.second-codex]\nkind = "codex"\n'
        '[backends.api]\nkind = "openai-http"\nmodel = "m"'
    )
    star = [entry.backend for entry in loaded(text).policy.chains["*"]]
    assert star[4:] == ["numasec", "agy", "mine", "second-codex"]


def test_a_known_cap_is_shown_and_only_a_configured_one_is_enforced() -> None:
    built_in = loaded(None).policy.backends
    shown = {id: (b.shown_cap, b.cap_unit) for id, b in built_in.items() if b.shown_cap}
    assert shown == {
        "opencode": (100, "requests"),
        "codex": (50, "requests"),
        "gemini": (1_000_000, "tokens"),
        "numasec": (60, "requests"),
        "hermes-api": (200, "requests"),
    }
    assert {backend.hourly_cap for backend in built_in.values()} == {None}
    capped = loaded("[backends.codex]\nhourly_cap = 50").policy.backends[BackendId("codex")]
    assert capped.hourly_cap == 50


def test_text_that_is_no_toml_is_an_error_with_its_place() -> None:
    broken = loaded("[defaults]\nsettle_s = = 3")
    assert [problem.path for problem in broken.errors] == ["/etc/fallbackd/config.toml"]
    assert "line 2, column 12" in broken.errors[0].message
    assert broken.policy == loaded(None).policy


def test_a_table_of_a_profile_overlays_only_what_it_names() -> None:
    plain = loaded(None).policy.backends[BackendId("codex")]
    own = loaded('[backends.codex]\nquota = "chatgpt-plan"').policy.backends[BackendId("codex")]
    assert own.quota == "chatgpt-plan"
    assert (own.kind, own.context_tokens, own.scores) == (
        plain.kind,
        plain.context_tokens,
        plain.scores,
    )


def test_windows_are_taken_per_reason_and_a_longer_one_lifts_its_own_ceiling() -> None:
    reasons = loaded("[policy.rate_limit]\nwindow_s = 7200\ncooldown_s = 0").policy.reasons
    assert (reasons[Reason.RATE_LIMIT].window_s, reasons[Reason.RATE_LIMIT].max_window_s) == (
        7200,
        7200,
    )
    assert reasons[Reason.RATE_LIMIT].cooldown_s == 0
    assert reasons[Reason.CRASH] == loaded(None).policy.reasons[Reason.CRASH]


def test_a_second_account_of_an_agent_is_what_the_first_one_is() -> None:
    text = """
        [backends.codex-work]
        kind = "codex"
        context_tokens = 400000
        env = { CODEX_HOME = "/home/me/.codex-work" }
        """
    found = loaded(text).policy.backends
    first, second = found[profiles.CODEX], found[BackendId("codex-work")]
    assert (second.family, second.cost, second.shown_cap) == ("gpt", "subscription", 50)
    assert second.scores == first.scores
    assert (second.context_tokens, second.name) == (400_000, "")


@pytest.mark.parametrize(
    "table",
    [
        'kind = "claude"\nenv = { ANTHROPIC_BASE_URL = "http://127.0.0.1:1" }',
        'kind = "opencode"\nmodel = "openai/gpt-5"',
        'kind = "openai-http"\nmodel = "m"',
    ],
)
def test_what_asks_another_provider_or_model_is_not_what_its_agent_is(table: str) -> None:
    backend = loaded(f"[backends.other]\n{table}\n").policy.backends[BackendId("other")]
    assert (backend.family, backend.context_tokens, backend.scores) == (None, None, {})


def test_a_new_backend_has_exactly_what_its_table_says() -> None:
    found = loaded("""
        [backends.acme]
        kind = "generic-cli"
        command = ["acme", "{cwd}"]
        env = { MODE = "quiet" }
        allow_env = ["PROFILE"]
        output = "jsonl"
        success_exit_codes = [0, 3]
        timeout_s = 60
        retries = 0
        model = "m"
        prompt_in_argv = true
    """)
    assert found.warnings == ()
    backend = found.policy.backends[BackendId("acme")]
    options = found.options[BackendId("acme")]
    assert (backend.kind, backend.timeout_s, backend.retries, backend.model) == (
        "generic-cli",
        60,
        0,
        "m",
    )
    assert (backend.allow_env, backend.plain_output, backend.implicit) == (
        ("PROFILE",),
        False,
        False,
    )
    assert (options.command, options.env, options.success_exit_codes) == (
        ("acme", "{cwd}"),
        {"MODE": "quiet"},
        (0, 3),
    )
    assert (options.model, options.output, options.prompt_in_argv) == ("m", "jsonl", True)
    assert list(found.policy.backends)[-1] == "acme"


def test_an_http_backend_knows_its_host_and_names_its_key() -> None:
    found = loaded("""
        [backends.hermes-api]
        base_url = "https://api.example.com/v1"
        credentials = [{ label = "work", env = "HERMES_API_KEY" }]
        [backends.local]
        kind = "openai-http"
        base_url = "http://[::1]:11434/v1"
    """)
    assert found.warnings == ()
    remote = found.policy.backends[BackendId("hermes-api")]
    assert (remote.provider, remote.loopback, remote.credentials) == (
        "api.example.com",
        False,
        ("work",),
    )
    (key,) = found.options[BackendId("hermes-api")].credentials
    assert (key.label, key.source, key.name) == ("work", "env", "HERMES_API_KEY")
    local = found.policy.backends[BackendId("local")]
    assert (local.kind, local.provider, local.loopback, local.plain_output) == (
        "openai-http",
        "[::1]:11434",
        True,
        False,
    )


def test_a_model_that_a_chain_names_is_served_by_opencode() -> None:
    found = loaded("""
        [backends.opencode]
        serve = false
        stall_s = 77
        [roles.build]
        chain = ["openrouter/google/gemini-3-pro", "codex"]
    """)
    assert found.warnings == ()
    id = BackendId("openrouter/google/gemini-3-pro")
    backend = found.policy.backends[id]
    assert (backend.kind, backend.implicit, backend.model) == ("opencode", True, id)
    assert (backend.provider, backend.stall_s) == ("openrouter", 77)
    assert (found.options[id].model, found.options[id].serve) == (id, False)


def test_a_role_may_name_a_chain_and_says_what_it_hops_on() -> None:
    found = loaded("""
        [chains]
        strong = ["codex", "claude"]
        [roles.build]
        chain = "strong"
        fallback_on = ["rate_limit", "overloaded"]
        max_fallback_depth = 2
        idle_s = 60
        return_to_better = { policy = "new_session" }
    """)
    assert found.warnings == ()
    role = found.policy.roles["build"]
    assert [entry.backend for entry in role.chain] == ["codex", "claude"]
    assert role.fallback_on == frozenset({Reason.RATE_LIMIT, Reason.OVERLOADED})
    assert (role.max_fallback_depth, role.idle_s, role.return_policy) == (2, 60, "new_session")


def test_a_wall_of_a_role_is_that_of_each_candidate_that_names_none() -> None:
    found = loaded("""
        [roles.build]
        chain = [{ backend = "codex", at_percent = 70 }, "claude"]
        at_percent = 90
        [roles.free]
        at_percent = 50
    """)
    assert found.warnings == ()
    for role, asked, walls in (("build", None, {70, 90}), ("free", BackendId("codex"), {50})):
        candidates = candidates_for(found.policy, backend=asked, role=role, chain=None)
        assert {one.at_percent for one in candidates} == walls
    assert loaded(as_toml(found)).policy.roles == found.policy.roles


def test_signatures_go_to_their_kind_or_to_all() -> None:
    found = loaded("""
        [[signatures]]
        id = "acme-limit"
        kind = "generic"
        stream = "stderr"
        pattern = "ACME limit"
        reason = "usage_limit"
        [[signatures]]
        id = "proxy"
        pattern = "corporate proxy"
        reason = "network"
    """)
    assert found.warnings == ()
    assert [rule.id for rule in found.rules_for("generic-cli")] == ["acme-limit", "proxy"]
    assert [rule.id for rule in found.rules_for("codex")] == ["proxy"]
    assert found.rules_for("generic-cli")[0].reason is Reason.USAGE_LIMIT


def test_a_signature_of_the_user_is_heard_by_the_classifier() -> None:
    found = loaded("""
        [[signatures]]
        id = "acme-limit"
        stream = "stderr"
        pattern = "ACME limit reached"
        reason = "usage_limit"
    """)
    evidence = Evidence(text="[acme] sorry: ACME limit reached", stream="stderr", exit_code=1)
    failure = classify(evidence, found.rules_for("generic-cli"), now=0.0)
    assert failure is not None
    assert (failure.reason, failure.signature) == (Reason.USAGE_LIMIT, "acme-limit")


def test_places_of_other_files_are_taken_from_the_file_that_names_them() -> None:
    found = loaded("""
        import = ["voice/voice-platform-health.json", "~/v/voice-platform-health.json"]
        export_voice_health = "out.json"
    """)
    assert found.imports == (
        "/etc/fallbackd/voice/voice-platform-health.json",
        "~/v/voice-platform-health.json",
    )
    assert found.export_voice == "/etc/fallbackd/out.json"


def test_deep_nesting_and_absurd_numbers_are_errors_not_exceptions() -> None:
    assert "nested too deeply" in loaded("a = " + "[" * 5000 + "]" * 5000).errors[0].message
    assert loaded("a = " + "9" * 5000).errors
    assert loaded("\ufeff[defaults]\nsettle_s = 1").policy.defaults.settle_s == 1


def test_only_ids_of_the_form_provider_model_stand_for_a_backend() -> None:
    made = implicit_backend("openai/gpt-5")
    assert made is not None
    assert (made.model, made.provider, made.kind) == ("openai/gpt-5", "openai", "opencode")
    for id in ("codex", "nobody", "/x", "a/", "a//b", "a b/c", "../../x", "a/\n", "x" * 301):
        assert implicit_backend(id) is None


def test_an_http_backend_without_an_address_is_at_its_vendor() -> None:
    found = loaded("""
        [backends.mine]
        kind = "anthropic-http"
        model = "claude-sonnet-4-5"
        [backends.plan]
        kind = "openai-http"
        provider = "openai-codex"
        base_url = "https://gateway.example/v1"
        connect_timeout_s = 3
        tls_ca_file = "~/ca.pem"
    """)
    assert found.warnings == ()
    assert found.policy.backends[BackendId("mine")].provider == "api.anthropic.com"
    plan = found.options[BackendId("plan")]
    assert (plan.api_mode, plan.connect_timeout_s, plan.tls_ca_file) == (
        "responses",
        3.0,
        "~/ca.pem",
    )


KEYED = 'credentials = [{ label = "main", env = "CORP_KEY" }]'


@pytest.mark.parametrize(
    ("table", "cure"),
    [
        ('kind = "openai-http"\nbase_url = "htps://llm.corp.example/v1"', "base_url"),
        ('kind = "openai-http"\nbase_url = ""', "base_url"),
        ('kind = "openai-http"\nbase_url = 7', "base_url"),
        ('kind = "openai-http"\nbase_url = "https://u:p@llm.corp.example/v1"', "base_url"),
        ('kind = "openai-http"\nbase_ulr = "https://llm.corp.example/v1"', "base_ulr"),
        ('kind = "anthropic-http"\nbaseURL = "https://llm.corp.example"', "baseURL"),
        ('kind = "openrouter-http"\nendpoint = "https://llm.corp.example"', "endpoint"),
        ('kind = "openai-http"\nprovider = "custom"', "provider"),
        ('kind = "openai-http"\nprovider = "anthropic"', "provider"),
    ],
)
def test_a_key_is_not_for_the_usual_host_where_another_was_meant(table: str, cure: str) -> None:
    found = loaded(f'[backends.corp]\n{table}\n{KEYED}\n[chains]\n"*" = ["corp", "claude"]')
    corp = BackendId("corp")
    backend, options = found.policy.backends[corp], found.options[corp]
    assert backend.lacks is not None
    assert cure in backend.lacks
    assert "set backends.corp.base_url" in backend.lacks
    assert [one.backend for one in found.policy.chains["*"]] == ["corp", "claude"]
    assert backend.provider in (None, "custom", "anthropic")
    assert any(one.message.startswith(backend.lacks) for one in found.warnings)
    kind = KINDS[backend.kind]
    asks = Work(prompt="x", prompt_path="", cwd="/", scratch="/")
    with pytest.raises(ValueError, match="base_url"):
        kind.start(asks, options)
    assert kind.models is not None
    with pytest.raises(ValueError, match="base_url"):
        kind.models(asks, options)
    seen = resolve(found.policy.chains["*"], Request(), found.policy, {}, {}, now=0.0)
    assert [(one.backend, one.verdict) for one in seen.verdicts] == [
        ("corp", "not_configured"),
        ("claude", "chosen"),
    ]
    again = loaded(as_toml(found))
    assert not again.policy.backends[corp].enabled


@pytest.mark.parametrize("provider", ["", 'provider = "OpenAI"', 'provider = "api.openai.com"'])
def test_the_usual_host_is_used_where_nobody_else_was_meant(provider: str) -> None:
    text = f'[backends.mine]\nkind = "openai-http"\nmodel = "m"\n{provider}\n{KEYED}'
    found = loaded(text)
    assert found.warnings == ()
    assert found.policy.backends[BackendId("mine")].lacks is None


def test_an_api_that_shows_nothing_before_its_answer_is_plain() -> None:
    found = loaded("""
        [backends.hermes-api]
        base_url = "http://127.0.0.1:8088/api/chat"
    """)
    assert found.policy.backends[BackendId("hermes-api")].plain_output


def test_the_client_for_the_shared_server_is_the_one_of_the_extra() -> None:
    import tomllib

    from tests.support.daemon import ROOT

    from fallbackd.config.tables import INSTALL, REDIS

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert extras["optional-dependencies"]["share"] == [REDIS]
    assert INSTALL.endswith(f"'{REDIS}'")
