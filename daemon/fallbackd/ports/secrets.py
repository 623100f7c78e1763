"""Secrets, found by reference, at the moment of their use, never kept."""

from typing import Protocol

from msgspec import Struct

from fallbackd.core.protocol import CredentialRef

KEY_NAME_BYTES = 8
"""A digest begins with as many bytes that name its key."""


class SecretProblem(Exception):
    """
    A credential cannot be used now. Its text says where and what to do, never what was found.

    Attributes:
        is_old: It is there, and over by its own date; else it is missing or cannot be read.
    """

    def __init__(self, text: str, *, is_old: bool = False) -> None:
        super().__init__(text)
        self.is_old = is_old


class SecretSeen(Struct, frozen=True, kw_only=True):
    """The result of a look at a credential's source."""

    problem: str | None = None
    """The reason why it cannot be used; None: it is there."""
    is_old: bool = False
    digest: bytes | None = None
    """
    Of the material, keyed. Digests that begin with different `KEY_NAME_BYTES` were made with
    different keys, and say nothing about each other. None: there is none to compare.
    """
    changed_at: float | None = None
    """Time when its source was last changed, where the source says so."""


class Secrets(Protocol):
    async def read(self, ref: CredentialRef) -> str:
        """
        The secret, for one call.

        Raises:
            SecretProblem: It is not there, or over.
        """
        ...

    async def identity(self, ref: CredentialRef) -> str:
        """
        Return what is the same wherever the same credential is used: of a login the account, since
        its tokens are renewed, else the secret itself. For keyed digests only.

        Raises:
            SecretProblem: It is not there, or over.
        """
        ...

    async def look(self, ref: CredentialRef, *, fresh: bool = False) -> SecretSeen:
        """
        See whether it is there and whether it is another one than before, without using it.

        Args:
            fresh: Ask a command again whose last answer is still good for use.
        """
        ...
