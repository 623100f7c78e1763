"""Whatever is written for a known key: no exception, and what is in force keeps its bounds."""

from datetime import date, datetime, time
from typing import Any

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.config_file import as_toml

from fallbackd.config import load as loading
from fallbackd.config.schema import (
    AuthorityTable,
    BackendTable,
    EntryTable,
    File,
    Gateway,
    Interactive,
    Notify,
    OpencodeTable,
    Quota,
    ReasonTable,
    RoleTable,
    ServerTable,
    ShareTable,
    SignatureTable,
)
from fallbackd.config.show import as_dict
from fallbackd.core.policy import Defaults, Handoff, Price
from fallbackd.core.reasons import Reason

WORDS = st.sampled_from(
    ["codex", "*", "generic-cli", "openai/gpt-5", "in-session", "rate_limit", "stderr", "(a", ""]
)
ODD: list[Any] = [
    datetime(2026, 1, 1),
    date(2026, 1, 1),
    time(1, 2),
    [],
    {},
    ["codex"],
    ["codex", 3, {"backend": "codex"}],
    [[["deep"]]],
    {"backend": "gemini", "model": "m", "tier": "api"},
    {"label": "a", "env": "A_KEY"},
    [{"label": "a", "env": "A_KEY"}, {"label": "a", "env": "B_KEY"}],
    {"policy": "new_session", "n": 3},
    {"A": "b", "C": 3},
    10**400,
]
VALUES = st.sampled_from(ODD) | WORDS | st.booleans() | st.integers() | st.floats() | st.text()


def table(shape: type[msgspec.Struct], **more: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    keys = {one.encode_name: VALUES for one in msgspec.structs.fields(shape)} | more
    return st.fixed_dictionaries({}, optional={**keys, "unknown": VALUES}) | VALUES


ENTRIES = st.lists(table(EntryTable, backend=WORDS | VALUES), max_size=3) | VALUES
NAMES = WORDS | st.text(max_size=10)
FILES = st.fixed_dictionaries(
    {},
    optional={
        "import": VALUES,
        "export_voice_health": VALUES,
        "defaults": table(Defaults),
        "policy": st.dictionaries(
            st.sampled_from([reason.value for reason in Reason]) | NAMES,
            table(ReasonTable),
            max_size=3,
        ),
        "backends": st.dictionaries(
            NAMES, table(BackendTable, kind=WORDS, command=st.lists(st.text())), max_size=3
        ),
        "chains": st.dictionaries(NAMES, ENTRIES, max_size=3),
        "roles": st.dictionaries(NAMES, table(RoleTable, chain=ENTRIES), max_size=3),
        "authority": st.dictionaries(NAMES, table(AuthorityTable), max_size=3),
        "signatures": st.lists(
            table(SignatureTable, pattern=st.text(), reason=st.just("auth")), max_size=3
        ),
        "opencode": table(
            OpencodeTable,
            servers=st.lists(table(ServerTable, url=st.just("http://127.0.0.1:4096")), max_size=2),
        ),
        "gateway": table(Gateway),
        "interactive": table(Interactive),
        "quota": table(Quota),
        "handoff": table(Handoff),
        "prices": st.dictionaries(NAMES, table(Price), max_size=3),
        "share": table(ShareTable, group=st.text(), url_env=st.text()),
        "notify": table(Notify, command=st.lists(st.text(), max_size=3), url=st.text()),
        "other": VALUES,
    },
)


@settings(max_examples=80)
@given(FILES)
def test_arbitrary_values_in_known_keys_never_raise(raw: dict[str, Any]) -> None:
    found = loading.interpret(raw, path="/etc/fallbackd/config.toml")
    assert found.errors == ()
    defaults = found.policy.defaults
    assert msgspec.convert(msgspec.to_builtins(defaults), Defaults) == defaults
    for policy in found.policy.reasons.values():
        assert 10 <= policy.window_s <= policy.max_window_s <= 604_800
    for name, chain in found.policy.chains.items():
        assert all(entry.backend in found.policy.backends for entry in chain), name
    assert found.options.keys() == found.policy.backends.keys()
    for problem in found.warnings:
        assert problem.message.endswith(".") or problem.message.endswith("?")
        assert str(problem).isprintable()
    assert msgspec.json.decode(msgspec.json.encode(as_dict(found))) is not None


@settings(max_examples=80)
@given(FILES)
@example({"backends": {"work": {"kind": "codex", "base_url": datetime(2026, 1, 1)}}})
@example({"backends": {"work": {"kind": "codex", "base_url": "no address"}}})
def test_what_is_shown_can_be_read_back(raw: dict[str, Any]) -> None:
    first = loading.interpret(raw, path="/etc/fallbackd/config.toml")
    again = loading.load(as_toml(first), path="/etc/fallbackd/config.toml")
    assert again.errors == ()
    assert again.policy == first.policy


@settings(max_examples=80)
@given(st.text())
def test_arbitrary_text_never_raises(text: str) -> None:
    found = loading.load(text, path="config.toml")
    assert found.policy.backends


def test_every_top_level_key_is_exercised() -> None:
    keys = {one.encode_name for one in msgspec.structs.fields(File)}
    assert keys == {
        "import",
        "export_voice_health",
        "defaults",
        "policy",
        "backends",
        "chains",
        "roles",
        "authority",
        "signatures",
        "gateway",
        "interactive",
        "quota",
        "handoff",
        "prices",
        "opencode",
        "share",
        "notify",
    }
