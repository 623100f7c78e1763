"""What is in force can be shown, read back as a file, and described by a schema."""

from pathlib import Path

import msgspec
import pytest
from tests.support.config_file import as_toml

from fallbackd.config.load import load
from fallbackd.config.schema import File, json_schema
from fallbackd.config.show import as_dict
from fallbackd.core.ids import BackendId

EXAMPLE = Path(__file__).parents[2] / "contrib" / "config" / "config.toml"


def test_the_example_loads_without_a_warning() -> None:
    found = load(EXAMPLE.read_text(), path=str(EXAMPLE))
    assert found.errors == ()
    assert found.warnings == ()


def test_the_example_with_all_its_comments_switched_on_loads_without_a_warning() -> None:
    text = EXAMPLE.read_text()
    for key in ("import", "export_voice_health", "allowed_roots", "command"):
        text = text.replace(f"#{key} = ", f"{key} = ", 1)
    found = load(text, path=str(EXAMPLE))
    assert found.errors == ()
    assert found.warnings == ()
    assert found.imports
    assert found.export_voice
    assert found.policy.defaults.allowed_roots


def test_the_example_agrees_with_the_schema() -> None:
    raw = load(EXAMPLE.read_text(), path=str(EXAMPLE)).raw
    assert isinstance(msgspec.convert(raw, File), File)


@pytest.mark.parametrize("text", [None, EXAMPLE.read_text()])
def test_what_is_shown_as_toml_gives_the_same_policy_again(text: str | None) -> None:
    first = load(text, path=str(EXAMPLE))
    again = load(as_toml(first), path=str(EXAMPLE))
    assert again.errors == ()
    assert again.warnings == ()
    assert again.policy == first.policy
    assert again.options == first.options
    assert again.signatures == first.signatures
    assert as_dict(again) == as_dict(first)


def test_values_of_variables_and_headers_are_never_shown() -> None:
    found = load(
        '[backends.codex]\nenv = { A = "hunter2" }\nheaders = { X-Team = "hunter2" }\n'
        'credentials = [{ label = "work", env = "CODEX_KEY" }]',
        path="config.toml",
    )
    shown = as_dict(found)["backends"]["codex"]
    assert (shown["env"], shown["headers"]) == ({"A": "(set)"}, {"X-Team": "(set)"})
    assert shown["credentials"] == [{"label": "work", "env": "CODEX_KEY"}]
    assert "hunter2" not in as_toml(found)


def test_odd_names_survive_being_shown() -> None:
    text = '[chains]\n"a \\"b\\" \\\\ é" = ["codex"]\n[roles."x y.z"]\nchain = ["codex"]'
    found = load(text, path="config.toml")
    again = load(as_toml(found), path="config.toml")
    assert again.policy == found.policy
    assert 'a "b" \\ é' in again.policy.chains


def test_the_schema_knows_the_bounds() -> None:
    tables = json_schema()["$defs"]
    window = tables["ReasonTable"]["properties"]["window_s"]["anyOf"]
    assert {"type": "number", "minimum": 10.0, "maximum": 604800.0} in window


COMMAND = """
[backends.mine]
kind = "generic-cli"
command = ["agent", "--api-key=sk-proj-abcdef1234567890ABCDEF", "--token", "ab12cd34ef56",
           "--max-tokens", "200000", "--max-output-tokens=400000", "--verbose", "run1234567"]
"""


def test_a_secret_in_a_command_is_warned_of_and_never_shown() -> None:
    loaded = load(COMMAND, path="config.toml")
    assert [one.path for one in loaded.warnings] == [
        "backends.mine.command[1]",
        "backends.mine.command[3]",
    ]
    shown = as_dict(loaded)["backends"]["mine"]["command"]
    assert shown[0] == "agent"
    assert shown[4:] == [
        "--max-tokens",
        "200000",
        "--max-output-tokens=400000",
        "--verbose",
        "run1234567",
    ]
    for text in (str(shown), as_toml(loaded), str(loaded.warnings)):
        assert "abcdef1234567890" not in text
        assert "ab12cd34ef56" not in text
    options = loaded.options[BackendId("mine")]
    assert options.command[3] == "ab12cd34ef56"  # what is run is what was written
