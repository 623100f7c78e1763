"""What is written into the settings of programs for the gateway, and taken out again."""

import json
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fallbackd_client.gateway import TOOLS, Gateway, logs_in_by_key
from fallbackd_client.settings.editing import Command, Part, edits
from fallbackd_client.settings.jsonc import Unreadable

TOKEN = Command("/opt/fallbackd-client", ["gateway", "token"])
URL = "http://127.0.0.1:41411"


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gateway, "token_text", lambda _: "the-token")


def gateway(port: int = 41411) -> Gateway:
    return Gateway(port, token=TOKEN, token_file="/state/gateway.token", models=["team"])


def part_of(tool: str, port: int = 41411) -> Part:
    return TOOLS[tool].part("settings", gateway(port))


def load(tool: str, text: str) -> dict[str, Any]:
    if tool == "gemini":
        return dict(one.split("=", 1) for one in text.splitlines() if not one.startswith("#"))
    found: dict[str, Any] = tomllib.loads(text) if tool == "codex" else json.loads(text)
    return found


IN_HOME = os.path.relpath("/state/gateway.token", Path.home())
PLACES = {
    "claude": {
        "env": {"ANTHROPIC_BASE_URL": URL},
        "apiKeyHelper": "/opt/fallbackd-client gateway token",
    },
    "codex": {
        "model_provider": "fallbackd",
        "model_providers": {
            "fallbackd": {
                "name": "fallbackd",
                "base_url": f"{URL}/v1",
                "wire_api": "responses",
                "auth": {"command": "/opt/fallbackd-client", "args": ["gateway", "token"]},
            }
        },
    },
    "gemini": {"GOOGLE_GEMINI_BASE_URL": URL, "GEMINI_API_KEY": "the-token"},
    "opencode": {
        "provider": {
            "fallbackd": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "fallbackd",
                "options": {
                    "baseURL": f"{URL}/v1",
                    "apiKey": f"{{file:~/{IN_HOME}{{env:FALLBACKD_INSTEAD_OF_FILE}}}}",
                },
                "models": {"team": {}},
            }
        }
    },
}
KEPT = {
    "claude": '{\n  // mine\n  "model": "opus",\n  "env": {"A": "b"}\n}\n',
    "codex": '# mine\nmodel = "gpt-5"\n\n[model_providers.other]\nname = "other"\n',
    "gemini": "# mine\nGEMINI_MODEL=m\n",
    "opencode": '{\n  // mine\n  "provider": {"other": {}},\n  "model": "other/m"\n}\n',
}
TAKEN = {
    "claude": [
        '{"env": {"ANTHROPIC_BASE_URL": "https://corp.example"}}',
        '{"apiKeyHelper": "vault read"}',
        '{"env": {"ANTHROPIC_AUTH_TOKEN": "x"}}',
    ],
    "codex": [
        'model_provider = "corp"\n',
        '[model_providers.fallbackd]\nname = "mine"\n',
        "model_providers = {}\n",
    ],
    "gemini": ["GEMINI_API_KEY=mine\n", "export GOOGLE_GEMINI_BASE_URL=https://corp.example\n"],
    "opencode": ['{"provider": {"fallbackd": {"options": {"baseURL": "https://corp.example"}}}}'],
}


@pytest.mark.parametrize("tool", TOOLS)
def test_an_empty_file_gets_what_the_program_needs(tool: str) -> None:
    made = part_of(tool).put("")
    assert load(tool, made) == PLACES[tool]
    assert TOOLS[tool].port(made) == 41411


@pytest.mark.parametrize("tool", TOOLS)
def test_what_is_there_is_kept_and_comes_back_with_undo(tool: str) -> None:
    part = part_of(tool)
    made = part.put(KEPT[tool])
    assert "mine" in made
    assert part.put(made) == made
    assert part.take(made) == KEPT[tool]
    assert part.take(KEPT[tool]) == KEPT[tool]


@pytest.mark.parametrize("tool", TOOLS)
def test_another_port_takes_the_place_of_the_first(tool: str) -> None:
    made = part_of(tool, 5000).put(part_of(tool).put(KEPT[tool]))
    assert TOOLS[tool].port(made) == 5000
    assert part_of(tool).take(made) == KEPT[tool]


@pytest.mark.parametrize(
    ("tool", "text"), [(tool, text) for tool, texts in TAKEN.items() for text in texts]
)
def test_what_a_person_has_written_there_is_not_replaced(tool: str, text: str) -> None:
    with pytest.raises(Unreadable):
        part_of(tool).put(text)
    assert part_of(tool).take(text) == text
    assert TOOLS[tool].port(text) is None


