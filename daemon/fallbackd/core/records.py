"""
The records, and what a decision reads of them (`Snapshot`).

Prompts and replies are not here: they stay in the engine and in the private run directory.

The `Turn` bounds every failover: what a chain was asked for, what was tried, what was marked. It
lies in `Delegation.turn`; in `Session.turn` for a caller that reports; in the `message` of an
opencode session; a caller without a session gets it as `turn` and sends it back. What is asked
(`turn_for`), what that forbids by now (`request_after`), what is there (`search`), the lease
(`Case.take_lease`, `give_back`) and how a session moves is each one function for all three;
`fail_over` names the next candidate where the daemon does not make the calls, `plan` where it does.
`tests/core/test_three_doors.py` holds that all three try the same candidates and end alike.
"""

import re
from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct, field, structs

from fallbackd.core.failures import Confidence, Failure
from fallbackd.core.figures import Figures
from fallbackd.core.health import Health, Outage
from fallbackd.core.history import HourUse
from fallbackd.core.ids import AttemptId, BackendId, DelegationId, ScopeId, SessionId
from fallbackd.core.policy import Entry, OnOutage, ReplayWord
from fallbackd.core.protocol import Usage
from fallbackd.core.reasons import Reason
from fallbackd.core.watch import EffectsWord

# The request of a chain, and the candidates that were tried for it so far.
#
# One record for the three ways to ask: a delegation, a caller that makes the calls itself, and a
# message in a session of an opencode server. All bounds on failing over are read from it.


class MadeMark(Struct, frozen=True, kw_only=True):
    """A mark that was made on the way, to be withdrawn when the prompt itself was the poison."""

    scope: ScopeId
    since_at: float
    before: Outage | None


def without_marks(
    health: Mapping[ScopeId, Health], marks: tuple[MadeMark, ...]
) -> dict[ScopeId, Health]:
    """The records that change when marks are taken back. What was marked again since stays."""
    found: dict[ScopeId, Health] = {}
    for made in marks:
        record = found.get(made.scope) or health.get(made.scope)
        if record is None or record.outage is None or record.outage.since_at != made.since_at:
            continue
        found[made.scope] = structs.replace(record, outage=made.before, trial=None)
    return found


