"""
Shapes that several methods share: `Delegation` and its parts, health, candidates.

A promise to callers, so kept apart from the daemon's own records. Fields are null (or empty)
where nothing is known, never absent; a reader ignores fields that it does not know.
Instants end in `_at` (Unix seconds, UTC), durations in `_s`.
"""

from typing import Any, Literal

from msgspec import Struct, field

from fallbackd_client.wire.bounds import DelegationState, Effects, HealthState, Trigger, Verdict


class Failure(Struct, frozen=True, kw_only=True):
    """What broke, for whom, and what would help."""

    reason: str
    detail: str | None = None
    scope: str | None = None
    retryable: bool = False
    retry_same: bool = False
    rotate_credential: bool = False
    hop: bool = False
    shrink_input: bool = False
    needs_human: bool = False
    marks_health: bool = False
    stated_reset_at: float | None = None
    stated_reset_s: float | None = None
    wait_until_at: float | None = None
    wait_s: float | None = None
    confidence: str = "exit_code"
    confidence_score: float = 1.0
    """0 to 1: of a reason that was guessed from text how likely it is; else 1."""
    signature: str = ""
    evidence: str = ""
    """A redacted excerpt."""


class Attempt(Struct, frozen=True, kw_only=True):
    """One backend, once: `<delegation>.<n>`."""

    attempt: str
    backend: str
    state: str
    """starting, running, stopping, succeeded, failed, cancelled, lost."""
    model: str | None = None
    credential: str | None = None
    trial: bool = False
    started_at: float | None = None
    answered_at: float | None = None
    """When the provider's reply was first seen for certain."""
    ended_at: float | None = None
    exit_code: int | None = None
    effects: Effects = "none"
    failure: Failure | None = None
    log_path: str | None = None
    pid: int | None = None
    conversation: str | None = None
    """What the agent calls its own conversation, where it can resume one."""
    resumes: str | None = None
    """The attempt whose conversation this one continues."""


class Hop(Struct, frozen=True, kw_only=True):
    """A move away from a candidate. A model swap inside one backend has `from` equal to `to`."""

    at: float
    from_: str = field(name="from")
    to: str | None
    """Null where the walk ended without a next one."""
    trigger: Trigger
    reason: str
    evidence: str | None = None
    tier_from: str | None = None
    tier_to: str | None = None
    from_model: str | None = None
    to_model: str | None = None


class Fix(Struct, frozen=True, kw_only=True):
    """What helps a candidate that waiting does not help."""

    kind: Literal["not_permitted", "configuration", "failed"]
    text: str
    """With the command to type, where there is one."""


class CandidateVerdict(Struct, frozen=True, kw_only=True):
    """Why a candidate was chosen, or why not."""

    backend: str
    verdict: Verdict
    reason: str = ""
    """Of the taxonomy where the state of the candidate is the cause, else words."""
    detail: str | None = None
    """A closer word, or what a caller said."""
    state: HealthState | None = None
    until_at: float | None = None
    model: str | None = None
    credential: str | None = None
    tier: str | None = None
    scope: str | None = None
    """What the state is kept for: the backend, its model, a credential, the account."""
    fix: Fix | None = None
    """Null: waiting helps, or it needs no help."""


class QuestionOption(Struct, frozen=True, kw_only=True):
    choice: str
    text: str


class AnsweredBy(Struct, frozen=True, kw_only=True):
    uid: int
    pid: int | None = None


class Question(Struct, frozen=True, kw_only=True):
    """A choice that only a person may make."""

    question: str
    delegation: str
    kind: str
    text: str
    options: tuple[QuestionOption, ...]
    opened_at: float
    session: str | None = None
    role: str | None = None
    deadline_at: float | None = None
    answered_at: float | None = None
    answered_by: AnsweredBy | None = None
    choice: str | None = None
    note: str | None = None
    closed_at: float | None = None
    """When it stopped to wait, answered or not; null while it is open."""


class HandedBack(Struct, frozen=True, kw_only=True):
    """The caller does the work itself, with this."""

    model: str | None = None
    effort: str | None = None


class TokenUsage(Struct, frozen=True, kw_only=True):
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None


class Delegation(Struct, frozen=True, kw_only=True):
    """One request, from acceptance to its one answer."""

    delegation: str
    state: DelegationState
    created_at: float
    session: str | None = None
    role: str | None = None
    requested: str | None = None
    active: str | None = None
    """Equal to `requested` until an attempt has started."""
    served_by: str | None = None
    """Null unless succeeded."""
    fallback_from: str | None = None
    """The backend originally asked for; null when there was no hop."""
    fallback_reason: str | None = None
    requested_platform: str | None = None
    """The same as `requested`, for older callers."""
    active_platform: str | None = None
    """The same as `active`, for older callers."""
    tiers_attempted: tuple[str, ...] = ()
    tier_served: str | None = None
    attempts: tuple[Attempt, ...] = ()
    hops: tuple[Hop, ...] = ()
    candidates: tuple[CandidateVerdict, ...] = ()
    """Verdicts of the last resolution."""
    text: str | None = None
    """The answer, as it is; its first 8 MiB where it is longer."""
    text_truncated: bool = False
    """`text` is not all of the answer."""
    text_path: str | None = None
    """File with the whole answer, where `text` is not."""
    failure: Failure | None = None
    message: str | None = None
    """A sentence for people about how it ended."""
    retry_at: float | None = None
    """Earliest time at which somebody may be available again."""
    question: Question | None = None
    handed_back: HandedBack | None = None
    phase: str | None = None
    last_activity_at: float | None = None
    usage: TokenUsage = TokenUsage()
    log_path: str | None = None
    tmux_window: str | None = None
    ended_at: float | None = None
    request_id: str | None = None
    metadata: dict[str, Any] | None = None  # the caller's own JSON, handed back unchanged
    mode: str | None = None
    model: str | None = None
    parent: str | None = None
    """The delegation from inside which this one was asked for."""
    blocked_by: str | None = None
    """The delegation whose session or directory this one waits for."""
    wait_over: bool = False
    """The time that the caller wanted to wait is over; the work is as `state` says."""
    warnings: tuple[str, ...] = ()


