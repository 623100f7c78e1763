"""Which variables of the daemon's environment programs are given."""

from collections.abc import Mapping
from types import MappingProxyType, SimpleNamespace
from typing import cast

import pytest

from fallbackd.app.configuration import settings_of
from fallbackd.backends import KINDS
from fallbackd.backends.variables import EVERY_PROGRAM, is_for_every_program
from fallbackd.config.load import load
from fallbackd.core.failures import make_failure
from fallbackd.core.ids import BackendId
from fallbackd.core.reasons import Reason
from fallbackd.engine.credentials import given_variables, with_variables
from fallbackd.engine.environment import World
from fallbackd.lib.secretvalues import is_name_of_secret

PATHS = {"SSH_AUTH_SOCK", "AWS_SHARED_CREDENTIALS_FILE", "GOOGLE_APPLICATION_CREDENTIALS"}
"""They say where a secret is."""
CHOICES = {"PIP_KEYRING_PROVIDER", "UV_KEYRING_PROVIDER"}


@pytest.mark.parametrize(
    "name",
    [
        *("PATH", "HOME", "LC_TIME", "XDG_RUNTIME_DIR", "SSH_AUTH_SOCK", "https_proxy"),
        *("NVM_DIR", "VIRTUAL_ENV", "JAVA_HOME", "CARGO_HOME", "GNUPGHOME", "GRADLE_USER_HOME"),
        *("GIT_AUTHOR_NAME", "DISPLAY", "WAYLAND_DISPLAY", "NODE_EXTRA_CA_CERTS", "KUBECONFIG"),
    ],
)
def test_what_tools_need_is_for_every_program(name: str) -> None:
    assert is_for_every_program(name)


@pytest.mark.parametrize(
    "name",
    [
        *("ANTHROPIC_API_KEY", "GITHUB_TOKEN", "FALLBACKD_SHARE_URL", "DATABASE_URL"),
        *("NODE_AUTH_TOKEN", "UV_PUBLISH_TOKEN", "COMPOSER_AUTH", "POETRY_HTTP_BASIC_X_PASSWORD"),
        *("NOTIFY_SOCKET", "CREDENTIALS_DIRECTORY", "FALLBACKD_RUN", "PATHS", "MY_PATH"),
    ],
)
def test_what_holds_a_secret_or_is_unheard_of_is_not(name: str) -> None:
    assert not is_for_every_program(name)


def test_no_row_for_every_program_names_a_secret() -> None:
    names = {each for row in EVERY_PROGRAM.values() for each in row}
    assert {each for each in names if is_name_of_secret(each)} == PATHS | CHOICES


ENVIRON = dict.fromkeys(
    [
        *("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "OPENAI_API_KEY", "GEMINI_API_KEY"),
        *("OPENROUTER_API_KEY", "CODEX_HOME", "GITHUB_TOKEN", "SHARE", "OPENCODE_SERVER_PASSWORD"),
    ],
    "/c",
)


def given(config: str, id: str, files: Mapping[str, str] = MappingProxyType({})) -> set[str]:
    settings = settings_of(load(config, path="config.toml", environ=ENVIRON))
    world = SimpleNamespace(
        environ=ENVIRON, inheritable={}, kinds=KINDS, home="/home/me", read_text=files.get
    )
    return set(given_variables(settings, cast(World, world), BackendId(id)))


def test_an_agent_is_given_the_variables_of_its_own_kind() -> None:
    assert given("", "claude") == {"ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"}
    assert given("", "codex") == {"OPENAI_API_KEY", "CODEX_HOME"}
    assert given("", "gemini") == {"GEMINI_API_KEY"}


def test_an_agent_is_given_the_variables_that_its_own_settings_name() -> None:
    assert "GITHUB_TOKEN" in given("", "codex", {"/c/config.toml": 'env_key = "GITHUB_TOKEN"'})
    asks = '{"mcp": {"x": {"environment": {"T": "{env:GITHUB_TOKEN} {env:SHARE}"}}}}'
    files = {"/home/me/.config/opencode/opencode.json": asks}
    assert "GITHUB_TOKEN" in given("", "opencode", files)
    shared = '[opencode]\nservers = [{ url = "http://127.0.0.1:9", password_env = "SHARE" }]'
    assert "SHARE" not in given(shared, "opencode", files)


def test_an_agent_of_all_providers_is_given_every_providers_key_that_no_other_backend_has() -> None:
    keys = {"ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "OPENROUTER_API_KEY"}
    assert given("", "opencode") == keys | {"ANTHROPIC_BASE_URL"}
    by_default = '[backends.r]\nkind = "openrouter-http"\nmodel = "m"\n'
    assert given(by_default, "opencode") == keys - {"OPENROUTER_API_KEY"} | {"ANTHROPIC_BASE_URL"}


def test_a_key_that_an_http_backend_has_by_default_stays_with_the_agent_that_logs_in_by_it() -> (
    None
):
    by_default = '[backends.main]\nkind = "anthropic-http"\nmodel = "m"\n'
    assert "ANTHROPIC_API_KEY" in given(by_default, "claude")
    assert "ANTHROPIC_API_KEY" not in given(by_default, "opencode")


def test_a_generic_program_is_given_what_allow_env_names_and_nothing_that_is_of_others() -> None:
    config = """
    [backends.mine]
    kind = "generic-cli"
    command = ["mine"]
    allow_env = ["GITHUB_TOKEN", "OPENAI_API_KEY", "SHARE", "ABSENT"]
    [backends.o]
    kind = "openai-http"
    model = "m"
    [opencode]
    servers = [{ url = "http://127.0.0.1:9", password_env = "SHARE" }]
    """
    assert given(config, "mine") == {"GITHUB_TOKEN"}


def said(evidence: str, *given: str) -> str:
    world = cast(World, SimpleNamespace(environ=ENVIRON, inheritable={}))
    failure = make_failure(Reason.UNKNOWN, now=0.0, evidence=evidence, signature="x")
    return with_variables(failure, world, given).evidence


def test_a_failure_that_names_a_variable_which_was_kept_back_says_how_it_is_given() -> None:
    text = "Missing environment variable: `OPENROUTER_API_KEY`."
    assert "OPENROUTER_API_KEY is set for the daemon" in said(text)
    assert said(text, "OPENROUTER_API_KEY") == text
    assert said("Missing environment variable: `OTHER_KEY`.").endswith("`.")
