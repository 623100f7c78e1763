"""Where places of a user are, for a program with its own environment."""

import pytest

from fallbackd.lib.directories import expand


@pytest.mark.parametrize(
    ("place", "environ", "path"),
    [
        ("/etc/x", {}, "/etc/x"),
        ("~/.a", {"HOME": "/home/b"}, "/home/b/.a"),
        ("~/.a", {}, "/home/me/.a"),
        ("~/.a", {"HOME": "relative"}, "/home/me/.a"),
        ("~", {}, "/home/me"),
        ("~/.a/", {}, "/home/me/.a/"),
        ("${A_HOME:-~/.a}/b", {}, "/home/me/.a/b"),
        ("${A_HOME:-~/.a}/b", {"A_HOME": "/srv/a"}, "/srv/a/b"),
        ("${A_HOME:-~/.a}/b", {"A_HOME": ""}, "/home/me/.a/b"),
        ("${A_HOME:-~/.a}/b", {"A_HOME": "not/absolute"}, "/home/me/.a/b"),
        ("${A_HOME:-~}/.a.json", {"A_HOME": "/srv"}, "/srv/.a.json"),
        ("${A:-${B:-~/b}/c}/d", {}, "/home/me/b/c/d"),
        ("${A:-${B:-~/b}/c}/d", {"B": "/srv/b"}, "/srv/b/c/d"),
        ("${A:-${B:-~/b}/c}/d", {"A": "/srv/a", "B": "/srv/b"}, "/srv/a/d"),
        ("${A:-${B:-~/b}/c}/d", {"A": "${B:-/x}"}, "/home/me/b/c/d"),
        ("${A:--}/d", {}, None),
        ("relative/x", {}, None),
        ("~other/x", {}, None),
        ("/a\0b", {}, None),
    ],
)
def test_the_environment_of_the_program_decides(
    place: str, environ: dict[str, str], path: str | None
) -> None:
    assert expand(place, environ, home="/home/me") == path
