"""Delegations: begin one, look at it, wait, stop it, read its log, explain it."""

from typing import Any

import msgspec
from msgspec import Struct

from fallbackd_client.wire.bounds import (
    CalendarInstant,
    ChainName,
    CountLimit,
    Cursor,
    DeadlineS,
    DelegationState,
    DirectoryPath,
    Instant,
    Mode,
    Name,
    OnPartial,
    Permissions,
    Priority,
    PromptText,
    RequestName,
    RoleName,
    SessionName,
    SettleS,
    StandbyS,
    WaitFor,
    WaitS,
    one_of,
)
from fallbackd_client.wire.envelope import Method
from fallbackd_client.wire.shapes import Delegation, DelegationLine


class ChainEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    backend: Name
    """Id of a backend."""
    model: Name | None = None
    """The model to use there."""
    tier: Name | None = None
    """`primary`, `model`, `api` or `in_session`."""
    effort: Name | None = None
    """Reasoning effort for the caller, with `in-session`."""


class DelegateParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`timeout_s` stops the work; `wait_s` bounds only the waiting of this call."""

    prompt: PromptText
    """What the agent is to do."""
    backend: Name | None = None
    """The backend to try first."""
    platform: Name | None = None
    """The same as `backend`, for older callers."""
    role: RoleName | None = None
    """A configured role: its chain and its rules."""
    chain: ChainName | tuple[Name | ChainEntry, ...] | None = None
    """Candidates in order, or the name of a configured chain."""
    session: SessionName | None = None
    """The caller's conversation, which keeps related work on the same backend."""
    session_id: SessionName | None = None
    """The same as `session`, for older callers."""
    cwd: DirectoryPath | None = None
    """Working directory of the agent; null: `default_cwd`, else a private directory."""
    model: Name | None = None
    """The model to use."""
    mode: Mode | None = None
    """`interactive` fails over quickly, `batch` waits longer."""
    wait: WaitFor = "settled"
    """When to answer: `accepted` at once, `settled` at the first output, `finished` at the end."""
    settle_s: SettleS | None = None
    """How long `settled` waits for an early failure."""
    wait_s: WaitS | None = None
    """How long to wait for the answer to this call; the work continues."""
    strict_wait: bool = False
    """Answer with the error -32007 when `wait_s` is over, instead of the running delegation."""
    queue: bool = True
    """Wait for a session or directory that is in use; false: refuse at once with -32002."""
    timeout_s: DeadlineS | None = None
    """Deadline of the work: it is stopped after this time."""
    when_available: bool = False
    """Wait until a backend is available, for 24 h at most, instead of being refused."""
    wait_for_s: StandbyS | None = None
    """The same, for this long at most."""
    wait_until_at: CalendarInstant | None = None
    """The same, until this time of the clock at most."""
    not_before_at: CalendarInstant | None = None
    """Start no attempt before this time of the clock; the work waits like the above."""
    not_before_s: StandbyS | None = None
    """The same, for a time from now: it moves with the clock, where that is set."""
    priority: Priority = 0
    """Rank among work that waits for a backend, highest first; 0 from inside an attempt."""
    request_id: RequestName | None = None
    """Idempotency key: the same id with the same parameters is the same delegation."""
    failover: bool = True
    """Use the next candidate after a failure; false: the first one only."""
    on_partial: OnPartial | None = None
    """What to do if a failed attempt may have changed files."""
    fresh: bool = False
    """Begin a new conversation: nothing that was said in the session is continued."""
    allow_metered: bool = False
    """Allow backends that are billed by use."""
    differs_from: tuple[Name, ...] = ()
    """Model families or delegations; their model families are left out."""
    permissions: Permissions | None = None
    """What the agent may do: `read`, `workspace` (default) or `full`."""
    env: dict[str, str] | None = None
    """Variables for the agent; only those that `allow_env` of the backend names."""
    metadata: dict[str, Any] | None = None  # the caller's own JSON
    """The caller's own JSON, returned with the delegation."""
    orphan_s: DeadlineS | None = None
    """
    Stop the work when for so long no connection is left that asked for it or waited for it; null:
    it outlives its callers. `delegation.keep` takes it back.
    """
    parent: Name | None = None
    """Sent by the clients; the daemon finds the attempt around a caller by its processes."""

    def normalised(self) -> "DelegateParams":
        """
        Return these params under today's names.

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
    who="any",
    promises="work",
    errors=("unknown", "busy", "draining", "not_permitted", "wait_over"),
    summary="Run a prompt on the best available backend.",
    example=(
        {
            "prompt": "Make the parser accept empty input",
            "backend": "codex",
            "cwd": "/home/me/project",
            "wait": "finished",
            "timeout_s": 900,
        },
        {
            "delegation": "d4f0c2a91b7e",
            "state": "succeeded",
            "created_at": 1767268800.0,
            "session": "s-review",
            "requested": "codex",
            "active": "opencode",
            "served_by": "opencode",
            "fallback_from": "codex",
            "fallback_reason": "usage_limit: codex hit its usage limit",
            "text": "The parser now accepts empty input.",
            "ended_at": 1767268842.5,
        },
    ),
)


class DelegationGetParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    delegation: Name
    """Id of the delegation."""


DELEGATION_GET: Method[DelegationGetParams, Delegation] = Method(
    "delegation.get",
    params=DelegationGetParams,
    result=Delegation,
    read_only=True,
    who="own",
    errors=("unknown",),
    summary="One delegation as it is now.",
    example=(
        {"delegation": "d4f0c2a91b7e"},
        {
            "delegation": "d4f0c2a91b7e",
            "state": "succeeded",
            "created_at": 1767268800.0,
            "session": "s-review",
            "requested": "codex",
            "active": "opencode",
            "served_by": "opencode",
            "fallback_from": "codex",
            "fallback_reason": "usage_limit: codex hit its usage limit",
            "text": "The parser now accepts empty input.",
            "ended_at": 1767268842.5,
        },
    ),
)


class DelegationListParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    session: SessionName | None = None
    """Only of this session."""
    state: DelegationState | None = None
    """Only in this state."""
    backend: Name | None = None
    """Run last, or answered, by this backend."""
    cwd: DirectoryPath | None = None
    """In this directory or below it."""
    ended: bool | None = None
    """True: only ended ones, the last ended first; false: only the others."""
    prefix: Name | None = None
    """The id begins with this."""
    since_at: Instant | None = None
    """Created at or after this time; with `ended: true`, ended at or after it."""
    limit: CountLimit | None = None
    """At most so many; default 100."""
    cursor: Cursor | None = None
    """`next_cursor` of the answer before, to continue behind it."""
    brief: bool = False
    """Answer with `lines` instead of `delegations`: short, with the beginning of the prompt."""


class DelegationListResult(Struct, frozen=True, kw_only=True):
    delegations: tuple[Delegation, ...] = ()
    """The delegations, newest first."""
    lines: tuple[DelegationLine, ...] = ()
    """With `brief`."""
    truncated: bool = False
    """There are more within `limit`; together they are too large for one answer."""
    next_cursor: str | None = None
    """Null: there are no more. An answer may hold fewer than `limit`, even none, and have one."""


DELEGATION_LIST: Method[DelegationListParams, DelegationListResult] = Method(
    "delegation.list",
    params=DelegationListParams,
    result=DelegationListResult,
    read_only=True,
    who="own",
    errors=("unknown",),
    summary="Delegations, newest first.",
    example=(
        {"state": "succeeded", "limit": 1},
        {
            "delegations": [
                {
                    "delegation": "d4f0c2a91b7e",
                    "state": "succeeded",
                    "created_at": 1767268800.0,
                    "session": "s-review",
                    "requested": "codex",
                    "active": "opencode",
                    "served_by": "opencode",
                    "fallback_from": "codex",
                    "fallback_reason": "usage_limit: codex hit its usage limit",
                    "text": "The parser now accepts empty input.",
                    "ended_at": 1767268842.5,
                }
            ]
        },
    ),
)


class DelegationRetryParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    delegation: Name
    """One that has ended."""
    request_id: RequestName | None = None
    """Idempotency key of the new delegation."""


DELEGATION_RETRY: Method[DelegationRetryParams, Delegation] = Method(
    "delegation.retry",
    params=DelegationRetryParams,
    result=Delegation,
    read_only=False,
    who="own",
    promises="work",
    errors=("unknown", "busy", "draining", "not_permitted", "wait_over"),
    summary="Delegate the same prompt with the same parameters once more; returns at once.",
    example=(
        {"delegation": "d1a206ccaac0e0aebfd7"},
        {"delegation": "d1a206ffaab0b8dacb61", "state": "queued", "created_at": 1790000000.0},
    ),
)


class DelegationReplyParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    delegation: Name
    """One of the session that is continued."""
    prompt: PromptText
    """What the agent is to do next."""
    request_id: RequestName | None = None
    """Idempotency key of the new delegation."""


DELEGATION_REPLY: Method[DelegationReplyParams, Delegation] = Method(
    "delegation.reply",
    params=DelegationReplyParams,
    result=Delegation,
    read_only=False,
    who="own",
    promises="work",
    errors=("unknown", "busy", "draining", "not_permitted", "wait_over"),
    summary="Continue the conversation of a delegation with a further prompt; returns at once.",
    example=(
        {"delegation": "d1a206ccaac0e0aebfd7", "prompt": "Now add a test for it"},
        {"delegation": "d1a206ffaab0b8dacb61", "state": "queued", "created_at": 1790000000.0},
    ),
)


class DelegationWaitParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    delegation: Name
    """Id of the delegation."""
    timeout_s: WaitS | None = None
    """How long to wait; the work continues."""
    strict_wait: bool = False
    """Answer with the error -32007 when the time is over, instead of the running delegation."""


DELEGATION_WAIT: Method[DelegationWaitParams, Delegation] = Method(
    "delegation.wait",
    params=DelegationWaitParams,
    result=Delegation,
    read_only=True,
    who="own",
    errors=("unknown", "wait_over"),
    summary="Wait for the end of a delegation, or until a question opens.",
    example=(
        {"delegation": "d4f0c2a91b7e", "timeout_s": 30},
        {
            "delegation": "d4f0c2a91b7e",
            "state": "running",
            "created_at": 1767268800.0,
            "requested": "codex",
            "active": "codex",
            "phase": "thinking",
            "wait_over": True,
        },
    ),
)


class DelegationCancelParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Exactly one of the three."""

    delegation: Name | None = None
    """Id of the delegation."""
    request_id: RequestName | None = None
    """The `request_id` that began it; a request with this id that is still to come is refused."""
    session: SessionName | None = None
    """Everything that is unfinished in this session."""

    def normalised(self) -> "DelegationCancelParams":
        """
        Raises:
            msgspec.ValidationError: None of the three, or more than one.
        """
        given = [one for one in (self.delegation, self.request_id, self.session) if one is not None]
        if len(given) != 1:
            raise msgspec.ValidationError(
                "Object needs exactly one of `delegation`, `request_id` and `session`"
            )
        return self


