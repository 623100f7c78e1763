"""The text of the configuration file becomes a policy; what is wrong is said, the rest lives."""

from fallbackd.config.load import Loaded, load
from fallbackd.core.failures import Reason
from fallbackd.core.ids import BackendId


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
    ]
    assert built_in.options.keys() == built_in.policy.backends.keys()
    assert {
        name: [entry.backend for entry in chain] for name, chain in built_in.policy.chains.items()
    } == {
        "codex": ["opencode", "hermes-api", "gemini"],
        "opencode": ["codex", "hermes-api", "gemini"],
        "numasec": ["opencode", "codex", "hermes-api"],
        "gemini": ["opencode", "codex", "hermes-api"],
        "hermes-api": ["opencode", "codex", "gemini"],
    }


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
