"""`credentials`: what a backend may own, and what is said of a table that cannot be used."""

import pytest
from tests.support.config_file import as_toml

from fallbackd.config.load import Loaded, load
from fallbackd.config.show import as_dict
from fallbackd.core.ids import BackendId
from fallbackd.core.protocol import CredentialRef

HTTP = BackendId("hermes-api")
CLI = BackendId("codex")


def loaded(table: str, *, of: str = HTTP) -> Loaded:
    return load(f"[backends.{of}]\n{table}", path="config.toml")


def test_a_pool_keeps_its_order_and_its_strategy() -> None:
    found = loaded(
        """
        credential_strategy = "least_used"
        credentials = [
          { label = "work", env = "KEY_A" },
          { label = "home", file = "~/.acme/key" },
          { label = "vault", command = ["pass", "show", "acme"] },
          { label = "unit", systemd = "acme.key", field = "tokens.access" },
        ]
        """
    )
    assert found.warnings == ()
    backend = found.policy.backends[HTTP]
    assert backend.credentials == ("work", "home", "vault", "unit")
    assert backend.credential_strategy == "least_used"
    assert found.options[HTTP].credentials == (
        CredentialRef(label="work", source="env", name="KEY_A"),
        CredentialRef(label="home", source="file", name="~/.acme/key"),
        CredentialRef(label="vault", source="command", argv=("pass", "show", "acme")),
        CredentialRef(label="unit", source="systemd", name="acme.key", field="tokens.access"),
    )


def test_what_is_shown_gives_the_same_pool_again() -> None:
    table = """
        credential_strategy = "random"
        credentials = [
          { label = "a", command = ["pass", "show", "acme"], into = "ACME_KEY" },
          { label = "b", env = "KEY_B" },
        ]
    """
    found = loaded(table, of=CLI)
    again = load(as_toml(found), path="config.toml")
    assert again.options[CLI].credentials == found.options[CLI].credentials
    assert again.policy.backends[CLI] == found.policy.backends[CLI]
    assert as_dict(found)["backends"][CLI]["credentials"] == [
        {"label": "a", "command": ["pass", "show", "acme"], "into": "ACME_KEY"},
        {"label": "b", "env": "KEY_B"},
    ]


def test_a_label_that_is_missing_is_made_of_the_place() -> None:
    found = loaded(
        'credentials = [{ env = "KEY_A" }, { file = "/run/keys/acme" }, { command = ["pass"] }]'
    )
    assert found.policy.backends[HTTP].credentials == ("KEY_A", "acme", "pass")


def test_an_unknown_strategy_is_said_and_the_first_usable_credential_is_used() -> None:
    found = loaded('credential_strategy = "nonsense"\ncredentials = [{ env = "KEY_A" }]')
    assert [one.path for one in found.warnings] == ["backends.hermes-api.credential_strategy"]
    assert found.policy.backends[HTTP].credential_strategy == "fill_first"


@pytest.mark.parametrize(
    ("of", "table", "path", "words"),
    [
        (HTTP, '{ label = "a", env = "A", file = "/b" }', "", "names 2 places"),
        (HTTP, '{ label = "a" }', "", "a secret is never written"),
        (HTTP, '{ label = "a", file = "relative/key" }', ".file", "absolute or from ~/"),
        (HTTP, '{ label = "a", command = "pass show" }', ".command", "without a shell"),
        (HTTP, '{ label = "a", systemd = "../etc/shadow" }', ".systemd", "LoadCredential="),
        (HTTP, '{ label = "a", env = "A", field = "a b" }', ".field", "dots between"),
        (CLI, '{ label = "a", file = "/run/key" }', ".into", "name the variable"),
        (CLI, '{ label = "a", env = "A", into = "NOT A NAME" }', ".into", "environment variable"),
    ],
)
def test_a_credential_that_cannot_be_used_is_left_out_and_said(
    of: str, table: str, path: str, words: str
) -> None:
    found = loaded(f'credentials = [{table}, {{ label = "ok", env = "OK" }}]', of=of)
    assert [one.path for one in found.warnings] == [f"backends.{of}.credentials[0]{path}"]
    assert words in found.warnings[0].message
    assert found.policy.backends[BackendId(of)].credentials == ("ok",)


def test_a_taken_label_and_an_idle_variable_are_said() -> None:
    found = loaded(
        'credentials = [{ label = "a", env = "A", into = "X" }, { label = "a", env = "B" }]'
    )
    assert [one.path for one in found.warnings] == [
        "backends.hermes-api.credentials[0].into",
        "backends.hermes-api.credentials[1]",
    ]
    assert found.options[HTTP].credentials == (CredentialRef(label="a", source="env", name="A"),)


def test_one_label_for_two_places_of_one_provider_is_said() -> None:
    def found(second: str) -> list[str]:
        url = 'kind = "openai-http"\nbase_url = "https://api.acme.example/v1"'
        table = f'''
            [backends.one]
            {url}
            credentials = [{{ label = "work", env = "A" }}]
            [backends.two]
            {url}
            credentials = [{{ label = "work", env = "{second}" }}]
        '''
        return [one.path for one in load(table, path="config.toml").warnings]

    assert found("A") == []
    assert found("B") == ["backends.two.credentials[0].label"]