class ScopeHealth(Struct, frozen=True, kw_only=True):
    """The record of one scope that a backend touches."""

    scope: str
    state: HealthState
    unproven: bool = False
    reason: str | None = None
    detail: str | None = None
    since_at: float | None = None
    until_at: float | None = None
    count: int = 0
    source: str | None = None
    """policy, provider, person."""
    seconds_remaining: float | None = None
    note: str | None = None
    age_s: float | None = None
    loaded_at: float | None = None
    """Read from disk then, and not confirmed since."""
    stated_reset_at: float | None = None
    trial: str | None = None
    """The attempt that holds the lease of the trial."""
    trial_owner: str | None = None
    """The caller that makes it by itself."""
    trial_generation: int | None = None
    trial_expires_at: float | None = None


class CredentialHealth(Struct, frozen=True, kw_only=True):
    """One of a backend's credentials, by its label."""

    label: str
    state: HealthState
    unproven: bool = False
    reason: str | None = None
    detail: str | None = None
    since_at: float | None = None
    until_at: float | None = None
    """Null while out: until its source changes."""
    count: int = 0
    source: str | None = None
    seconds_remaining: float | None = None
    note: str | None = None
    age_s: float | None = None
    loaded_at: float | None = None
    stated_reset_at: float | None = None
    uses: int = 0
    """How many calls it was chosen for."""


class HealthEntry(Struct, frozen=True, kw_only=True):
    """
    A backend's health: the worst of the scopes that it touches.

    `marked_broken_at` and `ttl_seconds` repeat `since_at` and the length of the window for older
    callers.
    """

    state: HealthState
    unproven: bool = False
    reason: str | None = None
    detail: str | None = None
    since_at: float | None = None
    until_at: float | None = None
    count: int = 0
    """Consecutive failures."""
    source: str | None = None
    seconds_remaining: float | None = None
    marked_broken_at: float | None = None
    ttl_seconds: float | None = None
    note: str | None = None
    age_s: float | None = None
    loaded_at: float | None = None
    """Read from disk then, and not confirmed since."""
    stated_reset_at: float | None = None
    scopes: tuple[ScopeHealth, ...] = ()
    credentials: tuple[CredentialHealth, ...] = ()
    """Those that the configuration names, in its order."""


class ConfigProblem(Struct, frozen=True, kw_only=True):
    path: str
    """Dotted path of the field; empty for the file as a whole."""
    message: str


class SessionView(Struct, frozen=True, kw_only=True):
    session: str
    role: str | None = None
    original: str | None = None
    current: str | None = None
    original_model: str | None = None
    current_model: str | None = None
    depth: int = 0
    running: str | None = None
    """The delegation that runs now."""
    last_fallback_at: float | None = None
    last_active_at: float | None = None
    hops: tuple[Hop, ...] = ()
    notices: tuple[str, ...] = ()
    """The same as `notices_sent`."""
    notices_sent: tuple[str, ...] = ()
    """Pairs `original→current` that were announced."""
    ignored_reports: int = 0
    server: str | None = None
    """Address of the opencode server on which it lives."""
    directory: str | None = None
    """Of an opencode session."""
    rescue: str | None = None
    """A change of the model that is under way: its step, from where to where, and why."""


class UsageRow(Struct, frozen=True, kw_only=True):
    """What one backend used in one period."""

    backend: str
    period: str
    """
    hour, day (UTC), week (seven days), total; `since` where that was asked for. `model`: a time
    in which a session was on this model.
    """
    since_at: float | None = None
    until_at: float | None = None
    """End of a period that is over: its first instant that is not in it."""
    session: str | None = None
    model: str | None = None
    attempts: int = 0
    successes: int = 0
    failures: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None
    cap: float | None = None
    unit: str | None = None
    cost: str | None = None
    """Who pays: subscription, metered, local; null where nobody has said."""


class Evidence(Struct, frozen=True, kw_only=True):
    """Raw material of a failure, as a caller has seen it."""

    text: str | None = None
    stream: str | None = None
    """stdout, stderr, jsonl, http, exception, unknown."""
    exit_code: int | None = None
    """Null while the program still runs."""
    http_status: int | None = None
    headers: dict[str, str] | None = None
    """Names in any case."""
    body: Any = None  # a string or any JSON value
    exception: str | None = None
    """The type name; its message is in `text`."""
