"""The places of configuration, state and socket."""

import os
import secrets
import stat
from collections.abc import Mapping

import structlog
from msgspec import Struct

from fallbackd.fronts.rpc.endpoint import EndpointUnusable, lock_directory, lock_file
from fallbackd.lib.privacy import fault_of
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
    def residents(self) -> str:
        return os.path.join(self.state_dir, "residents")

    @property
    def servers(self) -> str:
        return os.path.join(self.state_dir, "servers")

    @property
    def digest_key(self) -> str:
        """The key with which digests of credentials are made."""
        return os.path.join(self.state_dir, "digest.key")

    @property
    def gateway_token(self) -> str:
        """The token that callers of the gateway must send over TCP."""
        return os.path.join(self.state_dir, "gateway.token")

    @property
    def gateway_makers(self) -> str:
        """The backends that made the responses which the gateway is asked for by their ids."""
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
    """
    Take each place from the command line, else the environment, else the usual ones of a user.
    """
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


log = structlog.get_logger("state")


def claim_state(directory: str, lock: str) -> tuple[int, ...]:
    """
    Make the directory private and take its lock for the life of this process.

    Returns:
        The descriptors that hold the lock: of the directory, where it can be locked, and of the
        file that names the process.

    Raises:
        EndpointTaken: Another daemon has it. The message names its process id.
        EndpointUnusable: It cannot be made or made private.
    """
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        found = os.stat(directory)
    except OSError as error:
        raise EndpointUnusable(
            f"cannot make the state directory {directory}: {error.strerror}. Choose another one"
            " with --state-dir."
        ) from error
    fault = fault_of(directory, found, uid=os.geteuid())
    if fault is not None:
        raise EndpointUnusable(
            f"{fault.what}, and the state must be there. Run `{fault.fix}` if it is yours, or"
            " choose another one with --state-dir."
        )
    if stat.S_IMODE(found.st_mode) & 0o077:
        _close_to_others(directory, lock)
    of_directory = lock_directory(directory, owner_file=lock)
    try:
        of_file = lock_file(lock)
    except BaseException:
        if of_directory is not None:
            os.close(of_directory)
        raise
    return (of_file,) if of_directory is None else (of_directory, of_file)


def digest_key(path: str, *, size: int) -> bytes:
    """
    The key at `path`, made where there is none: as many random bytes, for this user alone.

    One that cannot be kept is good for this run: what was digested with it is not recognised later.
    """
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            known = file.read(size + 1)
        if len(known) == size:
            return known
        os.unlink(path)  # a crash has cut it
    except OSError:
        pass
    key = secrets.token_bytes(size)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
            file.write(key)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        log.warning("state.key_not_kept", path=path, problem=error.strerror)
    return key


def _close_to_others(directory: str, lock: str) -> None:
    """Only what is ours already, or empty: a mistyped path must not shut others out."""
    names = os.listdir(directory)
    if names and os.path.basename(lock) not in names:
        raise EndpointUnusable(
            f"the state directory {directory} is open to others and holds other files. Run"
            f" `chmod 700 {directory}` if it is meant, or choose another one with --state-dir."
        )
    os.chmod(directory, 0o700)
