"""
Shapes that several methods share: `Delegation` and its parts, candidates, health, sessions.

A promise to callers, so kept apart from the daemon's own records. Fields are null (or empty)
where nothing is known, never absent; a reader ignores fields that it does not know.
Instants end in `_at` (Unix seconds, UTC), durations in `_s`.
"""

from typing import Any, Literal

from msgspec import Struct, field

from fallbackd_client.wire.bounds import (
    AttemptStateWord,
    ConfidenceWord,
    CostWord,
    DelegationState,
    Effects,
    HealthSourceWord,
    HealthState,
    LimitSourceWord,
    LimitUnitWord,
    Mode,
    PeriodWord,
    QuestionKindWord,
    ReasonWord,
    Stream,
    TierWord,
    Trigger,
    UnitWord,
    Verdict,
)


class Failure(Struct, frozen=True, kw_only=True):
    """A failure: what broke, for whom, and what would help."""

    reason: ReasonWord
    """Why the call failed, a word of the taxonomy such as `rate_limit` or `auth`."""
    detail: str | None = None
    """A narrower word for the same reason, such as `revoked` or `version`."""
    scope: str | None = None
    """
    What the failure is about, such as `backend:codex`; `model` or `credential` where a limit names
    one and is not marked yet; null: decided by the reason.
    """
    retryable: bool = False
    """The same request to the same backend may succeed within about 15 minutes."""
    retry_same: bool = False
    """The daemon repeats the call on the same backend by itself."""
    rotate_credential: bool = False
    """Another credential of the same backend may work."""
    hop: bool = False
    """Another backend may do the work."""
    shrink_input: bool = False
    """A shorter prompt may work."""
    needs_human: bool = False
    """Only a person can fix it."""
    marks_health: bool = False
    """It takes something out of rotation."""
    stated_reset_at: float | None = None
    """When the provider says the limit ends."""
    stated_reset_s: float | None = None
    """The same in seconds from now."""
    wait_until_at: float | None = None
    """When the daemon expects the limit to end: the stated time within the bound of its reason."""
    wait_s: float | None = None
    """The same in seconds from now; null: no time was stated."""
    confidence: ConfidenceWord = "exit_code"
    """What the reason was found by: `exit_code`, `structured` or `text`."""
    confidence_score: float = 1.0
    """From 0 to 1: how likely the reason is where it was estimated from text; else 1."""
    signature: str = ""
    """Id of the rule that matched."""
    evidence: str = ""
    """A redacted excerpt of the output."""


class Attempt(Struct, frozen=True, kw_only=True):
    """One backend, once: `<delegation>.<n>`."""

    attempt: str
    """Id of the attempt: the id of the delegation, a dot and a number."""
    backend: str
    """The backend that ran it."""
    state: AttemptStateWord
    """`starting`, `running`, `stopping`, `succeeded`, `failed` or `cancelled`."""
    model: str | None = None
    """The model that was asked for; null: the backend's own default."""
    credential: str | None = None
    """Label of the credential that was used."""
    trial: bool = False
    """It is the one probe that is allowed after an outage."""
    started_at: float | None = None
    """When it was started."""
    answered_at: float | None = None
    """When the first reply of the provider was seen."""
    ended_at: float | None = None
    """When its whole process tree had exited."""
    exit_code: int | None = None
    """Exit status of the program; null: none, or killed by a signal."""
    effects: Effects = "none"
    """What it did beside talking: `none`; perhaps (`possible`) or certainly (`seen`) changed files;
    or did what cannot be taken back (`external`)."""
    outside: tuple[str, ...] = ()
    """What that was, as far as its tools tell: `git push`."""
    unfinished: tuple[str, ...] = ()
    """Of that, what was cut off: it may or may not have been done."""
    failure: Failure | None = None
    """Why it failed."""
    log_path: str | None = None
    """File with the recorded output."""
    pid: int | None = None
    """Process id of the program."""
    conversation: str | None = None
    """Id of the agent's own conversation, where the agent can resume one."""
    resumes: str | None = None
    """The attempt whose conversation this one continues."""
    carried: Literal["resumed", "native", "messages", "brief"] | None = None
    """How it was given what was said in its session before: its own conversation `resumed`, one
    written for it (`native`), `messages` of the request, or a `brief` before the prompt."""


