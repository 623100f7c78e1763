"""Where things are: configuration, state, socket."""

import os
from collections.abc import Mapping

from msgspec import Struct

from fallbackd_client.paths import home_of, socket_candidates

_CONFIG = "FALLBACKD_CONFIG"


class Places(Struct, frozen=True, kw_only=True):
    """Absolute paths."""

    config: str
    config_is_named: bool = False
    """By the user, not by what is usual."""
    state_dir: str
    socket: str

    @property
    def database(self) -> str:
        return os.path.join(self.state_dir, "fallbackd.db")

    @property
    def runs(self) -> str:
        return os.path.join(self.state_dir, "runs")

    @property
    def servers(self) -> str:
        return os.path.join(self.state_dir, "servers")

    @property
    def digest_key(self) -> str:
        """With which digests of credentials are made."""
        return os.path.join(self.state_dir, "digest.key")

    @property
    def gateway_token(self) -> str:
        """What callers of the gateway must send over TCP."""
        return os.path.join(self.state_dir, "gateway.token")

    @property
    def gateway_makers(self) -> str:
        """Which backend made the responses that the gateway is asked for by their ids."""
        return os.path.join(self.state_dir, "gateway-responses.jsonl")

    @property
    def gateway_socket(self) -> str:
        return os.path.join(os.path.dirname(self.socket), "gateway.sock")

    @property
    def lock(self) -> str:
        return os.path.join(self.state_dir, "lock")


def find_places(
    environ: Mapping[str, str],
    *,
    config: str | None = None,
    state_dir: str | None = None,
    socket: str | None = None,
) -> Places:
    """What the command line says, else the environment, else the usual places of a user."""
    return Places(
        config=os.path.abspath(config or config_path(environ)),
        config_is_named=bool(config or environ.get(_CONFIG)),
        state_dir=os.path.abspath(state_dir or _home(environ, "XDG_STATE_HOME", ".local/state")),
        socket=os.path.abspath(socket or _socket(environ)),
    )


def config_path(environ: Mapping[str, str]) -> str:
    explicit = environ.get(_CONFIG)
    if explicit:
        return explicit
    return os.path.join(_home(environ, "XDG_CONFIG_HOME", ".config"), "config.toml")


def _home(environ: Mapping[str, str], variable: str, default: str) -> str:
    given = environ.get(variable, "")
    if not os.path.isabs(given):  # to be ignored, by the XDG Base Directory Specification
        given = os.path.join(home_of(environ), default)
    return os.path.join(given, "fallbackd")


def _socket(environ: Mapping[str, str]) -> str:
    """The first candidate of the client whose runtime directory exists."""
    candidates = socket_candidates(environ)
    for path in candidates[:-1]:
        if os.path.isdir(os.path.dirname(os.path.dirname(os.path.abspath(path)))):
            return path
    return candidates[-1]
