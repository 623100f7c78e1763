"""What is published: the same bytes from the same commit; the client alone needs one library."""

import ast
import email
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from tests.support.daemon import HANG_S, ROOT

from fallbackd_client import __version__

EPOCH = "1700000000"


def built(place: Path, *, umask: int, zone: str) -> dict[str, bytes]:
    """Every file of one build, by its name."""
    environ = {**os.environ, "SOURCE_DATE_EPOCH": EPOCH, "TZ": zone, "PYTHONHASHSEED": zone[-1]}
    build = [sys.executable, "-m", "contrib.packages", str(place)]
    subprocess.run(
        build,
        cwd=ROOT,
        env=environ,
        umask=umask,
        check=True,
        timeout=5 * HANG_S,
        capture_output=True,
    )
    return {path.name: path.read_bytes() for path in place.iterdir()}


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("packages")
    built(place, umask=0o022, zone="UTC0")
    return place


def test_two_builds_are_the_same_bytes(packages: Path, tmp_path: Path) -> None:
    again = built(tmp_path, umask=0o077, zone="XYZ9")
    assert sorted(again) == [
        f"fallbackd-{__version__}-py3-none-any.whl",
        f"fallbackd-{__version__}.tar.gz",
        f"fallbackd_client-{__version__}-py3-none-any.whl",
    ]
    differ = [name for name, had in again.items() if (packages / name).read_bytes() != had]
    assert differ == []


def test_the_client_alone_has_no_daemon_and_needs_one_library(packages: Path) -> None:
    (wheel,) = packages.glob("fallbackd_client-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith("/METADATA"))
        found = email.message_from_bytes(archive.read(metadata))
    assert found["Version"] == __version__
    needs = [one for one in found.get_all("Requires-Dist", []) if "extra ==" not in one]
    assert needs == ["msgspec<0.23,>=0.22"]
    assert not [name for name in names if name.startswith("fallbackd/")]
    assert "fallbackd_client/share/hermes-voice/delegation_agent.py" in names


def test_its_requirements_are_those_of_the_whole() -> None:
    whole, alone = (
        tomllib.loads((ROOT / path).read_text())["project"]
        for path in ("pyproject.toml", "client/pyproject.toml")
    )
    optional = [one for extra in alone["optional-dependencies"].values() for one in extra]
    assert {*alone["dependencies"], *optional} <= set(whole["dependencies"])
    assert alone["requires-python"] == whole["requires-python"]
    assert alone["scripts"].items() <= whole["scripts"].items()


def test_only_what_the_extras_are_for_imports_another_library() -> None:
    own = {"fallbackd_client", "fallbackd_conversations", "msgspec", *sys.stdlib_module_names}
    others: set[tuple[str, str]] = set()
    for path in (ROOT / "client").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Import(names=names):
                    imported = [one.name for one in names]
                case ast.ImportFrom(module=str(module)):
                    imported = [module]
                case _:
                    continue
            roots = {one.partition(".")[0] for one in imported} - own
            others |= {(path.stem, root) for root in roots}
    assert others == {("aio", "anyio"), ("config_file", "tomlkit")}


def test_an_extra_that_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "anyio.py").write_text("raise ModuleNotFoundError(\"No module named 'anyio'\")\n")
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT / 'client'}"}
    code = "from fallbackd_client import Client, AsyncClient"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env=environ,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert ran.stderr.splitlines()[-1] == (
        "ImportError: AsyncClient needs anyio; install it with: pip install 'fallbackd-client[aio]'"
    )