class Hop(Struct, frozen=True, kw_only=True):
    """A move away from a candidate. A model swap inside one backend has `from` equal to `to`."""

    at: float
    """When the work moved."""
    from_: str = field(name="from")
    """The backend that was left."""
    to: str | None
    """The next backend; null: there was none."""
    trigger: Trigger
    """Why it moved: `reactive` after a failed attempt, `preemptive` before one, `recovery` back to
    a better backend, `manual` by a person."""
    reason: str
    """The reason of the failure or of the outage."""
    evidence: str | None = None
    """A redacted excerpt of the output that shows it."""
    tier_from: TierWord | None = None
    """Tier of the candidate that was left."""
    tier_to: TierWord | None = None
    """Tier of the next candidate."""
    from_model: str | None = None
    """The model that was left."""
    to_model: str | None = None
    """The next model."""


class Fix(Struct, frozen=True, kw_only=True):
    """A remedy for a candidate that waiting does not help."""

    kind: Literal["not_permitted", "configuration", "failed"]
    """`not_permitted`: a login or payment is needed; `configuration`: install or configure
    something; `failed`: the request itself has to change."""
    text: str
    """What to do, with the command to type where there is one."""


class CandidateVerdict(Struct, frozen=True, kw_only=True):
    """The reason why a candidate was chosen or not."""

    backend: str
    """Id of the candidate."""
    verdict: Verdict
    """Whether it was chosen, can be used, or why it cannot."""
    reason: str = ""
    """The reason of its outage, where its health is the cause; else a short sentence."""
    detail: str | None = None
    """A narrower word, or the words of the person who marked it."""
    state: HealthState | None = None
    """Its health."""
    until_at: float | None = None
    """When it is expected to be available again."""
    model: str | None = None
    """The model that would be used; null: the backend's own default."""
    credential: str | None = None
    """Label of the credential that would be used."""
    tier: TierWord | None = None
    """Its tier in the chain."""
    scope: str | None = None
    """What the health is recorded for: the backend, its model, a credential or the account."""
    fix: Fix | None = None
    """What a person can do about it; null: waiting helps, or nothing is wrong."""


class QuestionOption(Struct, frozen=True, kw_only=True):
    choice: str
    """The word to answer with, such as `wait`, `stop` or `use:codex`."""
    text: str
    """What happens then, in a sentence."""


class AnsweredBy(Struct, frozen=True, kw_only=True):
    uid: int
    """User id of the process that answered."""
    pid: int | None = None
    """Its process id."""
    attempt: str | None = None
    """The attempt inside which it ran; null: it was a person's."""


class Question(Struct, frozen=True, kw_only=True):
    """A decision that needs a human."""

    question: str
    """Id of the question."""
    delegation: str
    """The delegation that waits for the answer."""
    kind: QuestionKindWord
    """`outage`, `consent` (a call that costs money), `partial` (files may have changed) or
    `must_differ` (only the author's model family is left)."""
    text: str
    """The question, for a person."""
    options: tuple[QuestionOption, ...]
    """What can be chosen."""
    opened_at: float
    """When it was asked."""
    session: str | None = None
    """Session of the delegation."""
    role: str | None = None
    """Role of the delegation."""
    asked_by: str | None = None
    """The attempt from inside which the delegation was requested; null: a person requested it."""
    deadline_at: float | None = None
    """When the delegation ends without an answer; null: never."""
    answered_at: float | None = None
    """When it was answered."""
    answered_by: AnsweredBy | None = None
    """The process that answered."""
    choice: str | None = None
    """What was chosen."""
    note: str | None = None
    """The note that came with the answer."""
    closed_at: float | None = None
    """When it was closed, answered or not; null while it is open."""


class HandedBack(Struct, frozen=True, kw_only=True):
    """The caller does the work itself, with this."""

    model: str | None = None
    """The model that the caller is to use."""
    effort: str | None = None
    """The reasoning effort that the caller is to use."""


class TokenUsage(Struct, frozen=True, kw_only=True):
    input_tokens: int = 0
    """Tokens of the prompts."""
    output_tokens: int = 0
    """Tokens of the answers."""
    cost_usd: float | None = None
    """Cost in US dollars, where the provider says it, or `[prices]` does."""


class Standby(Struct, frozen=True, kw_only=True):
    """The wait of work until a backend is available."""

    since_at: float
    """Time at which the wait began."""
    expects_at: float | None = None
    """Time of the next look; null: it waits for a repair."""
    limit_at: float
    """Time at which it is refused."""
    not_before_at: float | None = None
    """Earliest start."""
    priority: int = 0
    """Rank among what waits, highest first."""


