"""One blocking connection: lines out, messages in. Knows no methods and repeats nothing."""

import errno
import socket
import time

from fallbackd_client.calls import MAX_ANSWER_BYTES, Lost, read_message
from fallbackd_client.errors import NoDaemon, ProtocolError
from fallbackd_client.wire.framing import LineSplitter, LineTooLong

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from fallbackd_client.calls import Json

_CHUNK_BYTES = 65536
_BACKLOG_PAUSE_S = 0.02


def why_not(error: OSError, path: str) -> NoDaemon:
    """The cause behind a connect that failed."""
    match error.errno:
        case errno.ENOENT | errno.ENOTDIR:
            return NoDaemon("missing", path)
        case errno.ECONNREFUSED:
            return NoDaemon("refused", path)
        case errno.EACCES | errno.EPERM:
            return NoDaemon("not_permitted", path)
        case errno.EAGAIN:
            return NoDaemon("busy", path)
        case errno.EPROTOTYPE | errno.ENOTSOCK:
            return NoDaemon("bad_reply", path, detail="it is no stream socket")
        case _:
            return NoDaemon("unusable", path, detail=error.strerror or str(error))


class Connection:
    """
    A connected socket.

    Args:
        path: Of the socket.
        timeout_s: Bounds connecting and each sending.
        monotonic: Clock for deadlines.

    Raises:
        NoDaemon: There is no daemon.
    """

    def __init__(
        self,
        path: str,
        *,
        timeout_s: float | None = 30.0,
        monotonic: "Callable[[], float]" = time.monotonic,
    ) -> None:
        self.path = path
        self._timeout_s = timeout_s
        self._monotonic = monotonic
        self._splitter = LineSplitter(MAX_ANSWER_BYTES)
        self._lines: list[bytes] = []
        self._socket = self._connect()

    def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        give_up_at = self._monotonic() + (self._timeout_s or 0.0)
        try:
            while True:
                try:
                    connection.settimeout(self._timeout_s)
                    connection.connect(self.path)
                except BlockingIOError as error:  # the backlog is full: Unix sockets do not wait
                    if self._monotonic() >= give_up_at:
                        raise why_not(error, self.path) from error
                    time.sleep(_BACKLOG_PAUSE_S)
                except TimeoutError as error:
                    raise NoDaemon("busy", self.path) from error
                except OSError as error:
                    raise why_not(error, self.path) from error
                else:
                    return connection
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def is_stale(self) -> bool:
        """The other side has closed while we were not looking."""
        try:
            self._socket.settimeout(0)
            return self._socket.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def send(self, line: bytes) -> None:
        """
        Raises:
            Lost: The other side is gone.
            NoDaemon: It did not take the line in time.
        """
        try:
            self._socket.settimeout(self._timeout_s)
            self._socket.sendall(line)
        except TimeoutError as error:
            raise NoDaemon("timeout", self.path, timeout_s=self._timeout_s or 0.0) from error
        except (BrokenPipeError, ConnectionError):
            # What it said before it closed (a line beyond the limit, too many connections) may
            # still be there to read; without it, reading says that the connection is over.
            return
        except OSError as error:
            raise Lost from error

    def receive(self, timeout_s: float | None) -> "dict[str, Json]":
        """
        The next message.

        Args:
            timeout_s: None waits without an end.

        Raises:
            TimeoutError: Nothing whole came in time. What came of it is kept.
            Lost: The connection ended.
            NoDaemon: With cause bad_reply: no JSON-RPC.
            ProtocolError: A line beyond `MAX_ANSWER_BYTES`.
        """
        give_up_at = None if timeout_s is None else self._monotonic() + timeout_s
        while not self._lines:
            left_s = None if give_up_at is None else give_up_at - self._monotonic()
            if left_s is not None and left_s <= 0:
                raise TimeoutError
            try:
                self._socket.settimeout(left_s)
                data = self._socket.recv(_CHUNK_BYTES)
            except TimeoutError:
                raise
            except OSError as error:
                raise Lost from error
            if not data:
                raise Lost
            try:
                self._lines = self._splitter.feed(data)
            except LineTooLong as error:
                raise ProtocolError(f"the daemon's answer is too large: {error}") from error
        return read_message(self._lines.pop(0), self.path)
