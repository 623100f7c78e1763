"""The interface to the process around the engine, and to the caller."""

import ipaddress
import socket as sockets
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import urlsplit

from msgspec import Struct, field

from fallbackd.config.fields import Problem
from fallbackd.core.authority import Authority
from fallbackd.core.opencode.turns import Redirect
from fallbackd_client.wire.methods.events import EventsSubscribeParams


class BadServer(Exception):
    """An address that cannot be taken. Says what to give instead."""


class NotWatched(Exception):
    """An opencode that works for an attempt: the engine moves it on."""

    def __init__(self) -> None:
        super().__init__("this opencode works for a delegation, which fails over by itself")


class ServerState(Struct, frozen=True, kw_only=True):
    url: str
    is_up: bool
    is_announced: bool
    version: str | None = None
    problem: str = ""
    is_refused: bool = False
    """It answers, and cannot be followed until that changes: its version, its password."""


class Plugin(Protocol):
    """An opencode that is reached through the plugin at the other end of a connection."""

    @property
    def url(self) -> str: ...

    def answered(self, call: int, *, status: int, text: str, more: bool) -> None: ...

    def hear(self, event: Mapping[str, Any], *, directory: str) -> None: ...


class OpencodeServers(Protocol):
    def states(self) -> Sequence[ServerState]: ...

    async def announce(self, url: str, *, password: str | None, directory: str = "") -> bool:
        """
        A server says that it is there.

        Returns:
            Whether it was known already.

        Raises:
            BadServer: Its address cannot be taken.
            NotWatched: It works for an attempt.
        """
        ...

    def attach(
        self,
        name: str,
        connection: int,
        tell: Callable[[Mapping[str, Any]], None],
        *,
        directory: str,
        pid: int | None = None,
    ) -> bool:
        """
        An opencode that cannot be called is there, and its plugin is at the other end.

        Returns:
            Whether it was not attached already.

        Raises:
            BadServer: Too many of them.
        """
        ...

    def enter(self, url: str, connection: int, tell: Callable[[Mapping[str, Any]], None]) -> bool:
        """
        A server that can be called has a plugin too, at the other end.

        Returns:
            Whether it was not known already.
        """
        ...

    def attached(self, connection: int) -> Plugin | None: ...

    def detach(self, name: str, connection: int) -> None: ...

    async def redirect(
        self, *, server: str, session: str, directory: str, agent: str | None, model: str
    ) -> Redirect: ...

    async def warned(self, directory: str) -> tuple[str, ...]:
        """List unusable settings in the files that hold in a directory."""
        ...


def is_usable(url: str) -> bool:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return False
    if parts.scheme != "http" or port is None or parts.username or parts.query or parts.fragment:
        return False
    if parts.path not in ("", "/"):
        return False
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class ConfigState(Struct, frozen=True, kw_only=True):
    """The configuration in effect, and what is wrong with the file on disk."""

    path: str | None = None
    loaded_at: float | None = None
    config: dict[str, Any] = field(default_factory=dict)  # as in the file, any JSON
    errors: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()


class Checked(Struct, frozen=True, kw_only=True):
    path: str | None = None
    errors: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()


class Trouble(Struct, frozen=True, kw_only=True):
    """Something around the daemon that is not as it has to be, while it lasts."""

    kind: str
    """Stable word: exposed, unprotected, shortage."""
    message: str
    """A sentence."""
    fix: str = ""
    """The command line that ends it, where there is one."""
    stops_work: bool = False
    """New work is refused until it has ended."""


class ImportedText(Struct, frozen=True, kw_only=True):
    """The configuration of another program, in our terms."""

    source: str
    toml: str
    taken: tuple[tuple[str, str], ...] = ()
    """(what, where it went)."""
    left: tuple[tuple[str, str], ...] = ()
    """(what, why it was not taken)."""
    written: str | None = None
    """The file that it was put into."""


