"""The state directory: private, and of one daemon."""

import os
import stat

from fallbackd.fronts.rpc.endpoint import EndpointUnusable, lock_file
from fallbackd.lib.privacy import fault_of


def claim_state(directory: str, lock: str) -> int:
    """
    Make the directory private and take its lock for the life of this process.

    Returns:
        The descriptor that holds the lock.

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
            f"{fault.what}, and the state is to be there. Run `{fault.mend}` if it is yours, or"
            " choose another one with --state-dir."
        )
    if stat.S_IMODE(found.st_mode) & 0o077:
        _close_to_others(directory, lock)
    return lock_file(lock)


def _close_to_others(directory: str, lock: str) -> None:
    """Only what is ours already, or empty: a mistyped path must not shut others out."""
    names = os.listdir(directory)
    if names and os.path.basename(lock) not in names:
        raise EndpointUnusable(
            f"the state directory {directory} is open to others and holds other files. Run"
            f" `chmod 700 {directory}` if it is meant, or choose another one with --state-dir."
        )
    os.chmod(directory, 0o700)
