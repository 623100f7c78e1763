"""Configurations of other programs: what is taken, what is not, and why."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomlkit

from fallbackd.config.files import load_file
from fallbackd.config.import_hermes import read_hermes
from fallbackd.config.import_jkz import KINDS, read_jkz
from fallbackd.config.importing import Imported, overlay
from fallbackd.config.load import load
from fallbackd.core.routing.looking import Request
from fallbackd.core.routing.resolve import resolve


def hermes(**keys: Any) -> Imported:
    return read_hermes(json.dumps(keys))  # JSON is YAML


def chain(found: Imported) -> list[str]:
    names: list[str] = found.tables.get("chains", {}).get("*", [])
    return names


def whys(found: Imported) -> dict[str, str]:
    return {one.what: one.why for one in found.left}


def entry(provider: str = "openrouter", model: str = "m", **more: str) -> dict[str, str]:
    return {"provider": provider, "model": model, **more}


def usable(found: Imported) -> None:
    """What was made is TOML, and our own reader has nothing to say against its form."""
    assert tomllib.loads(found.toml()) == found.tables
    assert load(found.toml(), path="x.toml").errors == ()


@pytest.mark.parametrize("key", ["fallback_providers", "fallback_model"])
@pytest.mark.parametrize("shape", ["table", "list"])
def test_a_chain_under_any_key_and_of_any_shape_is_taken(key: str, shape: str) -> None:
    found = hermes(**{key: entry() if shape == "table" else [entry(), entry("a", "1")]})
    assert chain(found) == ["openrouter/m", "a/1"][: 1 if shape == "table" else 2]
    usable(found)


def test_the_three_keys_are_one_chain_without_doubles() -> None:
    found = hermes(
        model={"default": "big", "fallback_chain": [entry("groq", "g")]},
        fallback_providers=[entry("OpenRouter", "M"), entry(base_url="http://h/v1/")],
        fallback_model=[entry(), entry(base_url="http://h/v1")],
    )
    assert chain(found) == ["groq/g", "OpenRouter/M", "openrouter/m"]
    assert whys(found)["fallback_model[0]"] == "is the same as fallback_providers[0]"
    assert whys(found)["fallback_model[1]"] == "is the same as fallback_providers[1]"
    assert "model" in whys(found)


@pytest.mark.parametrize(
    ("text", "what", "why"),
    [
        ('{"fallback_model": "just a string"}', "fallback_model", "not a mapping or list"),
        ('{"fallback_model": [7]}', "fallback_model[0]", "not a mapping"),
        ('{"fallback_model": {"provider": "a"}}', "fallback_model", "has no model"),
        ('{"fallback_model": {"model": "a"}}', "fallback_model", "has no provider"),
        (": : :\n- [", "config.yaml", "is not valid YAML"),
        ("[1, 2]", "config.yaml", "holds no table"),
        ("a: !!python/object/apply:os.system [x]", "config.yaml", "is not valid YAML"),
    ],
)
def test_what_cannot_be_taken_is_said(text: str, what: str, why: str) -> None:
    found = read_hermes(text)
    assert chain(found) == []
    assert found.toml() == ""
    assert whys(found)[what].startswith(why)


def test_every_other_key_is_said_to_be_left() -> None:
    found = hermes(
        fallback_model=entry(),
        credential_pool_strategies={"openrouter": "round_robin"},
        custom_providers=[{"name": "corp"}],
        provider_routing={"sort": "price"},
        terminal={"backend": "local"},
    )
    left = whys(found)
    assert "credential_strategy" in left["credential_pool_strategies"]
    assert {"custom_providers", "provider_routing"} <= left.keys()
    assert "terminal" in left
    assert chain(found) == ["openrouter/m"]


def test_the_primary_heads_the_chain() -> None:
    primary = {"default": "anthropic/claude-opus-4.6", "provider": "openrouter", "max_tokens": 9}
    found = hermes(model=primary, fallback_providers=[entry("groq", "g")])
    assert chain(found) == ["openrouter/anthropic/claude-opus-4.6", "groq/g"]
    made = found.tables["backends"]["openrouter/anthropic/claude-opus-4.6"]
    assert made["base_url"] == "https://openrouter.ai/api/v1"
    assert ("model", 'chains."*"[0] = openrouter/anthropic/claude-opus-4.6') in {
        (one.what, one.to) for one in found.taken
    }
    assert set(whys(found)) == {"model.max_tokens"}
    usable(found)


@pytest.mark.parametrize(
    "model", ["big", {"default": "big"}, {"default": "big", "provider": "auto"}]
)
def test_a_primary_whose_provider_is_chosen_later_is_said_to_be_left(model: object) -> None:
    found = hermes(model=model, fallback_model=entry("groq", "g"))
    assert chain(found) == ["groq/g"]
    assert "big" in whys(found)["model"]
    by_address = hermes(model={"default": "big", "base_url": "http://h/v1"})
    assert chain(by_address) == ["custom/big"]


def test_a_primary_that_stands_in_the_chain_as_well_is_one_entry() -> None:
    found = hermes(
        model={"default": "m", "provider": "openrouter"},
        fallback_providers=[entry("groq", "g"), entry()],
    )
    assert chain(found) == ["openrouter/m", "groq/g"]
    assert whys(found) == {"fallback_providers[1]": "is the same as model"}


def test_auxiliary_tasks_become_roles() -> None:
    found = hermes(
        model={"default": "big", "provider": "openrouter"},
        fallback_model=entry("groq", "g"),
        auxiliary={
            "vision": {
                "provider": "gemini",
                "model": "flash",
                "timeout": 30,
                "fallback_chain": [entry("groq", "g"), entry("x", base_url="ftp://x")],
            },
            "compression": {"provider": "main", "model": "small", "api_key": "inline-secret"},
            "search": {"provider": "auto", "model": "", "fallback_chain": [entry("zai", "glm")]},
            "titles": {"provider": "auto", "model": ""},
            "broken": "no table",
        },
    )
    usable(found)
    main = ["openrouter/big", "groq/g"]
    assert chain(found) == main
    assert found.tables["roles"] == {
        "vision": {"kind": "utility", "chain": ["gemini/flash", "groq/g", "openrouter/big"]},
        "compression": {"kind": "utility", "chain": ["openrouter/small", *main]},
        "search": {"kind": "utility", "chain": ["zai/glm", *main]},
    }
    assert set(whys(found)) == {
        "auxiliary.vision.timeout",
        "auxiliary.vision.fallback_chain[1].base_url",
        "auxiliary.compression.api_key",
        "auxiliary.titles",
        "auxiliary.broken",
    }
    assert "inline-secret" not in repr(found)
    policy = load(found.toml(), path="x.toml").policy
    assert policy.roles["vision"].chain[0].backend == "gemini/flash"
    assert policy.roles["vision"].kind == "utility"


def test_the_model_of_subagents_is_a_line_of_the_report() -> None:
    found = hermes(delegation={"model": "small", "provider": "openrouter", "max_iterations": 5})
    left = whys(found)
    assert "write a role" in left["delegation.model"]
    assert "write a role" in left["delegation.provider"]
    assert set(left) == {"delegation.model", "delegation.provider", "delegation.max_iterations"}


@pytest.mark.parametrize("field", ["key_env", "api_key_env"])
def test_a_key_is_taken_by_the_name_of_its_variable_alone(field: str) -> None:
    found = hermes(fallback_providers=[entry("a", api_key="inline-secret", **{field: "KX"})])
    assert found.tables["backends"]["a/m"]["credentials"] == [{"label": "main", "env": "KX"}]
    assert "api_key" in next(name for name in whys(found) if name.endswith("api_key"))
    assert "inline-secret" not in repr(found)
    usable(found)


def test_known_providers_have_an_address_and_a_usual_variable() -> None:
    made = hermes(fallback_model=entry("google", "gemini-3")).tables["backends"]["google/gemini-3"]
    assert made["base_url"].endswith("/openai")
    assert made["credentials"] == [{"label": "main", "env": "GEMINI_API_KEY"}]
    unknown = hermes(fallback_model=entry("nobody"))
    assert "base_url" not in unknown.tables["backends"]["nobody/m"]
    assert "until base_url is set" in whys(unknown)["fallback_model.base_url"]


@pytest.mark.parametrize("provider", ["custom", "openai-codex"])
def test_a_provider_without_a_known_address_keeps_its_place_and_gets_no_key(provider: str) -> None:
    made = hermes(fallback_providers=[entry(provider, "llama", key_env="CORP_KEY"), entry("groq")])
    found = load(made.toml(), path="x.toml")
    chain = found.policy.chains["*"]
    assert [one.backend for one in chain] == [f"{provider}/llama", "groq/m"]
    seen = resolve(chain, Request(), found.policy, {}, {}, now=0.0)
    assert [one.verdict for one in seen.verdicts] == ["not_configured", "chosen"]
    assert "base_url" in str(seen.verdicts[0].reason)
    why = whys(made)["fallback_providers[0].base_url"]
    assert "not_configured" in why
    own = {"backends": {f"{provider}/llama": {"base_url": "https://llm.corp.example/v1"}}}
    fixed = load(tomlkit.dumps(overlay(own, made.tables)), path="x.toml")
    assert fixed.policy.backends[chain[0].backend].lacks is None


@pytest.mark.parametrize(
    ("more", "kind", "mode"),
    [
        ({"api_mode": "anthropic_messages"}, "anthropic-http", None),
        ({"base_url": "https://x.example/anthropic"}, "anthropic-http", None),
        ({"api_mode": "codex_responses"}, "openai-http", "responses"),
        ({"api_mode": "chat_completions"}, "openai-http", "chat_completions"),
        ({}, "openai-http", None),
    ],
)
def test_the_protocol_is_chosen_by_mode_and_address(
    more: dict[str, str], kind: str, mode: str | None
) -> None:
    made = hermes(fallback_model=entry("x", **more)).tables["backends"]["x/m"]
    assert (made["kind"], made.get("api_mode")) == (kind, mode)


@pytest.mark.parametrize("url", ["http://user:hunter2@h/v1", "ftp://h/v1", "h/v1"])
def test_an_address_that_cannot_be_used_takes_its_entry_along(url: str) -> None:
    found = hermes(fallback_model=entry("x", base_url=url))
    assert chain(found) == []
    assert "hunter2" not in repr(found)


API = {"JKZ_API_ENDPOINT": "https://e.example/v1", "JKZ_API_MODEL": "A"}


def roles(**environ: str) -> dict[str, Any]:
    found = read_jkz(environ)
    usable(found)
    made: dict[str, Any] = found.tables.get("roles", {})
    return made


def test_roles_have_their_kind_their_endpoint_and_a_way_back_into_the_session() -> None:
    made = roles(**API, **{f"JKZ_{role.upper().replace('-', '_')}_MODEL": "R" for role in KINDS})
    assert {role: table["kind"] for role, table in made.items()} == KINDS
    assert made["lens"]["chain"] == [
        {"backend": "jkz-api", "tier": "primary", "model": "R"},
        {"backend": "in-session", "tier": "in_session", "model": "sonnet", "effort": "medium"},
    ]
    for role in ("curator", "inspector", "judge", "sentinel"):
        assert made[role]["chain"][-1]["model"] == "opus"
    assert made["judge"]["must_differ_from"] == ["author"]
    assert "must_differ_from" not in made["lens"]


def test_a_name_with_a_hyphen_is_found_by_its_underscore() -> None:
    found = read_jkz(API | {"JKZ_RESEARCH_REVIEWER_MODEL": "R"})
    assert found.tables["roles"]["research-reviewer"]["chain"][0]["model"] == "R"
    assert ("JKZ_RESEARCH_REVIEWER_MODEL", "roles.research-reviewer.chain[0].model") in [
        (one.what, one.to) for one in found.taken
    ]


def test_the_fallback_model_of_a_role_goes_before_the_general_one() -> None:
    found = read_jkz(API | {"JKZ_API_MODEL_FALLBACK": "B", "JKZ_LENS_MODEL_FALLBACK": "C"})
    backends = found.tables["backends"]
    assert backends["jkz-api"]["fallback_model"] == "B"
    assert backends["jkz-lens"] | {"model": "A", "fallback_model": "C"} == backends["jkz-lens"]
    assert found.tables["roles"]["lens"]["chain"][0]["backend"] == "jkz-lens"


def test_who_does_the_work_goes_from_the_near_to_the_far() -> None:
    own = {"JKZ_AUDITOR_ENDPOINT": "https://e1.example/v1"}
    assert roles(**API, **own, JKZ_AUDITOR_BACKEND="codex")["auditor"]["chain"][0] == {
        "backend": "codex",
        "tier": "primary",
    }
    found = read_jkz(API | own)
    name = found.tables["roles"]["auditor"]["chain"][0]["backend"]
    assert found.tables["backends"][name]["base_url"] == "https://e1.example/v1"
    local = roles(JKZ_LENS_MODEL="L")
    assert local["lens"]["chain"][0] == {"backend": "gemini", "tier": "primary", "model": "L"}
    assert "auditor" not in local, "an adversarial role has nobody without an endpoint"


def test_tier_api_needs_an_address_and_a_model() -> None:
    start = "JKZ_LENS_PROVIDER_FALLBACK"
    found = read_jkz(API | {f"{start}_ENDPOINT": "https://r.example/v1"})
    assert whys(found)[f"{start}_ENDPOINT"] == "the model is missing"
    assert [one.get("tier") for one in found.tables["roles"]["lens"]["chain"]] == [
        "primary",
        "in_session",
    ]
    whole = read_jkz(
        API
        | {f"{start}_ENDPOINT": "https://r.example/v1", f"{start}_MODEL": "R"}
        | {f"{start}_API_KEY": "", "JKZ_API_KEY": "a-secret"}
    )
    assert whole.tables["roles"]["lens"]["chain"][1] == {
        "backend": "jkz-lens-fallback",
        "tier": "api",
    }
    backend = whole.tables["backends"]["jkz-lens-fallback"]
    assert backend["credentials"] == [{"label": "jkz", "env": f"{start}_API_KEY"}]
    assert "a-secret" not in repr(whole)


def test_the_general_tier_api_is_for_the_roles_that_have_one() -> None:
    general = {"JKZ_PROVIDER_FALLBACK_ENDPOINT": "https://g.example/v1"}
    general["JKZ_PROVIDER_FALLBACK_MODEL"] = "G"
    made = roles(**API, **general)
    assert {role for role, table in made.items() if len(table["chain"]) == 3} == {
        "lens",
        "curator",
        "inspector",
        "research-reviewer",
    }


def test_models_of_programs_go_to_their_backends() -> None:
    found = read_jkz({"JKZ_CODEX_MODEL": "c", "JKZ_CODEX_MODEL_FALLBACK": "d", "JKZ_X": "1"})
    assert found.tables["backends"]["codex"] == {"model": "c", "fallback_model": "d"}
    assert "JKZ_X" in whys(found)


def test_without_any_variable_there_is_nothing_to_take() -> None:
    assert read_jkz({"HOME": "/x"}) == Imported(source="jkz")


def test_what_the_user_says_himself_goes_before_what_is_imported(tmp_path: Path) -> None:
    imported = {"fallback_providers": [entry(), entry("groq", "g")]}
    (tmp_path / "config.yaml").write_text(json.dumps(imported))
    config = tmp_path / "config.toml"
    config.write_text(
        'import = ["config.yaml"]\n[backends."openrouter/m"]\ncontext_tokens = 5000\n'
    )
    found = load_file(str(config))
    assert found.errors == ()
    assert [one.backend for one in found.policy.chains["*"]] == ["openrouter/m", "groq/g"]
    backend = found.policy.backends["openrouter/m"]  # type: ignore[index]
    assert (backend.context_tokens, backend.model) == (5000, "m")
    (tmp_path / "config.yaml").write_text("fallback_model: 7")
    again = load_file(str(config))
    assert again.digest != found.digest
    assert "not a mapping or list" in str(again.warnings)


def test_variables_are_imported_by_name(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('import = ["JKZ_*"]\n')
    found = load_file(str(config), API)
    assert [one.backend for one in found.policy.roles["judge"].chain][:1] == ["jkz-api"]
    assert "judge" not in load_file(str(config), {}).policy.roles


def test_a_file_that_is_not_there_is_a_warning(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('import = ["gone/config.yaml"]\n')
    found = load_file(str(config))
    assert found.errors == ()
    assert "there is no such file" in str(found.warnings)


def test_an_overlay_is_made_key_by_key() -> None:
    under = {"a": {"x": 1, "y": [1]}, "b": 1}
    assert overlay({"a": {"y": [2]}, "c": 3}, under) == {"a": {"x": 1, "y": [2]}, "b": 1, "c": 3}


@pytest.mark.parametrize(
    ("provider", "written", "model"),
    [
        ("openrouter", "openrouter/anthropic/claude-sonnet-4.6", "anthropic/claude-sonnet-4.6"),
        ("openrouter", "openrouter/auto", "openrouter/auto"),
        ("openrouter", "anthropic/claude-sonnet-4.6", "anthropic/claude-sonnet-4.6"),
        ("Groq", "groq/llama-3.3-70b-versatile", "llama-3.3-70b-versatile"),
        ("groq", "openai/gpt-oss-120b", "openai/gpt-oss-120b"),
    ],
)
def test_a_model_is_named_as_its_provider_names_it(provider: str, written: str, model: str) -> None:
    found = hermes(model={"provider": provider, "default": written})
    (backend,) = found.tables["backends"].values()
    assert backend["model"] == model


def test_the_length_of_a_context_is_taken() -> None:
    found = hermes(
        model={"provider": "groq", "default": "m", "context_length": 131072},
        fallback_model={"provider": "groq", "model": "n", "context_length": "long"},
        auxiliary={"vision": {"provider": "main", "model": "v"}},
    )
    sizes = {one["model"]: one.get("context_tokens") for one in found.tables["backends"].values()}
    assert sizes == {"m": 131072, "n": None, "v": None}
    assert whys(found)["fallback_model.context_length"] == "is not a number of tokens"
    usable(found)