class Delegation(Struct, frozen=True, kw_only=True):
    """One request, from acceptance to its one answer."""

    delegation: str
    """Id of the delegation."""
    state: DelegationState
    """What it is doing, or how it ended."""
    created_at: float
    """When it was accepted."""
    session: str | None = None
    """The session that it belongs to."""
    role: str | None = None
    """The role that it was asked for."""
    cwd: str | None = None
    """Its working directory; null: a private one."""
    prompt: str | None = None
    """How the prompt begins, with secrets masked, in `delegation.get`; null: it is gone."""
    requested: str | None = None
    """The backend that it was to run on first."""
    active: str | None = None
    """The backend in use; the requested one until an attempt has started."""
    served_by: str | None = None
    """The backend that answered; null unless the delegation succeeded."""
    fallback_from: str | None = None
    """The requested backend, if the work failed over; else null."""
    fallback_reason: str | None = None
    """Why it failed over, in a sentence that begins with the reason."""
    requested_platform: str | None = None
    """The same as `requested`, for older callers."""
    active_platform: str | None = None
    """The same as `active`, for older callers."""
    tiers_attempted: tuple[str, ...] = ()
    """Tiers of the attempts, in order."""
    tier_served: TierWord | None = None
    """Tier of the candidate that answered."""
    attempts: tuple[Attempt, ...] = ()
    """Every attempt, in order."""
    hops: tuple[Hop, ...] = ()
    """Every move away from a candidate, in order."""
    candidates: tuple[CandidateVerdict, ...] = ()
    """All candidates with the verdicts of the last decision."""
    text: str | None = None
    """The answer; only its first 8 MiB if it is longer."""
    text_truncated: bool = False
    """`text` is not the whole answer."""
    text_path: str | None = None
    """File with the whole answer, if `text` is cut."""
    failure: Failure | None = None
    """Why it failed."""
    message: str | None = None
    """How it ended, in a sentence."""
    retry_at: float | None = None
    """When a candidate is expected to be available again."""
    question: Question | None = None
    """Its last question; open while `closed_at` is null."""
    handed_back: HandedBack | None = None
    """What the caller is to do the work with, in the state `handed_back`."""
    phase: str | None = None
    """What the agent is doing, such as `thinking`, `writing` or a tool."""
    last_activity_at: float | None = None
    """When the agent last showed that it is working."""
    usage: TokenUsage = TokenUsage()
    """Tokens and cost of all attempts together."""
    log_path: str | None = None
    """File with the recorded output of the last attempt."""
    tmux_window: str | None = None
    """The tmux window that follows the log."""
    ended_at: float | None = None
    """When it ended."""
    request_id: str | None = None
    """The idempotency key of the caller."""
    metadata: dict[str, Any] | None = None  # the caller's own JSON, handed back unchanged
    """The caller's own JSON, returned unchanged."""
    mode: Mode | None = None
    """`interactive` or `batch`."""
    model: str | None = None
    """The model of the last attempt."""
    parent: str | None = None
    """The delegation from inside which this one was requested."""
    asked_by: str | None = None
    """The attempt from inside which it was requested; null: a person requested it."""
    blocked_by: str | None = None
    """The delegation whose session or directory it waits for."""
    standby: Standby | None = None
    """Its wait until a backend is available; null: it does not wait for one."""
    orphan_s: float | None = None
    """Stopped after so long without a caller; null: it outlives its callers."""
    wait_over: bool = False
    """The caller's wait is over; the work continues as `state` says."""
    warnings: tuple[str, ...] = ()
    """What the caller should know, in sentences."""


class DelegationLine(Struct, frozen=True, kw_only=True):
    """A delegation in short."""

    delegation: str
    """Id of the delegation."""
    state: DelegationState
    """What it is doing, or how it ended."""
    created_at: float
    """When it was accepted."""
    ended_at: float | None = None
    """When it ended; null while it has not."""
    session: str | None = None
    """Its session."""
    role: str | None = None
    """The role that it was asked of."""
    requested: str | None = None
    """The backend that it was to run on first."""
    active: str | None = None
    """The backend that runs it, or ran it last."""
    served_by: str | None = None
    """The backend that answered; null unless succeeded."""
    phase: str | None = None
    """What the agent does now: thinking, writing, waiting or the name of a tool."""
    blocked_by: str | None = None
    """The delegation whose session or directory this one waits for."""
    last_activity_at: float | None = None
    """When its agent last printed anything."""
    cwd: str | None = None
    """Its working directory; null: a private one."""
    hops: int = 0
    """How often it failed over."""
    fallback_reason: str | None = None
    """Why it did not stay on the backend that was asked for, as a sentence."""
    message: str | None = None
    """A sentence for people about how it ended."""
    prompt: str | None = None
    """How the prompt begins, with secrets masked, in `delegation.list`; null: it is gone."""
    standby: Standby | None = None
    """Its wait until a backend is available; null: it does not wait for one."""


