"""Delegations: begin one, look at it, wait, stop it, read its log, explain it."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, field

from fallbackd_client.wire.aliases import one_of
from fallbackd_client.wire.bounds import (
    ChainName,
    CountLimit,
    DeadlineS,
    DelegationState,
    DirectoryPath,
    Mode,
    Name,
    Offset,
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
from fallbackd_client.wire.shapes import CandidateVerdict, Delegation, Question


class ChainEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    backend: Name
    model: Name | None = None
    tier: Name | None = None
    effort: Name | None = None


class DelegateParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
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

    def normalised(self) -> "DelegateParams":
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


DELEGATE: Method[DelegateParams, Delegation] = Method(
    "delegate",
    params=DelegateParams,
    result=Delegation,
    read_only=False,
    summary="Have a prompt answered by the best healthy candidate.",
)


class DelegationGetParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    delegation: Name


DELEGATION_GET: Method[DelegationGetParams, Delegation] = Method(
    "delegation.get",
    params=DelegationGetParams,
    result=Delegation,
    read_only=True,
    summary="One delegation as it is now.",
)


class DelegationListParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    session: SessionName | None = None
    state: DelegationState | None = None
    limit: CountLimit | None = None


class DelegationListResult(Struct, frozen=True, kw_only=True):
    delegations: tuple[Delegation, ...] = ()
    truncated: bool = False
    """There are more within `limit`; together they are too large for one answer."""


DELEGATION_LIST: Method[DelegationListParams, DelegationListResult] = Method(
    "delegation.list",
    params=DelegationListParams,
    result=DelegationListResult,
    read_only=True,
    summary="Delegations, newest first.",
)


class DelegationWaitParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    delegation: Name
    timeout_s: WaitS | None = None
    """Bounds only the waiting; the work continues."""
    strict_wait: bool = False
    """An error (-32007) when the time is over, instead of the delegation with `wait_over`."""


DELEGATION_WAIT: Method[DelegationWaitParams, Delegation] = Method(
    "delegation.wait",
    params=DelegationWaitParams,
    result=Delegation,
    read_only=True,
    summary="Wait for the end of a delegation, or until a question opens.",
)


class DelegationCancelParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    delegation: Name


DELEGATION_CANCEL: Method[DelegationCancelParams, Delegation] = Method(
    "delegation.cancel",
    params=DelegationCancelParams,
    result=Delegation,
    read_only=False,
    summary="Stop a delegation; returns when it is proven stopped.",
)


class DelegationLogParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    delegation: Name
    attempt: Name | Annotated[int, Meta(ge=1)] | None = None
    """Its id, or its number; null: the last one."""
    offset: Offset = 0
    max_bytes: Annotated[int, Meta(ge=1, le=1048576)] | None = None
    """Never cuts a character: one that is longer than this comes whole."""


class DelegationLogResult(Struct, frozen=True, kw_only=True):
    """Ask again from `next_offset`. All is read when `ended` and `next_offset == size_bytes`."""

    delegation: str
    text: str
    """UTF-8; bytes that are none are replaced. Offsets count the recorded bytes."""
    offset: int
    next_offset: int
    size_bytes: int
    ended: bool
    """The attempt has ended, or the delegation without any: the log grows no more."""
    attempt: str | None = None
    """Null where no attempt has started."""
    log_path: str | None = None


DELEGATION_LOG: Method[DelegationLogParams, DelegationLogResult] = Method(
    "delegation.log",
    params=DelegationLogParams,
    result=DelegationLogResult,
    read_only=True,
    summary="A piece of the recorded output of one attempt.",
)


class ExplainParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    delegation: Name


class Step(Struct, frozen=True, kw_only=True):
    """One decision."""

    at: float
    event: str
    """What happened, as the name of the event (`DelegateRequested`, `AttemptFailed`, …)."""
    text: str = ""
    """The same as a sentence."""
    attempt: str | None = None
    candidates: tuple[CandidateVerdict, ...] = ()
    policy: dict[str, Any] = field(default_factory=dict)  # knobs by name, as they were used
    evidence: dict[str, Any] | None = None  # fields of the failure or of its evidence, redacted
    changes: tuple[str, ...] = ()
    """What was kept, a sentence each."""
    effects: tuple[str, ...] = ()
    """What was set going, a sentence each."""


class ExplainResult(Struct, frozen=True, kw_only=True):
    delegation: str
    decisions: tuple[Step, ...] = ()
    state: str | None = None
    requested: str | None = None
    served_by: str | None = None
    questions: tuple[Question, ...] = ()
    """What persons were asked about it, in order."""
    truncated: bool = False
    """Older decisions were dropped."""


EXPLAIN: Method[ExplainParams, ExplainResult] = Method(
    "explain",
    params=ExplainParams,
    result=ExplainResult,
    read_only=True,
    summary="Every decision taken about one delegation, with candidates, policy and evidence.",
)


METHODS = (
    DELEGATE,
    DELEGATION_GET,
    DELEGATION_LIST,
    DELEGATION_WAIT,
    DELEGATION_CANCEL,
    DELEGATION_LOG,
    EXPLAIN,
)
