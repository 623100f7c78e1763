"""
Build what is published: the same bytes from the same commit.

    python -m contrib.packages dist          fallbackd's wheel and source, the client's wheel
    python -m contrib.packages dist --deb    a Debian package as well, for this distribution

Files carry the time of `SOURCE_DATE_EPOCH`, without it that of the commit.
"""

import argparse
import gzip
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON = "/usr/bin/python3"
"""The interpreter of the distribution, which the Debian package runs on."""
PLACE = "usr/lib/fallbackd"
PROGRAMS = {
    "fallbackd": "fallbackd.app.main",
    "fallbackd-client": "fallbackd_client.cli.main",
    "fb": "fallbackd_client.cli.main",
}
COMPLETIONS = {
    "bash": "usr/share/bash-completion/completions/fallbackd-client",
    "fish": "usr/share/fish/vendor_completions.d/fallbackd-client.fish",
    "zsh": "usr/share/zsh/vendor-completions/_fallbackd-client",
}
CONTROL = """\
Package: fallbackd
Version: {version}
Architecture: {architecture}
Maintainer: The fallbackd authors <fallbackd@localhost>
Section: devel
Priority: optional
Depends: python3 (>= 3.{minor}), python3 (<< 3.{next}), libc6, libstdc++6, procps
Recommends: man-db, systemd
Description: runs prompts on agent CLIs and HTTP APIs, with failover
 A daemon for each user, and its command line. Agents that are rate-limited,
 out of quota, logged out or hung are followed by the next one of a chain.
 .
 Each user sets it up with: fallbackd-client setup
"""
# Users cannot write compiled modules there, and each start would compile all of them.
POSTINST = f"#!/bin/sh\nset -e\n{PYTHON} -m compileall -q /{PLACE}/lib\n"
PRERM = f"#!/bin/sh\nset -e\nfind /{PLACE} -name __pycache__ -type d -prune -exec rm -rf {{}} +\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="build the packages of fallbackd")
    parser.add_argument("target", type=Path)
    parser.add_argument("--deb", action="store_true", help="build a Debian package too")
    args = parser.parse_args()
    args.target.mkdir(parents=True, exist_ok=True)
    environ = {**os.environ, "SOURCE_DATE_EPOCH": epoch()}
    wheel = distributions(args.target.resolve(), environ)
    if args.deb:
        debian_package(wheel, args.target.resolve(), environ)
    for path in sorted(args.target.iterdir()):
        print(path)


def epoch() -> str:
    given = os.environ.get("SOURCE_DATE_EPOCH")
    return given or _said("git", "-C", str(ROOT), "log", "-1", "--format=%ct")


def distributions(target: Path, environ: Mapping[str, str]) -> Path:
    """Build the wheels and the source archive; the wheel of the whole."""
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(target), "-t"]
    for place, kind in ((ROOT, "wheel"), (ROOT, "sdist"), (ROOT / "client", "wheel")):
        subprocess.run([*build, kind], cwd=place, env=environ, check=True, stdout=sys.stderr)
    (wheel,) = target.glob("fallbackd-*.whl")
    return wheel


def debian_package(wheel: Path, target: Path, environ: Mapping[str, str]) -> Path:
    """Lay the locked dependencies and the wheel into a package that needs only the distribution."""
    version = wheel.name.split("-")[1]
    minor = int(_said(PYTHON, "-c", "import sys; print(sys.version_info.minor)"))
    architecture = _said("dpkg", "--print-architecture")
    with tempfile.TemporaryDirectory(prefix="fallbackd-deb-") as place:
        root = Path(place)
        _environment(root / PLACE, wheel, minor)
        _beside(root)
        _write(
            root / "DEBIAN/control",
            CONTROL.format(version=version, architecture=architecture, minor=minor, next=minor + 1),
        )
        _write(root / "DEBIAN/postinst", POSTINST, mode=0o755)
        _write(root / "DEBIAN/prerm", PRERM, mode=0o755)
        _settle(root, int(environ["SOURCE_DATE_EPOCH"]))
        built = target / f"fallbackd_{version}_{architecture}.deb"
        build = ["dpkg-deb", "--root-owner-group", "-Zxz", "--build", place, str(built)]
        subprocess.run(build, env=environ, check=True, stdout=sys.stderr)
    return built


def _environment(place: Path, wheel: Path, minor: int) -> None:
    """Make a virtual environment that stays valid where it is moved to."""
    packages = place / f"lib/python3.{minor}/site-packages"
    pip = [sys.executable, "-m", "pip", "--python", PYTHON, "install", "--quiet", "--quiet"]
    pip += ["--no-compile", "--no-warn-conflicts", "--target", str(packages)]
    locked = ["--require-hashes", "--requirement", str(ROOT / "requirements/run.txt")]
    subprocess.run([*pip, *locked], check=True)
    subprocess.run([*pip, "--no-deps", str(wheel)], check=True)
    shutil.rmtree(packages / "bin", ignore_errors=True)
    for path in packages.glob("*.dist-info/direct_url.json"):  # where the wheel was
        path.unlink()
    _write(place / "pyvenv.cfg", f"home = {os.path.dirname(PYTHON)}\n")
    (place / "bin").mkdir()
    (place / "bin/python3").symlink_to(PYTHON)
    for name, module in PROGRAMS.items():
        text = (
            f"#!/{PLACE}/bin/python3\nimport sys\n\nfrom {module} import main\n\nsys.exit(main())\n"
        )
        _write(place / "bin" / name, text, mode=0o755)
        link = place.parents[1] / "bin" / name
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(f"../lib/fallbackd/bin/{name}")


def _beside(root: Path) -> None:
    """Add what a distribution keeps outside of the environment."""
    from contrib.docs import manual

    from fallbackd_client.cli.completions import SCRIPTS, whole_tree

    for unit in ("fallbackd.service", "fallbackd.socket"):
        text = (ROOT / "systemd" / unit).read_text()
        lines = [
            line for line in text.splitlines() if not line.startswith("# Where `pipx install`")
        ]
        lines = [
            "ExecStart=/usr/bin/fallbackd" if line.startswith("ExecStart=") else line
            for line in lines
        ]
        _write(root / "usr/lib/systemd/user" / unit, "\n".join(lines) + "\n")
    for name, text in manual.pages().items():
        _write(root / f"usr/share/man/man1/{name}.gz", gzip.compress(text.encode(), 9, mtime=0))
    tree = whole_tree()
    for shell, path in COMPLETIONS.items():
        _write(root / path, SCRIPTS[shell](tree))
    bash = root / COMPLETIONS["bash"]
    (bash.parent / "fb").symlink_to(bash.name)
    documents = root / "usr/share/doc/fallbackd"
    _write(documents / "copyright", (ROOT / "LICENSE").read_text())
    changes = (ROOT / "CHANGELOG.md").read_bytes()
    _write(documents / "changelog.gz", gzip.compress(changes, 9, mtime=0))


def _settle(root: Path, time: int) -> None:
    """Give every file the mode and the time that do not depend on this machine."""
    for path in (root, *root.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)
        os.utime(path, (time, time), follow_symlinks=False)


def _write(path: Path, text: str | bytes, *, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    path.chmod(mode)


def _said(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    os.environ["COLUMNS"] = "90"  # of the man pages, wherever this runs
    main()
