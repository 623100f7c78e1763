"""The user units, as systemd itself reads them."""

import os
import shutil
import subprocess
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
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    done = subprocess.run(
        [tool, "verify", "--user", *units],
        env={
            "HOME": str(tmp_path),
            "PATH": os.environ["PATH"],
            "XDG_RUNTIME_DIR": str(runtime),
            "LANG": "C.UTF-8",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