class ConfigProblem(Struct, frozen=True, kw_only=True):
    path: str
    """Dotted path of the key; empty for the whole file."""
    message: str
    """What is wrong and what is used instead."""


class Evidence(Struct, frozen=True, kw_only=True):
    """Raw material of a failure, as a caller has seen it."""

    text: str | None = None
    """Output as text: standard output, standard error, or the message of an exception."""
    stream: Stream | None = None
    """Where the text comes from: `stdout`, `stderr`, `jsonl`, `http`, `exception`, or `unknown` for
    mixed output."""
    exit_code: int | None = None
    """Exit status; null while the program is running."""
    http_status: int | None = None
    """Status of an HTTP answer."""
    headers: dict[str, str] | None = None
    """Headers of an HTTP answer, names in any case."""
    body: Any = None  # a string or any JSON value
    """Body of an HTTP answer: text or any JSON value."""
    exception: str | None = None
    """Type of an exception; its message belongs in `text`."""


# Health of scopes, credentials and backends, and what was used of their windows.


class StateOfHealth(Struct, frozen=True, kw_only=True):
    """The state of a scope, a credential or a backend, and why."""

    state: HealthState
    """`healthy`, `rate_limited`, `cooldown` (recovering), `broken` or `paused`."""
    unproven: bool = False
    """The outage ended by time alone; the next call is a probe."""
    reason: ReasonWord | None = None
    """Why it is unavailable."""
    detail: str | None = None
    """A narrower word, or the words of the person who marked it."""
    since_at: float | None = None
    """When the state began."""
    until_at: float | None = None
    """When it is expected to end; null: it needs a fix, or it is healthy."""
    count: int = 0
    """Consecutive failures."""
    source: HealthSourceWord | None = None
    """What set it: `policy`, `provider`, `person` or `import`."""
    seconds_remaining: float | None = None
    """Seconds until `until_at`."""
    note: str | None = None
    """Note of the person who marked or paused it."""
    age_s: float | None = None
    """Seconds since it began."""
    loaded_at: float | None = None
    """When it was read from disk, if nothing has confirmed it since."""
    stated_reset_at: float | None = None
    """The reset time that the provider stated."""


class ScopeHealth(StateOfHealth, frozen=True, kw_only=True):
    """The record of one scope that a backend touches."""

    scope: str
    """Name of the scope, such as `backend:codex` or `quota:chatgpt-plan`."""
    seen_by: str | None = None
    """MACHINE/BACKEND that found it, if another machine did."""
    trial: str | None = None
    """The attempt that probes it now."""
    trial_owner: str | None = None
    """The caller that probes it now with a call of its own."""
    trial_generation: int | None = None
    """Number of the lease of that probe."""
    trial_expires_at: float | None = None
    """When that lease expires."""


class CredentialHealth(StateOfHealth, frozen=True, kw_only=True):
    """One of a backend's credentials, by its label."""

    label: str
    """Label of the credential."""
    until_at: float | None = None
    """When it is expected to end; null while unavailable: when its source changes."""
    uses: int = 0
    """How many calls used it."""


class Limit(Struct, frozen=True, kw_only=True):
    """
    The used part of one window of a plan or a key, as a provider or an agent said last.

    Figures lag behind, and decide nothing once they are not `fresh`.
    """

    used_percent: float
    """How much of the window is used, from 0 to 100, and a little more where the plan allows it."""
    window_s: float | None = None
    """Length of the window in seconds, such as 18000 for five hours; null: not stated."""
    unit: LimitUnitWord = "percent"
    """What is counted: `percent` of a plan, `requests` or `tokens`."""
    limit: float | None = None
    """The whole of the window, in `unit`; null: not stated."""
    left: float | None = None
    """What is left of it, in `unit`; null: not stated."""
    resets_at: float | None = None
    """When the window begins anew; null: not stated."""
    scope: str = ""
    """What it is about: a model, a credential or a plan, by its name in health."""
    model: str | None = None
    """The model, or the family of models, that it is about; null: all."""
    credential: str | None = None
    """Label of the key that it is about; null: the login of the program."""
    source: LimitSourceWord = "headers"
    """Where it was read: `headers` of an answer, an `event` of the program, a file of a `session`,
    the `statusline` of an open session, or the program itself, which was `asked`."""
    at: float = 0.0
    """When it was seen."""
    age_s: float = 0.0
    """Seconds since then."""
    fresh: bool = False
    """It is recent enough to act on."""
    percent_per_hour: float | None = None
    """Pace since the window began, on average; null: not known."""
    runs_out_at: float | None = None
    """When nothing is left at that pace; null: not before the window begins anew, or not known."""


