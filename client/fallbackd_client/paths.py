"""Paths of the daemon's socket, and of what clients keep beside its records."""

import errno
import os

MAX_ADDRESS_BYTES = 107
"""`sun_path` of Linux holds 108 bytes with the closing NUL. Source: unix(7)."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def home_of(environ: "Mapping[str, str]") -> str:
    """`$HOME`, else the home of the account; `expanduser` takes an empty `$HOME` for `/`."""
    given = environ.get("HOME")
    if given:
        return given
    import pwd  # rarely needed

    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return "/"


def settle_home() -> None:
    """Let everything in this process, and its children, see the same home."""
    if os.environ.get("HOME") == "":
        os.environ["HOME"] = home_of(os.environ)


def socket_candidates(environ: "Mapping[str, str]") -> list[str]:
    """
    Paths in the order in which the daemon chooses: `$FALLBACKD_SOCKET` alone where it is set,
    else below `$XDG_RUNTIME_DIR`, else below the state directory.

    XDG variables that hold no absolute path are ignored, as their specification says.
    """
    explicit = environ.get("FALLBACKD_SOCKET")
    if explicit:
        return [explicit]
    candidates = []
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime):
        candidates.append(os.path.join(runtime, "fallbackd", "control.sock"))
    candidates.append(os.path.join(state_dir(environ), "control.sock"))
    return candidates


def state_dir(environ: "Mapping[str, str]") -> str:
    state = environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):
        state = os.path.join(home_of(environ), ".local", "state")
    return os.path.join(state, "fallbackd")


def find_socket(environ: "Mapping[str, str] | None" = None, *, runtimes: str = "/run/user") -> str:
    """
    The first candidate that exists; the first of all where none does.

    Some agents start their helpers without `$XDG_RUNTIME_DIR`: then the user's own runtime
    directory is looked at in its place, unless `$HOME` says that another place is meant.
    """
    environ = os.environ if environ is None else environ
    candidates = socket_candidates(environ)
    found = candidates
    if not environ.get("FALLBACKD_SOCKET") and not environ.get("XDG_RUNTIME_DIR"):
        found = [*_of_user(environ, runtimes), *candidates]
    return next((path for path in found if os.path.exists(path)), candidates[0])


def _of_user(environ: "Mapping[str, str]", runtimes: str) -> list[str]:
    import pwd  # rarely needed

    uid = os.getuid()
    try:
        home = pwd.getpwuid(uid).pw_dir
    except KeyError:
        return []
    if environ.get("HOME", home) != home:
        return []
    return [os.path.join(runtimes, str(uid), "fallbackd", "control.sock")]


class reachable:  # noqa: N801  # reads as a function; `contextlib` would slow the start of clients
    """
    The address of a socket, for `bind` and `connect` inside the `with`.

    A path that is too long for an address is named below the descriptor of its directory.

    Raises:
        OSError: The directory cannot be opened, or the name of the socket itself is too long.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._directory = -1

    def __enter__(self) -> str:
        if len(os.fsencode(self._path)) <= MAX_ADDRESS_BYTES:
            return self._path
        directory, name = os.path.split(self._path)
        flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
        self._directory = os.open(directory or ".", flags)
        address = f"/proc/self/fd/{self._directory}/{name}"
        if len(os.fsencode(address)) > MAX_ADDRESS_BYTES:
            self.__exit__()
            what = "the name of a socket is too long; choose a shorter one"
            raise OSError(errno.ENAMETOOLONG, what, self._path)
        return address

    def __exit__(self, *_: object) -> None:
        if self._directory >= 0:
            os.close(self._directory)
            self._directory = -1
