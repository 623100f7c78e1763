"""A backend that would ask the gateway, which would ask that backend."""

import pytest

from fallbackd.config.load import Loaded, load
from fallbackd.core.ids import BackendId

CIRCLE = """
[gateway]
enabled = true
port = 8088
[backends.mine]
kind = "openai-http"
model = "m"
base_url = "http://localhost:8088/v1"
[chains]
team = ["mine", "codex"]
"""
LACKS = (
    "its address is that of the gateway (port 8088), and what it is asked would come back: set"
    " {path}.base_url to the provider's address, or [gateway] port to another"
)


def loaded(text: str, **environ: str) -> Loaded:
    return load(text, path="/etc/fallbackd/config.toml", environ=environ)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]"])
def test_a_backend_at_the_address_of_the_gateway_is_refused_and_not_asked(host: str) -> None:
    found = loaded(CIRCLE.replace("localhost", host))
    lacks = LACKS.format(path="backends.mine")
    assert [str(one) for one in found.refused] == [
        f"backends.mine.base_url: {lacks}. Until then nothing is sent."
    ]
    assert (found.errors, found.warnings) == ((), ())
    mine = BackendId("mine")
    assert found.policy.backends[mine].lacks == found.options[mine].lacks == lacks
    assert [one.backend for one in found.policy.chains["team"]] == ["mine", "codex"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("enabled = true", "enabled = false"),
        ("port = 8088", "port = 8089"),
        ("http://localhost:8088", "https://llm.example:8088"),
        ("localhost:8088", "localhost"),
    ],
)
def test_a_backend_elsewhere_is_not_refused(old: str, new: str) -> None:
    assert old in CIRCLE
    found = loaded(CIRCLE.replace(old, new))
    assert (found.refused, found.warnings) == ((), ())
    assert found.policy.backends[BackendId("mine")].lacks is None


def test_a_port_that_stands_in_no_address_counts_where_it_is_meant() -> None:
    text = CIRCLE.replace("localhost:8088", "localhost").replace("port = 8088", "port = 80")
    assert len(loaded(text).refused) == 1


def test_the_address_that_a_kind_has_by_itself_counts_too() -> None:
    text = "[gateway]\nenabled = true\nport = 8088"
    assert loaded(text).refused == ()
    (refused,) = loaded(text, HERMES_API_KEY="k").refused
    assert LACKS.format(path="backends.hermes-api") in refused.message


def test_what_is_held_and_is_not_there_is_named() -> None:
    text = '[gateway]\nhold_whole = ["taem", "*", "judge", "codex"]\n'
    text += '[chains]\nteam = ["codex"]\n[roles.judge]\nchain = ["codex"]\n'
    (warning,) = loaded(text).warnings
    assert str(warning) == (
        'gateway.hold_whole: "taem" is neither a chain nor a role; it has no effect. '
        'Did you mean "team"?'
    )
