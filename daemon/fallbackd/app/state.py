"""The state directory: private, and of one daemon."""

import os
import secrets
import stat

import structlog

from fallbackd.fronts.rpc.endpoint import EndpointUnusable, lock_directory, lock_file
from fallbackd.lib.privacy import fault_of

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
            f"{fault.what}, and the state is to be there. Run `{fault.fix}` if it is yours, or"
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
