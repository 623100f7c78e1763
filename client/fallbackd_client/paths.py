"""Paths of the daemon's socket, and of what clients keep beside its records."""

import os

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
