"""The user units, as systemd itself reads them."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

UNITS = Path(__file__).resolve().parents[2] / "systemd"


def test_the_units_are_verified_without_a_word(tmp_path: Path) -> None:
    tool = shutil.which("systemd-analyze")
    assert tool is not None, "systemd-analyze is not on PATH: install systemd to check the units"
    program = tmp_path / ".local" / "bin" / "fallbackd"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    units = sorted(str(path) for path in UNITS.iterdir() if path.suffix in (".service", ".socket"))
    assert [Path(unit).name for unit in units] == ["fallbackd.service", "fallbackd.socket"]
    # Not below `tmp_path`: units of other packages, which are read too, put their sockets there,
    # and the path of a socket holds at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="fbd-") as runtime:
        done = subprocess.run(
            [tool, "verify", "--user", *units],
            env={
                "HOME": str(tmp_path),
                "PATH": os.environ["PATH"],
                "XDG_RUNTIME_DIR": runtime,
                "LANG": "C.UTF-8",
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
