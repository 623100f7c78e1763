"""Where the daemon listens: private, and never taken from one that lives."""

import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator

import pytest

from fallbackd.fronts.rpc.endpoint import EndpointTaken, EndpointUnusable, SocketEndpoint
from fallbackd_client.paths import reachable


@pytest.fixture
def directory() -> Iterator[str]:
    """Short, for a socket path holds at most 107 bytes."""
    made = tempfile.mkdtemp(prefix="fbd-")
    yield made
    shutil.rmtree(made)


def mode(path: str) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


def connects(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as caller:
        try:
            caller.connect(path)
        except OSError:
            return False
    return True


def test_directory_and_socket_are_private_whatever_the_umask(directory: str) -> None:
    path = f"{directory}/a/fallbackd/control.sock"
    before = os.umask(0)
    try:
        endpoint = SocketEndpoint.open(path)
    finally:
        os.umask(before)
    assert mode(path) == 0o600
    assert mode(os.path.dirname(path)) == 0o700
    assert mode(f"{path}.lock") == 0o600
    assert connects(path)
    endpoint.close()
    assert not os.path.exists(path)


def test_an_open_directory_of_ours_is_closed_to_others(directory: str) -> None:
    os.mkdir(f"{directory}/fallbackd", 0o755)
    os.chmod(f"{directory}/fallbackd", 0o755)
    endpoint = SocketEndpoint.open(f"{directory}/fallbackd/control.sock")
    assert mode(f"{directory}/fallbackd") == 0o700
    endpoint.close()


def test_a_directory_that_everybody_may_write_to_is_refused(directory: str) -> None:
    os.mkdir(f"{directory}/open")
    os.chmod(f"{directory}/open", 0o777)
    with pytest.raises(EndpointUnusable, match="chmod go-w"):
        SocketEndpoint.open(f"{directory}/open/control.sock")


def test_a_second_one_is_refused_and_names_the_first(directory: str) -> None:
    path = f"{directory}/control.sock"
    first = SocketEndpoint.open(path)
    with pytest.raises(EndpointTaken, match=f"process {os.getpid()}"):
        SocketEndpoint.open(path)
    assert connects(path)
    first.close()
    SocketEndpoint.open(path).close()


def test_a_living_socket_without_a_lock_is_left_alone(directory: str) -> None:
    path = f"{directory}/control.sock"
    with socket.socket(socket.AF_UNIX) as living:
        living.bind(path)
        living.listen()
        with pytest.raises(EndpointTaken, match=f"process {os.getpid()} listens"):
            SocketEndpoint.open(path)
        assert connects(path)


def test_a_socket_that_was_left_over_is_replaced(directory: str) -> None:
    path = f"{directory}/control.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    endpoint = SocketEndpoint.open(path)
    assert connects(path)
    endpoint.close()


def test_a_file_at_the_place_of_the_socket_is_never_removed(directory: str) -> None:
    path = f"{directory}/control.sock"
    with open(path, "w") as file:
        file.write("precious")
    with pytest.raises(EndpointUnusable, match="is not a socket"):
        SocketEndpoint.open(path)
    with open(path) as file:
        assert file.read() == "precious"


def test_a_name_that_no_socket_can_have_is_refused_with_a_sentence(directory: str) -> None:
    with pytest.raises(EndpointUnusable, match="name of a socket is too long; choose a shorter"):
        SocketEndpoint.open(f"{directory}/{'x' * 120}.sock")


def test_a_directory_of_a_long_path_has_a_socket_all_the_same(directory: str) -> None:
    path = f"{directory}/{'x' * 200}/fallbackd/control.sock"
    endpoint = SocketEndpoint.open(path)
    assert mode(path) == 0o600
    with socket.socket(socket.AF_UNIX) as caller, reachable(path) as address:
        caller.connect(address)
    os.unlink(path)
    endpoint.restore()
    assert endpoint.is_in_place()
    endpoint.close()
    assert not os.path.exists(path)


def test_a_deleted_socket_is_noticed_and_restored(directory: str) -> None:
    path = f"{directory}/control.sock"
    endpoint = SocketEndpoint.open(path)
    assert endpoint.is_in_place()
    os.unlink(path)
    assert not endpoint.is_in_place()
    endpoint.restore()
    assert endpoint.is_in_place()
    assert connects(path)
    assert mode(path) == 0o600
    endpoint.close()
    assert not os.path.exists(path)


def test_a_socket_that_was_handed_over_is_not_removed(directory: str) -> None:
    path = f"{directory}/control.sock"
    with socket.socket(socket.AF_UNIX) as given:
        given.bind(path)
        given.listen()
        endpoint = SocketEndpoint.inherited(given)
        assert endpoint.path == path
        assert endpoint.is_in_place()
        endpoint.close()
        assert os.path.exists(path)
