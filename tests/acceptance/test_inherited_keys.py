"""Programs that the daemon starts are given the variables of a list, and no key of another."""

from pathlib import Path

import anyio
from tests.support.agents import program
from tests.support.daemon import HANG_S, Daemon, running

KEYS = {
    "WORK_KEY": "value-of-work",
    "HOME_KEY": "value-of-home",
    "PLAIN_WORD": "value-of-plain",
    "HERMES_API_KEY": "value-of-hermes",
    "AGENT_ONE": "value-of-agent-one",
    "AGENT_TWO": "value-of-agent-two",
    "LATER_KEY": "value-of-later",
    "UNRELATED": "value-of-nothing",
    "FALLBACKD_SHARE_URL": "redis://u:value-of-share@127.0.0.1:9/0",
    "SERVER_WORD": "value-of-server",
    "ALLOWED": "value-of-allowed",
    "JAVA_HOME": "/value/of/java",
}
PRINTS_ENVIRONMENT = """env | sort > "{place}/{name}.$$"
setsid sh -c 'env | sort > "{place}/{name}-grandchild.$$"; exit 0'
"""
CONFIG = """
[backends.work]
kind = "openai-http"
base_url = "http://127.0.0.1:9/v1"
model = "m"
credentials = [{ label = "work", env = "WORK_KEY" }, { label = "home", env = "HOME_KEY" }]
[backends.paid]
kind = "anthropic-http"
base_url = "http://127.0.0.1:9"
model = "m"
credentials = [{ label = "plain", env = "PLAIN_WORD" }]
[backends.asking]
kind = "openai-http"
base_url = "http://127.0.0.1:9/v1"
model = "m"
credentials = [{ label = "asked", command = ["COMMAND"] }]
[defaults]
confine = false  # they leave word of what they see outside of their directories
[backends.mine]
kind = "generic-cli"
command = ["MINE"]
credentials = [{ label = "one", env = "AGENT_ONE" }, { label = "two", env = "AGENT_TWO" }]
[backends.other]
kind = "generic-cli"
command = ["OTHER"]
allow_env = ["ALLOWED", "WORK_KEY", "SERVER_WORD"]
[opencode]
servers = [{ url = "http://127.0.0.1:9", password_env = "SERVER_WORD" }]
[chains]
work = ["other"]
codex = ["opencode"]
"""
LATER = """
[backends.later]
kind = "openai-http"
base_url = "http://127.0.0.1:9/v1"
model = "m"
credentials = [{ label = "later", env = "LATER_KEY" }]
"""


def environments(place: Path, name: str) -> list[dict[str, str]]:
    """Of each process of this name and of its grandchildren."""
    found = [one for one in place.iterdir() if one.name.rpartition(".")[0].startswith(name)]
    texts = [one.read_text() for one in found]
    return [dict(line.split("=", 1) for line in text.splitlines()) for text in texts]


def keys_in(found: dict[str, str]) -> set[str]:
    by_value = {name for name, value in KEYS.items() if value in found.values()}
    return by_value | (set(KEYS) & set(found))


async def delegate(daemon: Daemon, backend: str) -> None:
    with anyio.fail_after(HANG_S):
        await daemon.client.call(
            "delegate", {"prompt": "x", "backend": backend, "wait": "finished"}
        )