class Tried(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A candidate that was tried, with what its failure says about the next one."""

    backend: BackendId
    model: str | None = None
    """The one of its entry, else the one of the backend."""
    credential: str | None = None
    tier: str | None = None
    reason: Reason | None = None
    """Null: it has not failed so far."""
    confidence: Confidence = "structured"
    hop: bool = False
    shrink_input: bool = False
    rotate_credential: bool = False

    def failed_with(self, failure: Failure | None) -> "Tried":
        if failure is None:
            return self
        return structs.replace(
            self,
            reason=failure.reason,
            confidence=failure.confidence,
            hop=failure.hop,
            shrink_input=failure.shrink_input,
            rotate_credential=failure.rotate_credential,
        )


class Turn(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request of a chain, fixed at the beginning; `tried`, `hops` and `marks` grow."""

    candidates: tuple[Entry, ...] = ()
    role: str | None = None
    creative: bool = False
    """Of a creative role: no other family writes in its place unless a person says so."""
    on_outage: OnOutage = "fallback"
    allow_metered: bool = True
    """Whether a candidate that bills by use may follow one that does not."""
    differs_from: tuple[str, ...] = ()
    """Model families that must not serve it; `?` for one that is not known."""
    fallback_on: tuple[str, ...] | None = None
    max_hops: int = 3
    budget: int = 8
    """Calls in all, those of the same candidate included."""
    prompt_tokens: int | None = None
    is_batch: bool = False
    """It leaves the reserve of plans to interactive work."""
    at_server: bool = False
    """Models of a running opencode server are asked for."""
    is_own: bool = False
    """Kept by its caller, and not with the session, whose calls overlap."""
    inherited_tried: tuple[str, ...] = ()
    """Keys of candidates that were tried for the work of which this is a part."""
    tried: tuple[Tried, ...] = ()
    """One for each call, in order."""
    hops: int = 0
    """Moves that count."""
    marks: tuple[MadeMark, ...] = ()
    backend: BackendId | None = None
    """The candidate whose turn it is, where the call is not made by the daemon."""
    model: str | None = None
    credential: str | None = None
    at: float = 0.0
    """Time when a candidate was last named."""


Bound = Literal[
    "task",
    "poison",
    "format_error",
    "fallback_on",
    "max_fallback_depth",
    "max_attempts",
    "on_outage",
    "must_differ",
    "consent",
    "none_left",
]


class Halt(Struct, frozen=True, kw_only=True):
    """The reason why no other candidate is tried."""

    bound: Bound
    why: str
    """For people; names the key of the configuration where there is one."""


# The earlier conversation of a session, and the ways in which an attempt is given it.


MAX_TURNS = 100
"""A session remembers so many; configuration may bound what is given to an agent further."""

CarriedWord = Literal["resumed", "native", "messages", "brief"]
"""
How an attempt is given the past of its session. `resumed`: its agent continues its own
conversation; `native`: as a conversation in its agent's own format; `messages`: as messages of an
HTTP request; `brief`: as text in front of the prompt.
"""


class AgentConversation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A conversation that an agent keeps itself, as it was when the agent last answered in it."""

    backend: BackendId
    id: str
    """The name that its program gives it."""
    cwd: str = ""
    """Where it was held; empty: in the private directory of `Past.work`."""
    usage: Usage = Usage()
    """What was counted of it so far: some programs report the totals of a conversation."""


class Past(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The conversation of a session so far, which its next prompt continues."""

    turns: tuple[DelegationId, ...] = ()
    """The delegations that were answered, oldest first: their prompts and answers are on disk."""
    conversation: AgentConversation | None = None
    """The one that holds all of it; None: the agent that answered last keeps none."""
    work: DelegationId | None = None
    """Whose private directory is worked in, where the caller names none."""


# The record of an opencode session, besides what every session has.


class Message(Struct, frozen=True, kw_only=True):
    """A message that is under way in an opencode session: a prompt of the user on one model."""

    id: str
    backend: BackendId
    began_at: float
    turn: Turn | None = None
    """Of what the user wrote, over all models that it was sent to."""
    running: bool = True
    answered: bool = False
    is_marked: bool = False
    """Its model was marked for it: what still comes is the same failure."""
    lease: AttemptId | None = None
    """Of the trial that this turn is."""
    compacts: bool = False
    """The message asks for a compaction of the session, not for an answer."""


RescueStep = Literal["abort", "revert", "prompt"]


class Rescue(Struct, frozen=True, kw_only=True):
    """A failed turn on its way to the next model: the lock of an opencode session."""

    id: str
    message: str
    """Of the turn that failed."""
    left: BackendId
    to: BackendId
    model: str
    """`provider/model` of `to`, as the server names it."""
    new_message: str
    """Under which the message is sent again: whether that was done can be looked up."""
    step: RescueStep = "abort"
    """The next one to do, or under way."""
    reverts: bool = True
    """False: the turn has written files, which a revert would take back."""
    role: str | None = None
    reason: str
    evidence: str = ""
    began_at: float
    """Start of its step."""
    since_at: float = 0.0
    """Start of the rescue itself; 0 in records of a daemon that did not keep it."""
    lease: AttemptId | None = None
    compacts: bool = False
    """A compaction failed: it is repeated, and no turn is touched."""
    continues: bool = False
    """A compaction that the server began by itself: the model continues its turn afterwards."""
    turn: Turn | None = None
    """With the move to `to`."""


class Period(Struct, frozen=True, kw_only=True):
    """A time in which a session was on one model, up to the beginning of the next one."""

    backend: BackendId
    from_at: float
    usage: Usage = Usage()


# Decisions that need a human: what they are, and how they are closed.
#
#     opened ── answered (by whom, with what) ──▶ the work continues, or ends as was chosen
#        └───── closed without an answer ───────▶ the work ended otherwise: cancelled, out of time
#
# A question lives in the record of its delegation: both change in one decision, and outlive a
# restart together. There is no default choice, and none is made by time.


QuestionKind = Literal["outage", "consent", "partial", "must_differ"]

USE = "use:"
"""Begins a choice that names a backend: `use:codex`."""

_ID = re.compile(r"(.+)\.q[1-9][0-9]*")


class Option(Struct, frozen=True, kw_only=True):
    choice: str
    """`wait`, `skip`, `stop`, `hand_back`, or `use:BACKEND`."""
    text: str


class AnsweredBy(Struct, frozen=True, kw_only=True):
    """The process that gave the answer, as reported by the kernel."""

    uid: int
    pid: int | None = None
    attempt: str | None = None
    """The one in which that process ran; null: a person answered."""


class Question(Struct, frozen=True, kw_only=True):
    question: str
    """`<delegation>.q<n>`, n from 1."""
    delegation: DelegationId
    session: str
    role: str | None = None
    asked_by: str | None = None
    """The attempt that asked for the work; null: a person did."""
    kind: QuestionKind
    text: str
    options: tuple[Option, ...]
    opened_at: float
    deadline_at: float | None = None
    """When the work ends without an answer; null: it waits for ever."""
    answered_at: float | None = None
    answered_by: AnsweredBy | None = None
    choice: str | None = None
    note: str | None = None
    closed_at: float | None = None
    """Time when it stopped to matter, answered or not."""

    @property
    def is_open(self) -> bool:
        return self.closed_at is None


def question_id(delegation: DelegationId, number: int) -> str:
    return f"{delegation}.q{number}"


def delegation_asking(question: str) -> DelegationId | None:
    """The delegation that a question belongs to; None: this is the name of no question."""
    found = _ID.fullmatch(question)
    return None if found is None else DelegationId(found[1])


def find(questions: tuple[Question, ...], name: str) -> Question | None:
    return next((one for one in questions if one.question == name), None)


def open_one(questions: tuple[Question, ...]) -> Question | None:
    """The open question of a delegation: never more than one, always the last."""
    return questions[-1] if questions and questions[-1].is_open else None


def closed(questions: tuple[Question, ...], *, now: float) -> tuple[Question, ...]:
    """Return the questions with none open."""
    if open_one(questions) is None:
        return questions
    return (*questions[:-1], structs.replace(questions[-1], closed_at=now))


def shifted(questions: tuple[Question, ...], by_s: float) -> tuple[Question, ...]:
    """The wall clock was set: the deadline of the open one moves with it."""
    last = open_one(questions)
    if last is None or last.deadline_at is None:
        return questions
    return (*questions[:-1], structs.replace(last, deadline_at=last.deadline_at + by_s))


def options_with(usable: Mapping[str, str], *, wait: str | None) -> tuple[Option, ...]:
    """
    Return the options that may be chosen.

    Args:
        usable: Backends that could go on now, each with the rules that speak against it, or "".
        wait: What waiting would wait for; None: there is nothing to wait for.
    """
    found = [
        Option(choice=f"{USE}{name}", text=f"let {name} do it" + (why and f" ({why})"))
        for name, why in usable.items()
    ]
    if wait is not None:
        found.append(Option(choice="wait", text=wait))
    found += [
        Option(choice="skip", text="do without this piece of work"),
        Option(choice="hand_back", text="hand it back: the caller does it"),
        Option(choice="stop", text="cancel it"),
    ]
    return tuple(found)


VerdictWord = Literal[
    "chosen",
    "healthy",
    "unproven",
    "in_trial",
    "cooldown",
    "rate_limited",
    "broken",
    "paused",
    "tried",
    "same_as_failed",
    "disabled",
    "not_installed",
    "not_configured",
    "context",
    "budget",
    "must_differ",
    "consent",
    "local_network",
    "affinity",
    "protocol",
]


class Verdict(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The reason why a candidate was chosen or not, at the last resolution."""

    backend: BackendId
    kind: str = ""
    """Of backend; empty where it is not configured."""
    account: str | None = None
    """See `Backend.account`."""
    model: str | None = None
    verdict: VerdictWord
    reason: str | None = None
    """Reason of the outage, where there is one; else a short sentence."""
    detail: str | None = None
    state: str = "healthy"
    until_at: float | None = None
    tier: str | None = None
    credential: str | None = None
    """Label of the one that would make the call."""
    scope: str | None = None
    """What the state is kept for, where it is another one than healthy."""


AttemptState = Literal["starting", "running", "stopping", "succeeded", "failed", "cancelled"]


class Attempt(Struct, frozen=True, kw_only=True, omit_defaults=True):
    attempt: AttemptId
    backend: BackendId
    model: str | None = None
    credential: str | None = None
    tier: str | None = None
    effort: str | None = None
    trial: bool = False
    trial_scopes: tuple[ScopeId, ...] = ()
    state: AttemptState = "starting"
    started_at: float
    answered_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None
    effects: EffectsWord = "none"
    failure: Failure | None = None
    ending: Failure | None = None
    """The reason why the core asked for its end, while it is being stopped."""
    pid: int | None = None
    log_path: str | None = None
    retry_of: AttemptId | None = None
    conversation: str | None = None
    """The agent's own conversation, as its program named it; None: it names none, or cannot
    resume one."""
    resumes: AttemptId | None = None
    """The attempt whose conversation this one continues."""
    carried: CarriedWord | None = None
    """How it was given the past of its session; None: there is none, or it has not started."""
    patience_until_at: float | None = None
    """The end of patience with failures: no further one is borne from then on."""
    tries_at: float | None = None
    """When the program tries again after its last failure, by its own word; null: it says not."""
    waits_until_at: float | None = None
    """The time that the provider stated, while the program itself waits for it."""
    proven: bool = False
    """The grace of a trial is over without a sign of failure."""
    gone: bool | None = None
    changed_files: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    """What it did that cannot be taken back and that no directory shows, as its tools tell."""
    unfinished: tuple[str, ...] = ()
    """Of that, what has no result: it may or may not have been done."""

    @property
    def has_passed(self) -> bool:
        """True if it failed for a reason that says nothing about the task, and passes."""
        if self.failure is None:
            return False
        row = self.failure.reason.row
        is_own = self.failure.reason is Reason.LOCAL_NETWORK
        return is_own or (row.about == "backend" and row.window is not None)


class Hop(Struct, frozen=True, kw_only=True, omit_defaults=True):
    at: float
    from_backend: BackendId = field(name="from")
    to_backend: BackendId = field(name="to")
    trigger: Literal["reactive", "preemptive", "recovery", "manual"]
    reason: str
    evidence: str = ""
    tier_from: str | None = None
    tier_to: str | None = None
    from_model: str | None = None
    to_model: str | None = None


DelegationState = Literal[
    "queued",
    "running",
    "waiting",
    "succeeded",
    "failed",
    "refused",
    "cancelled",
    "awaiting_answer",
    "handed_back",
]
ENDED: frozenset[str] = frozenset({"succeeded", "failed", "refused", "cancelled", "handed_back"})


class Waiting(Struct, frozen=True, kw_only=True):
    """The reason why a delegation has no attempt right now."""

    since_at: float
    until_at: float
    """End of the wait."""
    limit_at: float
    """Time when waiting is given up."""
    retry: Entry | None = None
    """The candidate that is tried again at `until_at`; None: the best one by then."""
    retry_of: AttemptId | None = None
    resumes: bool = False
    """`retry` continues the conversation of `retry_of`."""
    credential: str | None = None
    """The one that is tried again; None: whichever is best by then."""
    is_stated: bool = False


class Standby(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The terms on which work waits until a backend is available, and how far it has come."""

    limit_at: float
    """It ends without an attempt then."""
    is_by_clock: bool = False
    """`limit_at` was given as a time of the clock, not as a duration."""
    not_before_at: float | None = None
    is_delay: bool = False
    """`not_before_at` was given as a duration, and moves with the clock."""
    priority: int = 0
    most_priority: int = 100
    timeout_s: float | None = None
    """Deadline of the work, which counts from its start."""
    outer_at: float | None = None
    """Deadline of the work of which it is a part."""
    since_at: float | None = None
    """Time since which it is on standby; None: it is not."""
    again_at: float | None = None
    """Nothing is tried before: what failed last has marked nothing."""
    pauses: int = 0
    """Such failures in a row."""
    attempts: int = 0
    """Number of attempts before it was last on standby: a limit uses up none."""
    hops: int = 0
    """The same for hops."""
    starts: bool = False
    """A person starts it, whatever is known of its backends."""


class HandedBack(Struct, frozen=True, kw_only=True):
    """The caller does the work itself, with this."""

    model: str | None = None
    effort: str | None = None


class Ending(Struct, frozen=True, kw_only=True):
    """The end of a delegation, as soon as what was delegated from inside it is gone."""

    state: DelegationState
    failure: Failure | None = None
    message: str | None = None
    retry_at: float | None = None
    handed_back: HandedBack | None = None


class Terms(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Terms on which work is asked for, from the words of a caller to the record that is kept."""

    role: str | None = None
    failover: bool = True
    permissions: Literal["read", "workspace", "full"] = "workspace"
    request_id: str | None = None
    client: str | None = None
    """Client with which the work counts where places are shared out."""
    orphan_s: float | None = None
    """Time after which it is stopped without a caller; None: it outlives its callers."""
    metadata: dict[str, Any] = field(default_factory=dict)  # the caller's own, any JSON
    fresh: bool = False
    """It continues nothing that was said in its session."""


class Asked(Terms, frozen=True, kw_only=True):
    """Request for work: the terms that end with its admission too."""

    backend: BackendId | None = None
    model: str | None = None
    queue: bool = True
    """Choice to wait for a session or a directory that is in use; False: refused at once."""
    timeout_s: float | None = None
    on_partial: Literal["continue", "ask", "fail"] | None = None
    allow_metered: bool = False
    inside: tuple[DelegationId, ...] = ()
    """All delegations whose attempts share the process that asks. Of work that is repeated: those
    inside which it was asked for at first. No role gives it more than they have."""


class Delegation(Terms, frozen=True, kw_only=True):
    delegation: DelegationId
    session: SessionId
    state: DelegationState = "queued"
    """Changed by `core.work.transitions` alone."""
    mode: Literal["interactive", "batch"] = "batch"
    requested: BackendId
    named: bool = False
    """The caller named the backend: no affinity, no return policy."""
    turn: Turn = Turn()
    """What is asked of the chain, the requested candidate first, and the marks that were made. What
    was tried is read from the attempts: `so_far.turn_of`."""
    chain: tuple[Entry, ...] | None = None
    """The chain that its request named instead of a backend: `own_chain`."""
    active: BackendId
    served_by: BackendId | None = None
    attempts: tuple[Attempt, ...] = ()
    hops: tuple[Hop, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    failure: Failure | None = None
    message: str | None = None
    """A sentence for people about how it ended."""
    retry_at: float | None = None
    waiting: Waiting | None = None
    standby: Standby | None = None
    """None: it is refused where no backend is available."""
    blocked_by: DelegationId | None = None
    """It waits for this one to leave its session or its directory, and holds neither yet."""
    phase: str | None = None
    last_activity_at: float | None = None
    usage: Usage = Usage()
    tier_served: str | None = None
    created_at: float
    ended_at: float | None = None
    deadline_at: float | None = None
    on_partial: Literal["continue", "ask", "fail"] = "continue"
    replay: ReplayWord = "ask"
    cwd: str = ""
    """Real path; empty: a private directory."""
    cwd_ids: tuple[str, ...] = ()
    """Identity of that directory, then of those above it, wherever it lies by now."""
    digest: str = ""
    """Of the parameters, to tell a repeated request from another one."""
    parent: DelegationId | None = None
    above: tuple[DelegationId, ...] = ()
    """The delegations inside which it was asked for, the innermost first."""
    asked_by: AttemptId | None = None
    """The attempt that asked for it; None: a person did."""
    may: tuple[str, ...] = ()
    """What the configuration lets its agents ask beyond its own permissions: `authority`."""
    nesting: int = 0
    cancelling: bool = False
    outcome: Ending | None = None
    unstopped: tuple[str, ...] = ()
    """What was delegated from inside it and could not be proven stopped, in words."""
    waited: tuple[str, ...] = ()
    """Candidates whose stated time was waited for once."""
    warnings: tuple[str, ...] = ()
    log_dir: str = ""
    tmux_window: str | None = None
    """`session:window` that follows the log."""
    boot: str = ""
    """The boot of the machine under which it was last taken on."""
    env_names: tuple[str, ...] = ()
    """Variables that the caller set."""
    question_timeout_s: float | None = None
    questions: tuple[Question, ...] = ()
    """Questions that were asked, in order. At most the last one is open."""
    forced: BackendId | None = None
    """A person chose it: the next attempt is made there, and no rule of the role holds for it."""
    rests_until_at: float | None = None
    """A person chose to wait: nothing is asked again before."""
    handed_back: HandedBack | None = None
    past: Past = Past()
    """What was said in its session when its first attempt was made."""

    @property
    def question(self) -> Question | None:
        """The open question."""
        return open_one(self.questions)

    @property
    def is_ended(self) -> bool:
        return self.state in ENDED

    @property
    def on_standby(self) -> bool:
        """True if it waits for a backend on the terms of its caller."""
        standby = self.standby
        return self.state == "waiting" and standby is not None and standby.since_at is not None

    @property
    def outlives_daemon(self) -> bool:
        """True if no end of the daemon waits for it: it waits for an answer, or for a backend."""
        return self.question is not None or self.on_standby

    @property
    def counted(self) -> "tuple[Attempt, ...]":
        """Attempts that use up its budget: not those before it was last on standby that passed."""
        if self.standby is None:
            return self.attempts
        before = self.attempts[: self.standby.attempts]
        return (*(one for one in before if not one.has_passed), *self.attempts[len(before) :])

    @property
    def running(self) -> Attempt | None:
        """The attempt that is under way, if any: never more than one."""
        if self.attempts and self.attempts[-1].state in ("starting", "running", "stopping"):
            return self.attempts[-1]
        return None

    def attempt(self, wanted: AttemptId) -> Attempt | None:
        return next((one for one in self.attempts if one.attempt == wanted), None)


def standby_order(one: Delegation) -> tuple[int, float, str]:
    """Order in which waiting work starts: by priority, then by age."""
    priority = 0 if one.standby is None else one.standby.priority
    return -priority, one.created_at, one.delegation


class Session(Struct, frozen=True, kw_only=True, omit_defaults=True):
    session: SessionId
    role: str | None = None
    original: BackendId
    current: BackendId
    above: tuple[DelegationId, ...] = ()
    """The delegations inside which all of it was asked for, the innermost first; empty: a person
    has asked for a turn."""
    current_model: str | None = None
    chain: tuple[Entry, ...] | None = None
    """Of its first request, for later ones that name nothing. Empty: that of all, as it is now.
    None: that of its original, which was named."""
    answered_by: BackendId | None = None
    """The backend that last answered here: the one whose caches are warm."""
    attempt: AttemptId | None = None
    """The last attempt of ours here."""
    past: Past = Past()
    reported_attempt: AttemptId | None = None
    """What the caller calls the attempt of its own whose failure it reported last."""
    turn: Turn | None = None
    """Of a call that the caller makes itself and that failed, until it succeeds or none is left."""
    depth: int = 0
    running: DelegationId | None = None
    """The lock: a state, not a mutex. Held by the delegation until its one answer."""
    last_fallback_at: float | None = None
    hops: tuple[Hop, ...] = ()
    notices_sent: tuple[str, ...] = ()
    ignored_reports: int = 0
    created_at: float
    last_used_at: float
    recovered_announced: bool = False
    usage: tuple[tuple[BackendId, Usage], ...] = ()
    server: str = ""
    """Address of the opencode server on which it lives; empty: on none."""
    project: str = ""
    """Directory of an opencode session."""
    message: Message | None = None
    rescue: Rescue | None = None
    told: tuple[str, ...] = ()
    """Marks of notices other than those of pairs, the latest ones."""
    superseded: tuple[str, ...] = ()
    """Messages whose turn was given up or is over: what is still said about them is late."""
    pending_lease: AttemptId | None = None
    """Of the trial that the next turn is: a redirect comes before its message has an id."""
    periods: tuple[Period, ...] = ()
    counted: str = ""
    """The latest message whose usage was counted. Ids ascend."""
    answered_model: str | None = None
    """The model with which `answered_by` answered."""
    answered_credential: str | None = None
    """The credential of that, where the session keeps to it."""
    author_family: str | None = None
    """Of the model that last answered here in a creative role; `?`: not known. None: none did."""
    answers: int = 0
    """Successful ones since the session moved to where it is."""
    needed: int = 0
    """How many of them it takes to look for a better one; 0: as many as the role says."""
    rose_at: float | None = None
    """Time when it last moved up, while it is not certain that this lasts."""


def session_of(delegation: Delegation, *, now: float) -> Session:
    """The session of a delegation, where it was ended while the delegation ran."""
    return Session(
        session=delegation.session,
        original=delegation.requested,
        current=delegation.active,
        running=delegation.delegation,
        created_at=delegation.created_at,
        last_used_at=now,
    )


class DayUse(Struct, frozen=True, kw_only=True):
    """The use of a backend on one day."""

    day: int
    """Since the epoch, UTC."""
    attempts: int = 0
    successes: int = 0
    failures: int = 0
    usage: Usage = Usage()


class Meter(Struct, frozen=True, kw_only=True):
    """The use of a backend, and how long that took against its estimate."""

    backend: BackendId
    starts: tuple[tuple[int, int, int], ...] = ()
    """(minute since the epoch, attempts started, tokens used), oldest first, one hour."""
    ratios: tuple[float, float] = (0.0, 0.0)
    """(sum, weight) of measured time over estimate."""
    totals: Usage = Usage()
    ends: tuple[tuple[int, int, int], ...] = ()
    """(minute since the epoch, attempts succeeded, attempts failed), oldest first, one hour."""
    attempts: int = 0
    """Ended ones, with those that were cancelled: more than the next two together."""
    successes: int = 0
    failures: int = 0
    answered_at: float | None = None
    """Time when its provider last answered."""
    credential_uses: tuple[tuple[str, int], ...] = ()
    """Number of calls that each credential was chosen for, by label."""
    last_credential: str | None = None
    demand: tuple[tuple[int, int, int], ...] = ()
    """(minute since the epoch, first attempts, further attempts), oldest first, few minutes."""
    spent: tuple[tuple[int, int, int, float | None], ...] = ()
    """(minute since the epoch, input tokens, output tokens, cost in USD), oldest first, one hour;
    the cost is null where it was not stated."""
    days: tuple[DayUse, ...] = ()
    """Oldest first, of the last 31 days (UTC) that saw any use."""
    figures: Figures = ()
    """What was last said of its windows, at most one of each."""
    hour: HourUse | None = None
    """The one that is running, or the last one in which it was used."""


class Snapshot(Struct, frozen=True, kw_only=True):
    """The records that one decision reads, from one instant of the store."""

    health: Mapping[ScopeId, Health] = field(default_factory=dict)
    delegation: Delegation | None = None
    session: Session | None = None
    same_request: Delegation | None = None
    """The delegation that has the same `request_id`."""
    active: Mapping[DelegationId, Delegation] = field(default_factory=dict)
    """Every delegation without its answer."""
    meters: Mapping[BackendId, Meter] = field(default_factory=dict)
    draining: bool = False
    session_count: int = 0


class Keys(Struct, frozen=True, kw_only=True):
    """
    Keys of the records that a decision wants to read besides health, meters and unfinished work.
    """

    delegation: DelegationId | None = None
    session: SessionId | None = None
    request_id: str | None = None
