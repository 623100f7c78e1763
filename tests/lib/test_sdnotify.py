"""The service manager is told; one that does not listen is no trouble."""

import os
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fallbackd.lib.sdnotify import Notifier, watchdog_interval_s


@contextmanager
def manager(address: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind("\0" + address[1:] if address.startswith("@") else address)
        listening.settimeout(60)
        yield listening


def test_each_state_is_one_datagram_of_lines(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with manager(address) as listening:
        notifier = Notifier(address)
        assert notifier.ready("running")
        assert listening.recv(4096) == b"READY=1\nSTATUS=running"
        notifier.status("2 running\nREADY=1")
        assert listening.recv(4096) == b"STATUS=2 running READY=1"
        notifier.watchdog()
        assert listening.recv(4096) == b"WATCHDOG=1"
        notifier.extend(1.5)
        assert listening.recv(4096) == b"EXTEND_TIMEOUT_USEC=1500000"
        notifier.stopping()
        assert listening.recv(4096) == b"STOPPING=1"


def test_a_reload_carries_the_monotonic_time(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with manager(address) as listening:
        before = time.monotonic_ns() // 1000
        Notifier(address).reloading()
        reloading, _, stamp = listening.recv(4096).decode().partition("\n")
        assert reloading == "RELOADING=1"
        name, _, value = stamp.partition("=")
        assert name == "MONOTONIC_USEC"
        assert before <= int(value) <= time.monotonic_ns() // 1000


def test_an_abstract_socket_is_reached() -> None:
    address = f"@fallbackd-test-{secrets.token_hex(8)}"
    with manager(address) as listening:
        assert Notifier(address).ready()
        assert listening.recv(4096) == b"READY=1"


@pytest.mark.parametrize("address", [None, "", "@", "relative", "vsock:2:1"])
def test_without_a_usable_address_nothing_is_sent(address: str | None) -> None:
    assert not Notifier(address).ready()


def test_a_manager_that_is_gone_or_does_not_read_neither_raises_nor_blocks(tmp_path: Path) -> None:
    assert Notifier(str(tmp_path / "nobody")).ready() is False
    assert Notifier("/" + "x" * 300).ready() is False
    address = str(tmp_path / "notify")
    with manager(address):
        notifier = Notifier(address)
        assert any(not notifier.status("x" * 1000) for _ in range(100_000))


@pytest.mark.parametrize(
    ("usec", "pid", "expected"),
    [
        ("30000000", None, 15.0),
        pytest.param("30000000", str(os.getpid()), 15.0, id="own"),
        ("30000000", "1", None),
        (None, None, None),
        ("0", None, None),
        ("soon", None, None),
        ("30000000", "me", None),
    ],
)
def test_the_watchdog_is_told_twice_in_its_time(
    usec: str | None, pid: str | None, expected: float | None
) -> None:
    assert watchdog_interval_s(usec, pid, own_pid=os.getpid()) == expected
