"""
The place of the socket: made private, never taken from a daemon that lives.

The process that holds the lock beside the socket owns it. The lock is taken before anything is
touched, and a socket on which a process answers is left alone even when its lock is free.
"""

import fcntl
import os
import socket
import stat
import struct

from fallbackd.lib.privacy import fault_of
from fallbackd_client.paths import reachable

BACKLOG = 512


class EndpointTaken(Exception):
    """Another daemon is there. The message names its process id."""


class EndpointUnusable(Exception):
    """The socket cannot be made there. The message says why and what to do."""


def lock_file(path: str) -> int:
    """
    Take the lock file `path` for the life of this process.

    Returns:
        Its descriptor; closing it gives the lock up. The file holds the process id.

    Raises:
        EndpointTaken: Another process holds it.
        EndpointUnusable: It cannot be made.
    """
    try:
        held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise EndpointUnusable(f"cannot make the lock {path}: {error.strerror}") from error
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        owner = os.pread(held, 20, 0).decode("ascii", "replace").strip()
        os.close(held)
        raise _taken(owner, path) from error
    except OSError as error:
        os.close(held)
        raise EndpointUnusable(
            f"cannot lock {path}: {error.strerror}. Its file system has no locks (NFS without its"
            " lock service, for example), and without one two daemons may run the same work: choose"
            " a directory on a local disk with --state-dir and --socket."
        ) from error
    try:
        os.ftruncate(held, 0)
        os.pwrite(held, b"%d\n" % os.getpid(), 0)
    except OSError:
        pass  # a full disk: it is held all the same, and only the number is not to be read
    return held


def lock_directory(path: str, *, owner_file: str) -> int | None:
    """
    Lock a directory itself: a lock file in it can be deleted and made anew by another daemon.

    Args:
        owner_file: Where the process id of the owner stands.

    Returns:
        None: no directory can be locked there, and a lock file in it has to do. NFS locks only what
        is open for writing. Source: flock(2).

    Raises:
        EndpointTaken, EndpointUnusable: As `lock_file`.
    """
    try:
        held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise EndpointUnusable(f"cannot lock {path}: {error.strerror}") from error
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(held)
        try:
            with open(owner_file, encoding="ascii", errors="replace") as file:
                owner = file.read(20).strip()
        except OSError:
            owner = ""
        raise _taken(owner, path) from error
    except OSError:
        os.close(held)
        return None
    return held


def _taken(owner: str, path: str) -> EndpointTaken:
    who = f"process {owner}" if owner.isdigit() else "another process"
    return EndpointTaken(
        f"fallbackd already runs as {who}, which holds {path}. Stop it first, or name another"
        " socket and another state directory."
    )


class SocketEndpoint:
    """A listening socket at `path`, or one that was handed over by the service manager."""

    def __init__(self, path: str, listener: socket.socket, *, lock: int | None) -> None:
        self.path = path
        self.listener = listener
        self._lock = lock
        self._identity = _identity(path) if lock is not None else None
        self._former: socket.socket | None = None

    @classmethod
    def open(cls, path: str) -> "SocketEndpoint":
        """
        Listen at `path`: directory 0700, socket 0600.

        Raises:
            EndpointTaken, EndpointUnusable: As they say.
        """
        path = os.path.abspath(path)
        make_private_directory(os.path.dirname(path))
        lock = lock_file(f"{path}.lock")
        try:
            return cls(path, _bind(path), lock=lock)
        except BaseException:
            os.close(lock)
            raise

    @classmethod
    def inherited(cls, listener: socket.socket) -> "SocketEndpoint":
        """One that belongs to the service manager: it is neither locked nor unlinked here."""
        name = listener.getsockname()
        return cls(name if isinstance(name, str) else os.fsdecode(name), listener, lock=None)

    def is_in_place(self) -> bool:
        """Return whether a new caller would reach this socket by its path."""
        return self._lock is None or _identity(self.path) == self._identity

    def restore(self) -> None:
        """
        Listen anew at the path, after the socket was deleted.

        The former listener stays open until the next time: a client may still wait on it.
        """
        make_private_directory(os.path.dirname(self.path))
        listener = _bind(self.path)
        if self._former is not None:
            self._former.close()
        self._former, self.listener = self.listener, listener
        self._identity = _identity(self.path)

    def close(self) -> None:
        is_ours = self._lock is not None and self.is_in_place()
        self.listener.close()
        if self._former is not None:
            self._former.close()
        if is_ours:
            try:
                os.unlink(self.path)
            except OSError:
                pass
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def make_private_directory(path: str) -> None:
    """
    Make `path` with mode 0700, or make sure that no other user can replace what is in it.

    Raises:
        EndpointUnusable: It belongs to another user, or others may write to it.
    """
    is_shared = os.path.basename(path) != "fallbackd"
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        found = os.stat(path)
        fault = fault_of(path, found, uid=os.geteuid(), is_shared=is_shared)
        if fault is None and not is_shared and stat.S_IMODE(found.st_mode) != 0o700:
            os.chmod(path, 0o700)
    except OSError as error:
        raise EndpointUnusable(
            f"cannot make the directory {path}: {error.strerror}. Choose another place with"
            " --socket."
        ) from error
    if fault is not None:
        raise EndpointUnusable(
            f"{fault.what}, and the socket must be there. Run `{fault.fix}`, or choose another"
            " place with --socket."
        )


def _bind(path: str) -> socket.socket:
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    before = os.umask(0o177)  # the socket is private from its first instant on
    try:
        with reachable(path) as address:
            listener.bind(address)
    except OSError as error:
        listener.close()
        raise EndpointUnusable(
            f"cannot listen at {path}: {error.strerror}. Choose another place with --socket."
        ) from error
    finally:
        os.umask(before)
    listener.listen(BACKLOG)
    listener.setblocking(False)
    return listener


def _remove_stale(path: str) -> None:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise EndpointUnusable(f"cannot look at {path}: {error.strerror}") from error
    if not stat.S_ISSOCK(found.st_mode):
        raise EndpointUnusable(
            f"{path} is not a socket. Move it away, or choose another place with --socket."
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(2)
        try:
            with reachable(path) as address:
                probe.connect(address)
        except (ConnectionRefusedError, FileNotFoundError):
            pass  # no process listens: left over
        except OSError as error:
            raise EndpointTaken(f"another process listens at {path} ({error.strerror}).") from error
        else:
            pid = struct.unpack("3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[
                0
            ]
            raise EndpointTaken(
                f"process {pid} listens at {path}. Stop it first, or choose another place with"
                " --socket."
            )
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise EndpointUnusable(f"cannot replace {path}: {error.strerror}") from error


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