DELEGATION_CANCEL: Method[DelegationCancelParams, Delegation] = Method(
    "delegation.cancel",
    params=DelegationCancelParams,
    result=Delegation,
    read_only=False,
    who="own",
    promises="record",
    errors=("unknown", "draining"),
    summary="Stop a delegation, by its id, its request or its session; returns when it is proven"
    " stopped.",
    example=(
        {"delegation": "d4f0c2a91b7e"},
        {
            "delegation": "d4f0c2a91b7e",
            "state": "cancelled",
            "created_at": 1767268800.0,
            "requested": "codex",
            "active": "codex",
            "ended_at": 1767268812.0,
        },
    ),
)


class DelegationStandbyParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Terms that are left out stay as they are."""

    delegation: Name
    """One that waits until a backend is available."""
    starts: bool = False
    """
    Start it now, whatever is known of its backends; one that is paused stays paused. Refused from
    inside an attempt.
    """
    wait_for_s: StandbyS | None = None
    """It is refused after this time from now."""
    wait_until_at: CalendarInstant | None = None
    """It is refused at this time of the clock."""
    not_before_at: CalendarInstant | None = None
    """It does not start before this time of the clock; a time that is over: at once."""
    not_before_s: StandbyS | None = None
    """Delay of its start, from now."""
    priority: Priority | None = None
    """Of what waits, the highest goes first."""


DELEGATION_STANDBY: Method[DelegationStandbyParams, Delegation] = Method(
    "delegation.standby",
    params=DelegationStandbyParams,
    result=Delegation,
    read_only=False,
    who="own",
    promises="record",
    errors=("unknown", "draining", "not_permitted"),
    summary="Start work that waits until a backend is available, or change its terms.",
    example=(
        {"delegation": "d4f0c2a91b7e", "priority": 10},
        {
            "delegation": "d4f0c2a91b7e",
            "state": "waiting",
            "created_at": 1767268800.0,
            "requested": "codex",
            "active": "codex",
            "standby": {
                "since_at": 1767268801.0,
                "expects_at": 1767283200.0,
                "limit_at": 1767355200.0,
                "priority": 10,
            },
        },
    ),
)


class DelegationKeepParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    delegation: Name
    """Id of the delegation."""


DELEGATION_KEEP: Method[DelegationKeepParams, Delegation] = Method(
    "delegation.keep",
    params=DelegationKeepParams,
    result=Delegation,
    read_only=False,
    who="own",
    promises="record",
    errors=("unknown", "draining"),
    summary="Let a delegation outlive its callers, whatever `orphan_s` it was given.",
    example=(
        {"delegation": "d4f0c2a91b7e"},
        {
            "delegation": "d4f0c2a91b7e",
            "state": "running",
            "created_at": 1767268800.0,
            "requested": "codex",
            "active": "codex",
        },
    ),
)


METHODS = (
    DELEGATE,
    DELEGATION_GET,
    DELEGATION_LIST,
    DELEGATION_RETRY,
    DELEGATION_REPLY,
    DELEGATION_WAIT,
    DELEGATION_CANCEL,
    DELEGATION_KEEP,
    DELEGATION_STANDBY,
)
