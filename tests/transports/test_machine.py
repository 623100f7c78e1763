"""Looks at the machine: is there a way out?"""

import os
from pathlib import Path

import pytest

from fallbackd.transports.machine import Machine, has_default_route

HEAD = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
OUT = "eth0\t00000000\t0102A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
LOCAL = "eth0\t0002A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
REJECTED = "lo\t00000000\t00000000\t0201\t0\t0\t0\t00000000\t0\t0\t0\n"
ZERO = "0" * 32
OUT6 = f"{ZERO} 00 {ZERO} 00 fe80{'0' * 27}1 00000400 00000001 00000000 00000003 wlan0\n"
NONE6 = f"{ZERO} 00 {ZERO} 00 {ZERO} ffffffff 00000001 00000000 00200200 lo\n"


@pytest.mark.parametrize(
    ("route", "route6", "expected"),
    [
        (HEAD + LOCAL + OUT, NONE6, True),
        (HEAD + LOCAL, OUT6, True),
        (HEAD + LOCAL, NONE6, False),
        (HEAD + REJECTED, NONE6, False),
        (HEAD, None, False),
        (None, OUT6, True),
        (None, None, True),
    ],
)
def test_a_default_route_of_either_protocol_is_a_way_out(
    tmp_path: Path, route: str | None, route6: str | None, *, expected: bool
) -> None:
    for name, text in (("route", route), ("ipv6_route", route6)):
        if text is not None:
            (tmp_path / name).write_text(text)
    assert has_default_route(str(tmp_path)) is expected


def test_the_settings_of_an_agent_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "dotfiles.json").write_text("{}")
    (tmp_path / "settings.json").symlink_to(tmp_path / "dotfiles.json")
    assert Machine({"HOME": str(tmp_path)}).read_text("~/settings.json") == "{}"


def test_nothing_waits_where_settings_or_a_program_are_no_file(tmp_path: Path) -> None:
    """An agent may have put it there."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    (tmp_path / "directory").mkdir()
    machine = Machine({"HOME": str(tmp_path)})
    for name in ("pipe", "device", "directory", "absent"):
        assert machine.read_text(f"~/{name}") is None
        assert not machine.is_program_of("some-package", str(tmp_path / name))