def test_tables_that_codex_has_written_between_ours_stay() -> None:
    part = part_of("codex")
    theirs = (
        '[projects."/home/me/app"]\ntrust_level = "trusted"\n\n[mcp_servers.mine]\ncommand = "x"\n'
    )
    end = "# fallbackd gateway table: end\n"
    made = part.put(KEPT["codex"]).replace(end, f"\n{theirs}{end}")
    made = made.replace('"fallbackd"\n# fall', '"fallbackd"\napproval_policy = "never"\n# fall', 1)
    made = made.replace('wire_api = "r', 'request_max_retries = 9\nwire_api = "r')
    again = load("codex", part_of("codex", 5000).put(made))
    wanted = load("codex", made)
    wanted["model_providers"]["fallbackd"]["base_url"] = "http://127.0.0.1:5000/v1"
    assert again == wanted
    left = 'approval_policy = "never"\n\n' + KEPT["codex"] + "\n" + theirs
    assert part.take(made) == left
    assert part.lost(made) == ["request_max_retries"]


def test_what_a_person_has_added_to_the_provider_of_opencode_stays() -> None:
    def written(*models: str, port: int = 41411) -> Part:
        asked = Gateway(port, token=TOKEN, token_file="/state/gateway.token", models=models)
        return TOOLS["opencode"].part("settings", asked)

    found = load("opencode", written("team", "old", "slow").put(""))
    own = found["provider"]["fallbackd"]
    own["name"] = "Mine"
    own["options"]["timeout"] = 600_000
    own["models"]["team"] = own["models"]["old"] = {"limit": {"context": 200_000}}
    part = written("team", "new", port=5000)
    made = part.put(json.dumps(found, indent=2))
    own["options"]["baseURL"] = "http://127.0.0.1:5000/v1"
    own["models"]["new"] = own["models"].pop("slow")
    assert load("opencode", made) == found
    assert part.put(made) == made


def test_the_provider_of_opencode_loses_and_gets_back_what_the_gateway_serves() -> None:
    none = TOOLS["opencode"].part(
        "settings", Gateway(41411, token=TOKEN, token_file="/state/gateway.token")
    )
    made = part_of("opencode").put("")
    without = none.put(made)
    assert load("opencode", without)["provider"]["fallbackd"]["models"] == {}
    assert none.put(without) == without
    assert part_of("opencode").put(without) == made
    comment = made.replace('"name"', '// mine\n      "name"')
    assert part_of("opencode").put(comment) == comment


def test_lines_that_a_person_has_written_between_ours_stay() -> None:
    made = part_of("gemini").put(KEPT["gemini"]).replace("GEMINI_API_KEY", "A=b\nGEMINI_API_KEY")
    assert part_of("gemini").take(made) == KEPT["gemini"] + "A=b\n"


def test_the_file_that_opencode_was_given_alone_is_replaced() -> None:
    part, old = part_of("opencode"), "{file:/state/gateway.token}"
    made = part.put("")
    before = made.replace(load("opencode", made)["provider"]["fallbackd"]["options"]["apiKey"], old)
    with pytest.raises(Unreadable, match="a way that stops a confined one"):
        TOOLS["opencode"].token(before)
    assert part.put(before) == made


def test_settings_stand_where_each_program_looks(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    found = {name: tool.file(home).removeprefix(f"{tmp_path}/") for name, tool in TOOLS.items()}
    assert found == {
        "claude": ".claude/settings.json",
        "codex": ".codex/config.toml",
        "gemini": ".gemini/.env",
        "opencode": ".config/opencode/opencode.json",
    }
    assert TOOLS["claude"].file({**home, "CLAUDE_CONFIG_DIR": "/c"}) == "/c/settings.json"
    assert TOOLS["codex"].file({**home, "CODEX_HOME": "/c"}) == "/c/config.toml"


def test_the_token_of_gemini_stands_in_no_file_that_others_can_read(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_text("A=b\n")
    path.chmod(0o644)
    part = TOOLS["gemini"].part(str(path), gateway())
    with pytest.raises(Unreadable, match="chmod 600"):
        part.put("A=b\n")
    path.chmod(0o600)
    (edit,) = edits([part], undo=False)
    assert "GEMINI_API_KEY=the-token" in edit.after
    assert "the-token" not in part.snippet + edit.diff()


@pytest.mark.parametrize(
    "before", ["", '{"security": {"auth": {"selectedType": "oauth-personal"}}, "theme": "dark"}']
)
def test_gemini_is_told_to_log_in_by_the_key_and_keeps_its_other_settings(before: str) -> None:
    [part] = TOOLS["gemini"].others({"HOME": "/home/me"})
    assert part.path == "/home/me/.gemini/settings.json"
    after = part.put(before)
    assert logs_in_by_key(after)
    kept = json.loads(part.take(after) or "{}")
    assert kept == ({} if not before else {"theme": "dark"})
    own = '{"security": {"auth": {"selectedType": "vertex-ai"}}}'
    assert part.take(own) == own  # it is not ours
