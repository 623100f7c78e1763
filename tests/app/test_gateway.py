"""Where the gateway listens on machines of different kinds."""

import errno
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from tests.support.gateway import free_port

from fallbackd.app.gateway import open_listeners


class Without(socket.socket):
    """A socket of a machine on which IPv6 fails."""

    at_bind = 0
    at_socket = 0

    def __init__(self, family: int = socket.AF_INET, *args: Any, **more: Any) -> None:
        if family == socket.AF_INET6 and self.at_socket:
            raise OSError(self.at_socket, os.strerror(self.at_socket))
        super().__init__(family, *args, **more)

    def bind(self, address: Any, /) -> None:
        if self.family == socket.AF_INET6 and self.at_bind:
            raise OSError(self.at_bind, os.strerror(self.at_bind))
        super().bind(address)


def hosts(place: Path) -> list[str]:
    """Of the listeners that are made; the last one is that of the Unix socket."""
    *made, own = open_listeners(free_port(), str(place / "gateway.sock"))
    found = [one.getsockname()[0] for one in made]
    for one in (*made, own):
        one.close()
    return found


@pytest.mark.parametrize(
    ("step", "number"), [("at_socket", errno.EAFNOSUPPORT), ("at_bind", errno.EADDRNOTAVAIL)]
)
def test_a_machine_without_ipv6_does_with_ipv4(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, number: int
) -> None:
    monkeypatch.setattr(Without, step, number)
    monkeypatch.setattr(socket, "socket", Without)
    assert hosts(tmp_path) == ["127.0.0.1"]


@pytest.mark.parametrize(
    ("step", "number"), [("at_socket", errno.EMFILE), ("at_bind", errno.EADDRINUSE)]
)
def test_ipv6_that_fails_in_another_way_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, number: int
) -> None:
    monkeypatch.setattr(Without, step, number)
    monkeypatch.setattr(socket, "socket", Without)
    with pytest.raises(OSError, match=os.strerror(number)) as failed:
        hosts(tmp_path)
    assert (failed.value.errno, failed.value.filename) == (number, "::1")
