"""The schema of the file: every key described, with an example that loads."""

import tomllib
from typing import Any

import pytest

from fallbackd.config.load import load
from fallbackd.config.schema import EXAMPLES, json_schema

SCHEMA = json_schema()
TABLES: dict[str, dict[str, Any]] = SCHEMA["$defs"]

HTTP = '[backends.api]\nkind = "openai-http"\nmodel = "m"\n'
OF_HTTP = {
    "base_url", "headers", "fallback_model", "api_mode", "max_output_tokens", "connect_timeout_s",
    "read_timeout_s", "insecure_http", "tls_ca_file", "tls_client_cert", "tls_client_key",
    "tls_verify", "omit", "rename", "default", "embeddings",
}  # fmt: skip
OWN = '[backends.mine]\ncommand = ["agent"]\nkind = "generic-cli"\n'
OF_OWN = {"output", "stdin", "prompt_in_argv", "allow_env", "success_exit_codes"}
BESIDE = {
    "tls_client_cert": 'tls_client_key = "~/k.pem"\n',
    "tls_client_key": 'tls_client_cert = "~/c.pem"\n',
    "insecure_http": 'base_url = "http://example.com/v1"\n',
    "field": 'file = "~/x.json"\n',
    "into": 'env = "WORK_KEY"\n',
}


def in_its_table(table: str, key: str, line: str) -> str:
    """The line with what has to stand around it."""
    more = BESIDE.get(key, "")
    match table:
        case "File":
            return line
        case "Defaults":
            return f"[defaults]\n{line}"
        case "Price":
            return f'[prices."gpt-5.3"]\n{line}'
        case "ReasonTable":
            return f"[policy.rate_limit]\n{line}"
        case "BackendTable" if key == "serve":
            return f"[backends.opencode]\n{line}"
        case "BackendTable" if key in OF_HTTP:
            return HTTP + (more if key != "base_url" else "") + line
        case "BackendTable" if key == "kind":
            return f'[backends.mine]\ncommand = ["agent"]\n{line}'
        case "BackendTable" if key in OF_OWN:
            return OWN + line
        case "BackendTable":
            return f"[backends.codex]\n{line}"
        case "CredentialTable":
            source = "" if key in ("env", "file", "command", "systemd") else (more or 'env = "A"\n')
            inside = ", ".join((source + line).strip().splitlines())
            start = "[backends.codex]\n" if key == "into" else HTTP
            return f"{start}credentials = [{{ {inside} }}]"
        case "EntryTable":
            start = "" if key == "backend" else 'backend = "codex", '
            return f"[chains]\nclaude = [{{ {start}{line} }}]"
        case "ReturnTable":
            start = "" if key == "policy" else 'policy = "successes", '
            return f"[roles.judge]\nreturn_to_better = {{ {start}{line} }}"
        case "AuthorityTable":
            return f'[roles.judge]\nchain = ["codex"]\n[authority.judge]\n{line}'
        case "RoleTable":
            return f"[roles.judge]\n{line}"
        case "ShareTable":
            named = {"group": 'group = "g"', "url_env": 'url_env = "U"'}
            around = "\n".join(one for name, one in named.items() if name != key)
            return f"[share]\n{around}\n{line}"
        case "SignatureTable":
            parts = {"id": 'id = "x"', "pattern": 'pattern = "x"', "reason": 'reason = "auth"'}
            parts.pop(key, None)
            return "[[signatures]]\n" + "\n".join([*parts.values(), line])
        case "ServerTable":
            start = "" if key == "url" else 'url = "http://127.0.0.1:1", '
            return f"[opencode]\nservers = [{{ {start}{line} }}]"
        case _:
            [place] = [
                name
                for name, one in TABLES["File"]["properties"].items()
                if f"#/$defs/{table}" in str(one)
            ]
            return f"[{place}]\n{line}"


LINES = [
    (table, line.partition(" =")[0], line)
    for table, text in EXAMPLES.items()
    for line in text.strip().splitlines()
]


@pytest.mark.parametrize(("table", "key", "line"), LINES, ids=lambda one: str(one)[:30])
def test_an_example_is_read_without_a_warning(table: str, key: str, line: str) -> None:
    loaded = load(in_its_table(table, key, line), path="/c.toml")
    said = [str(one) for one in (*loaded.errors, *loaded.warnings)]
    if table == "AuthorityTable":  # it is said at each check that a role may do more
        (word,) = said
        assert "authority.judge.may: agents of the role" in word
        return
    assert said == []


@pytest.mark.parametrize("table", TABLES)
def test_every_key_is_described_and_has_an_example(table: str) -> None:
    properties = TABLES[table].get("properties", {})
    bare = {key for key, one in properties.items() if not one.get("description")}
    assert not bare, "write a string below the field, where it is declared"
    shown = set(tomllib.loads(EXAMPLES.get(table, "")))
    without = {
        key
        for key, one in properties.items()
        if key not in shown and one.get("default") in (None, [], {}) and "$ref" not in str(one)
    }
    assert not without, "add a line to EXAMPLES in config/schema.py"
    assert shown <= set(properties), "examples of keys that are gone"
