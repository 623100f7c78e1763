"""The table of tools that build and sign: which places it opens, and which it does not."""

import pytest

from fallbackd.backends.toolchains import TOOLCHAINS
from fallbackd.core.protocol import Toolchain
from fallbackd.lib.directories import expand

HOME = "/home/me"
RUN_OR_OBEYED_LATER = (
    *("~/.bashrc", "~/.profile", "~/.gitconfig", "~/.local/bin/x", "~/.config/x", "~/.ssh/config"),
    *("~/.cargo/bin/x", "~/.cargo/config.toml", "~/.cargo/env", "~/.rustup/settings.toml"),
    *("~/go/bin/x", "~/.config/go/env", "~/.gradle/init.d/x", "~/.gradle/gradle.properties"),
    *("~/.m2/settings.xml", "~/.npmrc", "~/.yarnrc", "~/.bun/bin/x", "~/.deno/bin/x"),
    *("~/.docker/config.json", "~/.docker/cli-plugins/x", "~/.local/share/uv/tools/x"),
)


def paths(tool: Toolchain, environ: dict[str, str]) -> list[str]:
    found = (expand(each, environ, home=HOME) for each in (*tool.writes, *tool.files))
    return [each for each in found if each is not None]


@pytest.mark.parametrize("tool", TOOLCHAINS, ids=lambda one: one.name)
def test_a_tool_names_directories_below_the_home(tool: Toolchain) -> None:
    found = paths(tool, {})
    assert found
    for path in found:
        assert path.startswith(f"{HOME}/")
        assert path.removeprefix(f"{HOME}/").strip("/")
        assert "$" not in path
    assert all(each.endswith("/") for each in tool.writes)
    assert not any(each.endswith("/") for each in tool.files)


@pytest.mark.parametrize("place", RUN_OR_OBEYED_LATER)
def test_what_a_person_runs_or_obeys_later_stays_closed(place: str) -> None:
    path = place.replace("~", HOME)
    for tool in TOOLCHAINS:
        for each in paths(tool, {}):
            assert path != each
            assert not (each.endswith("/") and path.startswith(each)), tool.name


@pytest.mark.parametrize(
    ("variable", "tool"),
    [
        ("CARGO_HOME", "cargo"),
        ("GOPATH", "go"),
        ("GOMODCACHE", "go"),
        ("GOCACHE", "go"),
        ("GRADLE_USER_HOME", "gradle"),
        ("npm_config_cache", "npm"),
        ("PNPM_HOME", "pnpm"),
        ("BUN_INSTALL", "bun"),
        ("PIP_CACHE_DIR", "pip"),
        ("UV_CACHE_DIR", "uv"),
        ("DOCKER_CONFIG", "docker buildx"),
        ("CCACHE_DIR", "ccache"),
        ("GNUPGHOME", "gpg"),
    ],
)
def test_the_variable_of_a_tool_moves_its_places(variable: str, tool: str) -> None:
    [row] = [each for each in TOOLCHAINS if each.name == tool]
    assert any(path.startswith("/srv/moved") for path in paths(row, {variable: "/srv/moved"}))
