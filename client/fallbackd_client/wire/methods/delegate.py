"""`delegate`: have a prompt answered by the best healthy candidate."""

from typing import Any

import msgspec
from msgspec import Struct

from fallbackd_client.wire.aliases import one_of
from fallbackd_client.wire.bounds import (
    ChainName,
    DeadlineS,
    DirectoryPath,
    Mode,
    Name,
    OnPartial,
    Permissions,
    PromptText,
    RequestName,
    RoleName,
    SessionName,
    SettleS,
    WaitFor,
    WaitS,
)
from fallbackd_client.wire.envelope import Method
from fallbackd_client.wire.shapes import Delegation as Result


class ChainEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    backend: Name
    model: Name | None = None
    tier: Name | None = None
    effort: Name | None = None


class Params(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`timeout_s` stops the work; `wait_s` bounds only the waiting of this call."""

    prompt: PromptText
    backend: Name | None = None
    platform: Name | None = None
    """The same as `backend`."""
    role: RoleName | None = None
    chain: ChainName | tuple[Name | ChainEntry, ...] | None = None
    """Candidates in order, or the name of a configured chain."""
    session: SessionName | None = None
    session_id: SessionName | None = None
    """The same as `session`."""
    cwd: DirectoryPath | None = None
    model: Name | None = None
    mode: Mode | None = None
    wait: WaitFor = "settled"
    settle_s: SettleS | None = None
    wait_s: WaitS | None = None
    strict_wait: bool = False
    """An error (-32007) when `wait_s` is over, instead of the delegation with `wait_over`."""
    queue: bool = True
    """Wait for a session or a directory that is in use; false: refused at once (-32002)."""
    timeout_s: DeadlineS | None = None
    request_id: RequestName | None = None
    """The same id with the same params is the same delegation, never a second run."""
    failover: bool = True
    on_partial: OnPartial | None = None
    allow_metered: bool = False
    differs_from: tuple[Name, ...] = ()
    permissions: Permissions | None = None
    env: dict[str, str] | None = None
    metadata: dict[str, Any] | None = None  # the caller's own JSON
    parent: Name | None = None
    """Attempt from inside which the caller runs (`$FALLBACKD_ATTEMPT`), or its delegation."""

    def normalised(self) -> "Params":
        """
        The same under today's names.

        Raises:
            msgspec.ValidationError: Two names of one field contradict each other.
        """
        return msgspec.structs.replace(
            self,
            backend=one_of(backend=self.backend, platform=self.platform),
            platform=None,
            session=one_of(session=self.session, session_id=self.session_id),
            session_id=None,
        )


METHOD: Method[Params, Result] = Method(
    "delegate",
    params=Params,
    result=Result,
    read_only=False,
    summary="Have a prompt answered by the best healthy candidate.",
)
