"""The packages as people install them: pipx, uv, and a `.deb` in a clean Debian."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.install import DEBIAN
from tests.support import agents
from tests.support.daemon import HANG_S, ROOT

from fallbackd_client import __version__

pytestmark = pytest.mark.root

TOOLS = ROOT / ".venv-packages/bin"
BUILD = {**os.environ, "COLUMNS": "90", "SOURCE_DATE_EPOCH": "1700000000"}
LIMIT_S = 10 * HANG_S
"""A registry is asked for every library."""


def ran(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout + done.stderr
    found: subprocess.CompletedProcess[str] = done
    return found


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("packages")
    ran(sys.executable, "-m", "contrib.packages", str(place), "--deb", cwd=ROOT, env=BUILD)
    return place


def one(packages: Path, pattern: str) -> Path:
    (found,) = packages.glob(pattern)
    return found


@pytest.fixture
def home(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a user who has nothing, in a home whose path is too long for a socket."""
    place = str(tmp_path / ("home-" * 20))
    os.mkdir(place)
    kept = ("PIP_", "UV_", "SSL_", "REQUESTS_", "HTTP", "http", "NO_PROXY", "no_proxy")
    environ = {name: value for name, value in os.environ.items() if name.startswith(kept)}
    environ |= {"HOME": place, "LANG": "C.UTF-8", "TZ": "UTC"}
    environ["PATH"] = f"{place}/.local/bin:{place}/bin:/usr/bin:/bin"
    yield environ
    if os.path.exists(f"{place}/.local/bin/fallbackd"):
        subprocess.run([f"{place}/.local/bin/fb", "service", "stop"], env=environ, timeout=HANG_S)


INSTALLERS = {
    "pipx": ("pipx", "install", "--quiet", "--python", "/usr/bin/python3"),
    "uv": ("uv", "tool", "install", "--quiet", "--python", "/usr/bin/python3"),
}


@pytest.mark.parametrize("name", INSTALLERS)
def test_the_wheel_is_installed_with(name: str, packages: Path, home: dict[str, str]) -> None:
    program, *words = INSTALLERS[name]
    place = Path(home["HOME"])
    ran(str(TOOLS / program), *words, str(one(packages, "fallbackd-*.whl")), env=home, cwd=place)
    shown = ran(str(place / ".local/bin/fallbackd"), "--version", env=home, cwd=place)
    assert shown.stdout.split()[-1] == __version__
    config = agents.backend_script(place / "bin", "mine", agents.ok("hello"))
    (place / ".config/fallbackd").mkdir(parents=True)
    (place / ".config/fallbackd/config.toml").write_text(config)
    fb = str(place / ".local/bin/fb")
    work = place / "work"
    work.mkdir()
    asked = ran(fb, "delegate", "--start", "--backend", "mine", "hi", env=home, cwd=work)
    assert asked.stdout == "hello\n"

    alone = place / "alone"
    client = str(one(packages, "fallbackd_client-*.whl"))
    ran("/usr/bin/python3", "-m", "venv", "--without-pip", str(alone))
    if name == "uv":
        ran(str(TOOLS / "uv"), "pip", "install", "--python", str(alone), client, env=home)
    else:
        ran(sys.executable, "-m", "pip", "--python", str(alone / "bin/python"), "install", client)
    there = [path.name.split("-")[0] for path in alone.glob("lib/*/site-packages/*.dist-info")]
    assert sorted(there) == ["fallbackd_client", "msgspec"]
    again = ran(str(alone / "bin/fb"), "delegate", "--backend", "mine", "hi", env=home, cwd=work)
    assert again.stdout == "hello\n"
    code = (
        "from fallbackd_client import Client\n"
        "with Client() as client:\n"
        "    print(client.delegate('hi', backend='mine').text)"
    )
    assert ran(str(alone / "bin/python"), "-c", code, env=home, cwd=work).stdout.strip() == "hello"


NOT_SOURCE = (".git", ".venv*", ".e2e*", ".*_cache", ".hypothesis", "build", "dist", "__pycache__")


