"""A home, a runtime directory and a `systemctl` of their own, for the doctor to look at."""

import os
from collections.abc import Iterable
from pathlib import Path

from tests.support.agents import program

from fallbackd.config.profiles import known_programs
from fallbackd_client.cli.doctor.findings import Finding, Machine
from fallbackd_client.cli.doctor.programs import programs_of

PROGRAMS = programs_of(known_programs())

UNITS = {
    "fallbackd.service": {
        "LoadState": "loaded",
        "ActiveState": "active",
        "UnitFileState": "enabled",
        "MainPID": "0",
        "NeedDaemonReload": "no",
        "Result": "success",
    },
    "fallbackd.socket": {
        "LoadState": "loaded",
        "ActiveState": "active",
        "UnitFileState": "enabled",
        "NeedDaemonReload": "no",
        "Result": "success",
    },
}


class Home:
    """`uid` other than our own: what we make belongs to somebody else."""

    def __init__(self, tmp_path: Path, *, uid: int | None = None) -> None:
        self.path = tmp_path / "home"
        self.bin = tmp_path / "bin"
        self.daemon_bin = tmp_path / "daemon-bin"
        self.root = tmp_path / "root"
        self.uid = os.geteuid() if uid is None else uid
        for directory in (self.path, self.bin, self.daemon_bin, self.root):
            directory.mkdir()
        self.environ = {"HOME": str(self.path), "PATH": str(self.bin)}
        self.socket = tmp_path / "fallbackd" / "control.sock"
        self.state = self.path / ".local" / "state" / "fallbackd"
        self.config = self.path / ".config" / "fallbackd" / "config.toml"

    def machine(self) -> Machine:
        return Machine(self.environ, socket=str(self.socket), uid=self.uid, root=str(self.root))

    def private(self, directory: Path, mode: int = 0o700) -> Path:
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(mode)
        return directory

    def write(self, path: Path, text: str, mode: int = 0o600) -> Path:
        if not path.parent.exists():
            self.private(path.parent)
        path.write_text(text)
        path.chmod(mode)
        return path

    def below_root(self, path: str, text: str = "") -> Path:
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        return place

    def systemctl(
        self, *, service: dict[str, str] | None = None, socket: dict[str, str] | None = None
    ) -> None:
        """A manager that knows the units, with these properties in place of good ones."""
        changed = {"fallbackd.service": service or {}, "fallbackd.socket": socket or {}}
        blocks = []
        for unit, good in UNITS.items():
            values = {"Id": unit, **good, **changed[unit]}
            blocks.append("\n".join(f"{name}={value}" for name, value in values.items()))
        shown = self.root / "shown"
        shown.write_text("\n\n".join(blocks) + "\n")
        body = (
            f'#!/bin/sh\ncase "$*" in\n*show-environment*) echo PATH={self.daemon_bin} ;;\n'
            f'*) while IFS= read -r line; do echo "$line"; done < {shown} ;;\nesac\n'
        )
        program(self.bin, "systemctl", body)

    def lingers(self) -> None:
        self.below_root(f"/var/lib/systemd/linger/{self.machine().user}")


def told(findings: Iterable[Finding]) -> list[tuple[str, str, str]]:
    """Level, what was said, what fixes it."""
    return [(one.level, one.what, one.fix) for one in findings]