class Host(Protocol):
    """The process: configuration, places, life."""

    @property
    def version(self) -> str: ...

    @property
    def pid(self) -> int: ...

    @property
    def socket(self) -> str: ...

    @property
    def state_dir(self) -> str | None: ...

    @property
    def path(self) -> str | None:
        """The directories in which programs are looked for."""
        ...

    @property
    def connections(self) -> int: ...

    @property
    def is_draining(self) -> bool: ...

    def config(self) -> ConfigState: ...

    def troubles(self) -> tuple[Trouble, ...]: ...

    async def check_config(
        self, *, path: str | None, text: str | None, directory: str | None = None
    ) -> Checked:
        """
        Read a configuration without taking it. Null for both: the daemon's own file, with the
        files of an opencode project.

        Args:
            directory: Of that project; null: all that are known.
        """
        ...

    async def import_config(
        self, *, path: str | None, env: dict[str, str] | None, write: bool
    ) -> ImportedText:
        """
        Read the configuration of another program: a file, or `JKZ_*` variables.

        Raises:
            Invalid: It cannot be read, or what was taken cannot be written.
        """
        ...

    async def reload_config(self) -> bool:
        """
        Read the file again.

        Returns:
            Whether anything changed. A bad file shows in `config().errors`, the last good
            configuration stays.
        """
        ...

    @property
    def opencode(self) -> OpencodeServers | None:
        """The watcher of opencode servers; None where nothing watches."""
        ...

    def authority_of(self, connection: sockets.socket) -> Authority:
        """
        Return the authority of the process at the other end, looked up once for each connection.
        """
        ...

    async def notify_test(self) -> dict[str, str | None]:
        """Send a notification now. By way: None where it arrived, else why not."""
        ...

    async def drain(self) -> None:
        """Stop accepting work and let running work finish."""
        ...

    async def undrain(self) -> bool:
        """Take new work again. False: it is too late, the process ends."""
        ...

    def shut_down(self, *, stop_work: bool) -> None:
        """
        Drain, then end the process. Returns at once.

        Args:
            stop_work: Cancel what runs instead of waiting for its end.
        """
        ...


class EventSubscriptions(Protocol):
    """The subscribers to events."""

    def open(self, owner: "Caller", wanted: EventsSubscribeParams) -> tuple[str, int, str | None]:
        """
        Begin a subscription.

        Returns:
            Its name, the `seq` of the last journaled event at this moment, and what the
            subscriber has to know about its `since`, if anything.
        """
        ...

    def end(self, owner: "Caller", name: str) -> bool:
        """Returns: Whether there was one."""
        ...


class Caller(Protocol):
    """The other end of the connection that a request came on, as far as handlers need it."""

    @property
    def host(self) -> Host: ...

    @property
    def subscriptions(self) -> EventSubscriptions: ...

    @property
    def number(self) -> int: ...

    @property
    def peer_pid(self) -> int | None:
        """The process that connected, where the kernel tells. It may be gone by now."""
        ...

    @property
    def authority(self) -> Authority:
        """The authority of this connection, as found when it connected."""
        ...

    @property
    def client(self) -> str | None:
        """The client with which this connection counts where work has to be shared out."""
        ...

    @property
    def peer_uid(self) -> int | None:
        """The user of that process, where the kernel tells."""
        ...

    @property
    def backlog_bytes(self) -> int:
        """The bytes that wait to be sent."""
        ...

    @property
    def is_open(self) -> bool: ...

    @property
    def has_hung_up(self) -> bool:
        """The peer reads no answer any more. One that only sends no more still reads."""
        ...

    def write(self, data: bytes) -> None:
        """Send now or soon; never waits. Nothing happens on a closed connection."""
        ...

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Tell something that was not asked for."""
        ...

    async def until_drained(self) -> None:
        """Wait until the peer has taken most of what was written, or is gone."""
        ...

    def start_soon(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run beside the connection, until it closes."""
        ...

    def on_close(self, work: Callable[[], None]) -> None: ...