class HealthEntry(StateOfHealth, frozen=True, kw_only=True):
    """
    A backend's health: the worst of the scopes that it touches.

    `marked_broken_at` and `ttl_seconds` repeat `since_at` and the length of the window for older
    callers.
    """

    marked_broken_at: float | None = None
    """The same as `since_at`, for older callers."""
    ttl_seconds: float | None = None
    """Length of the window in seconds, for older callers."""
    seen_by: str | None = None
    """MACHINE/BACKEND that found it, if another machine did."""
    scopes: tuple[ScopeHealth, ...] = ()
    """The records that it is computed from."""
    credentials: tuple[CredentialHealth, ...] = ()
    """Its configured credentials, in order."""
    limits: tuple[Limit, ...] = ()
    """How much of its plan or keys is used, where that was said; short windows first."""


class UsageRow(Struct, frozen=True, kw_only=True):
    """The usage of one backend in one period."""

    backend: str
    """The backend."""
    period: PeriodWord
    """`hour`, `day` (UTC), `week` (seven days), `total`, `since` (as asked for), or `model`: a time
    in which a session was on one model."""
    since_at: float | None = None
    """When the period began."""
    until_at: float | None = None
    """When the period ended; null: it is still running."""
    session: str | None = None
    """The session, where one was asked for."""
    model: str | None = None
    """The model, in rows of the period `model`."""
    attempts: int = 0
    """Attempts that were started."""
    successes: int = 0
    """Attempts that succeeded."""
    failures: int = 0
    """Attempts that failed."""
    input_tokens: int = 0
    """Tokens of the prompts."""
    output_tokens: int = 0
    """Tokens of the answers."""
    cost_usd: float | None = None
    """Cost in US dollars, where the provider says it."""
    cap: float | None = None
    """The cap of this period."""
    unit: UnitWord | None = None
    """Unit of the cap: `requests` or `tokens`."""
    cost: CostWord | None = None
    """How calls are paid: `subscription`, `metered` or `local`; null: not configured."""


# A session and what it remembers, as shapes of the wire.


class SessionTurn(Struct, frozen=True, kw_only=True):
    """A prompt that was answered in a session."""

    delegation: str
    """The delegation that it was."""
    backend: str | None = None
    """The backend that answered."""
    ended_at: float | None = None
    """When it was answered."""
    prompt: str | None = None
    """How the prompt begins; null: it is not on record any more."""
    answer: str | None = None
    """How the answer begins; null: it is not on record any more."""


class SessionConversation(Struct, frozen=True, kw_only=True):
    """A conversation that an agent keeps in its own files."""

    backend: str
    """Backend of the agent."""
    id: str
    """As the agent names it."""


class SessionView(Struct, frozen=True, kw_only=True):
    session: str
    """Id of the session."""
    role: str | None = None
    """Role of the session."""
    original: str | None = None
    """The backend that it started on."""
    current: str | None = None
    """The backend that it is on now."""
    original_model: str | None = None
    """The model that it started on."""
    current_model: str | None = None
    """The model that it is on now."""
    depth: int = 0
    """How many hops it is away from its original backend."""
    running: str | None = None
    """The delegation that runs in it now."""
    last_fallback_at: float | None = None
    """When it last failed over."""
    last_active_at: float | None = None
    """When it was last used."""
    hops: tuple[Hop, ...] = ()
    """Its moves, in order."""
    notices: tuple[str, ...] = ()
    """The same as `notices_sent`."""
    notices_sent: tuple[str, ...] = ()
    """Moves that were announced, as `original→current`."""
    ignored_reports: int = 0
    """How many reports came too late to count."""
    server: str | None = None
    """Address of the opencode server on which it lives."""
    directory: str | None = None
    """Directory of an opencode session."""
    rescue: str | None = None
    """A change of model that is under way, in words."""
    conversation: SessionConversation | None = None
    """The agent's own conversation that the next prompt continues."""
    turns: tuple[SessionTurn, ...] = ()
    """What the next prompt continues, oldest first; only in `session.get`."""