async def test_no_program_inherits_a_key_of_a_backend_that_is_not_its_own(tmp_path: Path) -> None:
    place, programs = tmp_path / "seen", tmp_path / "programs"
    place.mkdir()

    def made(directory: Path, name: str, then: str) -> str:
        body = PRINTS_ENVIRONMENT.format(place=place, name=name)
        return str(program(directory, name, body + then))

    answers = "cat >/dev/null; echo done"
    for name in ("codex", "opencode"):
        made(tmp_path / "bin", name, "exit 1")
    config = (
        CONFIG.replace("COMMAND", made(programs, "asked", "echo sk-from-a-command"))
        .replace("MINE", made(programs, "mine", answers))
        .replace("OTHER", made(programs, "other", answers))
    )
    async with running(tmp_path, config, env={**KEYS, "PWD": "/"}) as daemon:
        await delegate(daemon, "work")  # fails: nothing listens there; goes to `other`
        await delegate(daemon, "asking")
        await delegate(daemon, "mine")
        await delegate(daemon, "codex")  # goes to `opencode`, whose server is started first
        # Asks programs for their version.
        seen = await daemon.client.call("status", {"verbose": True})
        assert seen["daemon"]["kept_back"] == ["LATER_KEY"]
        of_person = {"LATER_KEY", "UNRELATED", "ALLOWED", "FALLBACKD_SHARE_URL"}
        given = {"codex": set[str](), "opencode": set(), "other": {"ALLOWED"}, "asked": of_person}
        for name, names in given.items():
            seen = environments(place, name)
            assert len(seen) >= 2, name
            found = [keys_in(one) - {"JAVA_HOME"} for one in seen]
            assert names in found, name
            assert all(one in (names, set()) for one in found), name  # asked for its version too
        own = [keys_in(one) for one in environments(place, "mine")]
        assert {"AGENT_ONE", "JAVA_HOME"} in own
        assert all(one <= {"AGENT_ONE", "JAVA_HOME"} for one in own)
        for one in list(place.iterdir()):
            one.unlink()
        daemon.config_path.write_text(config + LATER)
        await daemon.client.call("config.reload")
        await delegate(daemon, "other")
        seen = environments(place, "other")
        assert [keys_in(one) for one in seen] == [{"ALLOWED", "JAVA_HOME"}] * 2


OWN_LOGINS = {
    "ANTHROPIC_API_KEY": "value-of-anthropic",
    "OPENAI_API_KEY": "value-of-openai",
    "GEMINI_API_KEY": "value-of-gemini",
}
HTTP_WITH_THE_SAME = """
[defaults]
confine = false  # they leave word of what they see outside of their directories
"""
HTTP_BACKEND = """
[backends.{kind}]
kind = "{kind}"
base_url = "http://127.0.0.1:9"
model = "m"
credentials = [{{ label = "team", env = "{variable}" }}]
"""


async def test_an_agent_keeps_its_own_login_that_an_http_backend_uses_too(tmp_path: Path) -> None:
    place = tmp_path / "seen"
    place.mkdir()
    config = HTTP_WITH_THE_SAME
    kinds = ("anthropic-http", "openai-http", "google-http")
    for kind, variable in zip(kinds, OWN_LOGINS, strict=True):
        config += HTTP_BACKEND.format(kind=kind, variable=variable)
    agents = ("claude", "codex", "gemini", "opencode")
    for name in agents:
        program(tmp_path / "bin", name, PRINTS_ENVIRONMENT.format(place=place, name=name))
    async with running(tmp_path, config, env=OWN_LOGINS) as daemon:
        for name in agents:
            await delegate(daemon, name)
        for name, own in zip(agents, (*OWN_LOGINS, None), strict=True):
            seen = environments(place, name)
            assert seen, name
            for one in seen:
                assert set(OWN_LOGINS) & set(one) == ({own} - {None}), name


async def test_a_login_of_another_account_of_the_same_agent_stays_with_that(
    tmp_path: Path,
) -> None:
    place = tmp_path / "seen"
    place.mkdir()
    body = PRINTS_ENVIRONMENT.format(place=place, name="claude")
    program(tmp_path / "bin", "claude", body)
    work = 'kind = "claude"\ncredentials = [{ label = "w", env = "ANTHROPIC_API_KEY" }]\n'
    config = f"{HTTP_WITH_THE_SAME}[backends.claude-work]\n{work}"
    async with running(tmp_path, config, env=OWN_LOGINS) as daemon:
        await delegate(daemon, "claude")
        assert all("ANTHROPIC_API_KEY" not in one for one in environments(place, "claude"))
        await delegate(daemon, "claude-work")
        assert any("ANTHROPIC_API_KEY" in one for one in environments(place, "claude"))
