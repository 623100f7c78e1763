"""The process: its locks and its socket before the daemon lives, its exit status after it."""

import os
import resource
import socket
import sys
from collections.abc import Mapping

import anyio
import msgspec
import structlog
from msgspec import Struct

from fallbackd.app import private
from fallbackd.app.lifecycle import Daemon
from fallbackd.app.opencode_log import OpencodeLog
from fallbackd.app.places import Places, claim_state
from fallbackd.fronts.rpc.endpoint import EndpointTaken, EndpointUnusable, SocketEndpoint
from fallbackd.lib import heap
from fallbackd.lib.secretvalues import SecretValues
from fallbackd.stores.opening import StoreTooNew

MAX_DESCRIPTORS = 65_536
"""Enough for any number of attempts; some programs close every possible one when they start."""
FIRST_FD = 3  # SD_LISTEN_FDS_START, sd_listen_fds(3)
EXIT_FAILED = 1
EXIT_UNUSABLE = 78
"""EX_CONFIG: a place that cannot be used, or is used by another. To try again would not help."""

log = structlog.get_logger("daemon")


def build_types(of: type[Struct]) -> None:
    """
    Let msgspec learn the records below a type while there is one thread.

    It learns a type when a value is first read as one, and keeps what it knows before that is
    whole: a second thread that reads the same type meanwhile ends the process (msgspec 0.22).
    """
    for kind in of.__subclasses__():
        try:
            msgspec.json.Decoder(kind)
        except TypeError:
            pass  # of values that are never read from JSON
        build_types(kind)


def run(
    places: Places,
    environ: Mapping[str, str],
    *,
    secret_values: SecretValues | None = None,
    socket_is_given: bool = False,
    sessions_log: OpencodeLog | None = None,
) -> int:
    """Serve until a signal. Returns the exit status."""
    build_types(Struct)
    umask = os.umask(0o077)
    core_bytes = heap.forbid_core_dumps()
    heap.keep_large_blocks_apart()
    _raise_descriptor_limit()
    held: list[int] = []
    endpoint: SocketEndpoint | None = None
    try:
        held += claim_state(places.state_dir, places.lock)
        handed = handed_over(environ, own_pid=os.getpid())
        endpoint = (
            SocketEndpoint.open(places.socket)
            if handed is None
            else SocketEndpoint.inherited(handed)
        )
        if (exposed := private.require(private.watched(places, socket=endpoint.path))) is not None:
            raise EndpointUnusable(exposed)
        daemon = Daemon(places, environ, endpoint, umask=umask, core_bytes=core_bytes)
        daemon.sessions_log = sessions_log or daemon.sessions_log
        daemon.secret_values = secret_values or daemon.secret_values
        anyio.run(daemon.live)
    except (EndpointTaken, EndpointUnusable, StoreTooNew) as error:
        print(f"fallbackd: {error}", file=sys.stderr)
        return EXIT_UNUSABLE
    except BaseExceptionGroup as errors:
        known = errors.subgroup((EndpointTaken, EndpointUnusable, StoreTooNew))
        if known is not None:
            print(f"fallbackd: {_first(known)}", file=sys.stderr)
            return EXIT_UNUSABLE
        log.critical("daemon.failed", exc_info=errors)
        return EXIT_FAILED
    finally:
        if endpoint is not None:
            endpoint.close()
        for lock in held:
            os.close(lock)
    return 0


def handed_over(environ: Mapping[str, str], *, own_pid: int) -> socket.socket | None:
    """The listening socket that systemd has opened for us. Source: sd_listen_fds(3)."""
    if environ.get("LISTEN_PID") != str(own_pid):
        return None
    if not environ.get("LISTEN_FDS", "").isdecimal() or int(environ["LISTEN_FDS"]) < 1:
        return None
    found = socket.socket(fileno=FIRST_FD)
    found.set_inheritable(False)
    if found.family != socket.AF_UNIX or found.type != socket.SOCK_STREAM:
        raise EndpointUnusable(
            "the socket that systemd handed over is not a Unix stream socket. Use ListenStream="
            " with a path in the socket unit."
        )
    return found


def _raise_descriptor_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _first(errors: BaseException) -> BaseException:
    while isinstance(errors, BaseExceptionGroup):
        errors = errors.exceptions[0]
    return errors
