"""
Landlock, the kernel's sandbox for ordinary users, by its three system calls.

A ruleset lists rights; what it does not allow is refused, for good, to the process that enters it
and to all that it starts. See landlock(7). Restricted are files and, where the kernel can, signals
and abstract sockets: both reach only what runs under the same rules. Executing, listing directories
and other sockets are left alone.
"""

import ctypes
import os
import struct

_CREATE_RULESET = 444
_ADD_RULE = 445
_RESTRICT_SELF = 446
"""Numbers that are the same on every architecture that Python runs on."""
_VERSION = 1
_PATH_BENEATH = 1
_PR_SET_NO_NEW_PRIVS = 38

_WRITE_FILE = 1 << 1
_READ_FILE = 1 << 2
_REMOVE_DIR = 1 << 4
_REMOVE_FILE = 1 << 5
_MAKE_CHAR = 1 << 6
_MAKE_DIR = 1 << 7
_MAKE_REG = 1 << 8
_MAKE_SOCK = 1 << 9
_MAKE_FIFO = 1 << 10
_MAKE_BLOCK = 1 << 11
_MAKE_SYM = 1 << 12
_REFER = 1 << 13
_TRUNCATE = 1 << 14

MIN_ABI = 2
"""Linux 5.19. Before it, no file could be moved from one directory to another."""
WHOLE_ABI = 3
"""Linux 6.2. Before it, truncating a file counts as no change."""
SCOPES_ABI = 6
"""Linux 6.12. Before it, signals and abstract sockets reach every process of the user."""
_SCOPE_ABSTRACT_UNIX_SOCKET = 1 << 0
_SCOPE_SIGNAL = 1 << 1

READ = _READ_FILE
WRITE = (
    _WRITE_FILE
    | _REMOVE_DIR
    | _REMOVE_FILE
    | _MAKE_DIR
    | _MAKE_REG
    | _MAKE_SOCK
    | _MAKE_FIFO
    | _MAKE_SYM
    | _REFER
    | _TRUNCATE
)
FOLDERS = _MAKE_DIR | _REMOVE_DIR
_NEVER = _MAKE_CHAR | _MAKE_BLOCK
"""A device node of the superuser's own would be a way around every other rule."""
_OF_FILES = _READ_FILE | _WRITE_FILE | _TRUNCATE

_libc = ctypes.CDLL(None, use_errno=True)


def _syscall(number: int, *arguments: object) -> int:
    """
    Raises:
        OSError: The kernel refused.
    """
    result: int = _libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def kernel_abi() -> int:
    """Return the version of the running kernel; 0: it has no Landlock, or it is switched off."""
    try:
        return _syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION))
    except OSError:
        return 0


class Ruleset:
    """A list of what is allowed, until it is entered. Hold it open until then, and close it."""

    def __init__(self, *, abi: int, reads: bool) -> None:
        """
        Args:
            abi: At least `MIN_ABI`.
            reads: Whether reading has to be allowed too.

        Raises:
            OSError: The kernel has no Landlock, or no memory.
        """
        self._handled = WRITE | _NEVER | (READ if reads else 0)
        if abi < WHOLE_ABI:
            self._handled &= ~_TRUNCATE
        attributes = struct.pack("=Q", self._handled)
        if abi >= SCOPES_ABI:  # behind the ports that are handled, which are none
            attributes += struct.pack("=QQ", 0, _SCOPE_ABSTRACT_UNIX_SOCKET | _SCOPE_SIGNAL)
        self._handle = _syscall(
            _CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0)
        )

    def close(self) -> None:
        os.close(self._handle)

    def allow(self, place: int, rights: int, *, is_directory: bool) -> None:
        """
        Allow `READ`, `WRITE` or both below an open directory, or of one open file.

        Args:
            place: Opened with `O_PATH`.

        Raises:
            OSError: Nothing on this file system can be allowed, or there is no memory.
        """
        rights &= self._handled if is_directory else self._handled & _OF_FILES
        if rights:
            rule = struct.pack("=Qi", rights, place)
            _syscall(
                _ADD_RULE,
                ctypes.c_int(self._handle),
                ctypes.c_int(_PATH_BENEATH),
                rule,
                ctypes.c_uint32(0),
            )

    def enter(self) -> None:
        """
        Hold the calling thread, and whatever it starts, to the rules. There is no way back.

        From here on programs with a set-user-id bit get no rights by it: the kernel wants that of
        ordinary users, and it is the same for the superuser.

        Raises:
            OSError: E2BIG where 16 sandboxes are nested already.
        """
        if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        _syscall(_RESTRICT_SELF, ctypes.c_int(self._handle), ctypes.c_uint32(0))