def test_a_release_is_built_tried_in_clean_places_and_said(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(ROOT, tree, symlinks=True, ignore=shutil.ignore_patterns(*NOT_SOURCE))
    (tree / ".venv").symlink_to(ROOT / ".venv")
    # Both stand above it in the Makefile, and need a registry or minutes of their own.
    given = ("make", "-o", "check", "-o", ".venv/.ready", "release")
    said = ran(*given, cwd=tree, env={**BUILD, "PYTHON": "/usr/bin/python3"}).stdout
    assert f"fallbackd-client {__version__}" in said
    sums = [line.split() for line in said.splitlines() if len(line.split()[0]) == 64]
    assert sorted(name for _, name in sums) == sorted(os.listdir(tree / "dist"))
    assert len(sums) == (4 if shutil.which("dpkg-deb") else 3)
    assert f"git tag v{__version__}" in said


def test_two_builds_of_the_debian_package_are_the_same_bytes(
    packages: Path, tmp_path: Path
) -> None:
    package, wheel = one(packages, "*.deb"), one(packages, "fallbackd-*.whl")
    code = (
        "import os, pathlib, sys\n"
        "from contrib.packages.__main__ import debian_package\n"
        "debian_package(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), os.environ)"
    )
    build = (sys.executable, "-c", code, str(wheel), str(tmp_path))
    ran(*build, cwd=ROOT, umask=0o077, env={**BUILD, "TZ": "XYZ9"})
    assert (tmp_path / package.name).read_bytes() == package.read_bytes()


IN_DEBIAN = """\
set -e
mount -t proc proc /proc
mount -t tmpfs tmpfs /run
dpkg --install /tmp/fallbackd.deb >/dev/null
useradd --create-home me
mkdir -p /run/user/1000 /home/me/bin /home/me/.config/fallbackd
cp /tmp/mine /home/me/bin/mine
cp /tmp/mine /home/me/bin/claude
cp /tmp/config.toml /home/me/.config/fallbackd/
chown -R me: /home/me /run/user/1000
me() {
    setpriv --reuid=me --regid=me --init-groups env -i HOME=/home/me LANG=C.UTF-8 \\
        PATH=/home/me/bin:/usr/bin:/bin XDG_RUNTIME_DIR=/run/user/1000 "$@"
}
cd /home/me/bin
echo "-- verified"
me systemd-analyze --user verify /usr/lib/systemd/user/fallbackd.service 2>&1
echo "-- manual"
man fallbackd-client
echo "-- completions"
me bash -c '. /usr/share/bash-completion/completions/fb; complete -p fb'
echo "-- answer"
me fb delegate --start --backend mine hi
me fb service stop >/dev/null
echo "-- setup"
me fallbackd-client setup --yes --no-delegate 2>&1
me fb ping
me fb setup --undo --yes >/dev/null
dpkg --remove fallbackd >/dev/null
echo "-- left"
ls -d /usr/lib/fallbackd /usr/bin/fb /usr/bin/fallbackd* 2>/dev/null || true
"""


def test_the_debian_package_serves_a_clean_system(packages: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    ran("tar", "--extract", "--file", str(DEBIAN), "--directory", str(root))
    root.chmod(0o755)  # it was made in a private directory
    (root / "tmp/fallbackd.deb").write_bytes(one(packages, "*.deb").read_bytes())
    config = agents.backend_script(root / "tmp", "mine", agents.ok("hello"))
    (root / "tmp/config.toml").write_text(config.replace(str(root / "tmp"), "/home/me/bin"))
    (root / "tmp/in-debian").write_text(IN_DEBIAN)
    inside = f"mount --rbind /dev {root}/dev && exec chroot {root} /bin/sh /tmp/in-debian"
    # Without a network: everything that it needs is in the package, or in its dependencies.
    space = ("unshare", "--mount", "--pid", "--net", "--fork", "--kill-child", "sh", "-c", inside)
    said = ran(*space, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}).stdout
    parts = dict(part.split("\n", 1) for part in said.split("-- ")[1:])
    assert parts["verified"] == ""
    assert "fallbackd-client - delegate prompts through fallbackd" in parts["manual"]
    assert parts["completions"].startswith("complete -F _fallbackd_client fb")
    assert parts["answer"] == "hello\n"
    assert "/usr/bin/fallbackd" in parts["setup"]
    assert parts["left"] == ""
