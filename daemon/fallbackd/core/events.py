"""All inputs of a decision. Past tense; what happened, never what to do about it."""

from typing import Literal

from msgspec import Struct

from fallbackd.core.failures import Failure
from fallbackd.core.figures import Figures
from fallbackd.core.ids import AttemptId, BackendId, DelegationId, SessionId
from fallbackd.core.policy import Entry
from fallbackd.core.protocol import Usage
from fallbackd.core.reasons import Reason
from fallbackd.core.records import Asked, CarriedWord, Delegation, Session, Standby, Turn
from fallbackd.core.share import SharedRecord
from fallbackd.core.watch import EffectsWord, Watch

# Reports on turns of opencode servers that others run, and on the progress of rescues.


RescueProgress = Literal[
    "resumed", "abort", "revert", "prompt", "done", "failed", "stopped", "gone"
]
"""`resumed`: another owner continues at the step on record. `stopped`: by the user."""


class TurnBegan(Struct, frozen=True, kw_only=True, tag="turn_began"):
    """A message of the user was taken by an opencode server, and a model is asked."""

    session: SessionId
    message: str
    backend: BackendId
    server: str = ""
    project: str = ""
    role: str | None = None


class TurnFailed(Struct, frozen=True, kw_only=True, tag="turn_failed"):
    """An opencode server says that the model of a turn failed, whether it tries again or not."""

    session: SessionId
    message: str
    backend: BackendId
    failure: Failure
    server: str = ""
    project: str = ""
    role: str | None = None
    wrote: bool = False
    """The turn may have changed files."""
    is_child: bool = False
    """A subagent's session: its parent waits for it."""
    can_move: bool = False
    """True if that parent can be made to wait for another model."""
    is_awaited: bool = False
    """A program waits for the turn, and takes its end for the answer."""
    retries_since_at: float | None = None
    """The server tries again by itself since then; null: the turn is over."""
    is_late: bool = False
    """The server itself says that this is not so any more."""
    compacts: bool = False
    """The message asks for a compaction, which is what failed."""
    continues: bool = False
    """The server began that compaction by itself, in the middle of its work."""
    has_route: bool = True
    rescue: str = ""
    """Minted by the engine, for the rescue that may follow."""
    new_message: str = ""
    luck: float = 0.5


class TurnAnswered(Struct, frozen=True, kw_only=True, tag="turn_answered"):
    session: SessionId
    message: str
    backend: BackendId


class TurnEnded(Struct, frozen=True, kw_only=True, tag="turn_ended"):
    """Nothing is under way in the session any more."""

    session: SessionId


class TurnUsed(Struct, frozen=True, kw_only=True, tag="turn_used"):
    """The cost of one message of a model, once it is complete."""

    session: SessionId
    message: str
    backend: BackendId
    usage: Usage
    at: float


class RescueAdvanced(Struct, frozen=True, kw_only=True, tag="rescue_advanced"):
    """A step of a rescue was done, or could not be."""

    session: SessionId
    rescue: str
    outcome: RescueProgress
    """The step that comes next, or how it ended."""
    detail: str = ""
    """For people: what went wrong."""
    message: str = ""
    """With `done`: under which id the next model has it, where the server chose the id."""


class RedirectAsked(Struct, frozen=True, kw_only=True, tag="redirect_asked"):
    """A message is about to be sent: is its model the one to send it to?"""

    session: SessionId
    backend: BackendId
    server: str = ""
    project: str = ""
    role: str | None = None
    lease: AttemptId | None = None


class DelegateRequested(Asked, frozen=True, kw_only=True, tag="delegate_requested"):
    delegation: DelegationId
    session: SessionId
    chain: tuple[Entry, ...] | None = None
    chain_name: str | None = None
    cwd: str = ""
    cwd_ids: tuple[str, ...] = ()
    """Identity of that directory, then of those above it. Empty: not known."""
    mode: Literal["interactive", "batch"] = "batch"
    digest: str = ""
    parent: DelegationId | None = None
    parent_attempt: AttemptId | None = None
    """The attempt from inside which it comes; None: the one that runs."""
    has_tmux: bool = False
    """The program is there."""
    prompt_tokens: int | None = None
    differs_from: tuple[str, ...] | None = None
    """Families of models, `?` for an unknown one; None: those of the role."""
    log_dir: str = ""
    """Directory for the logs of its attempts; that of attempt n is `<log_dir>/<n>/output.log`."""
    boot: str = ""
    """Identity of this boot of the machine."""
    standby: Standby | None = None
    """Terms on which it waits until a backend is available; None: it does not."""
    env_names: tuple[str, ...] = ()
    """Variables that the caller set. Their values are nowhere but in the engine."""
    luck: float = 0.5


class StandbyAsked(Struct, frozen=True, kw_only=True, tag="standby_asked"):
    """Work that waits for a backend is to be started now, or gets other terms."""

    delegation: DelegationId
    starts: bool = False
    wait_for_s: float | None = None
    wait_until_at: float | None = None
    not_before_at: float | None = None
    not_before_s: float | None = None
    priority: int | None = None


class AttemptStarted(Struct, frozen=True, kw_only=True, tag="attempt_started"):
    attempt: AttemptId
    pid: int | None = None
    carried: CarriedWord | None = None
    """The way in which it was given the past of its session."""
    carried_why: str = ""
    """The reason why it was not given more of it, for people."""
    conversation: str | None = None
    """The agent's own conversation that this attempt continues."""
    warnings: tuple[str, ...] = ()
    """Warnings about how it was started, for people."""
    anew: bool = False
    """It was ordered by an earlier run of the daemon, and not begun before now."""


class ConversationSeen(Struct, frozen=True, kw_only=True, tag="conversation_seen"):
    """The program named the conversation that it keeps."""

    attempt: AttemptId
    conversation: str


class AttemptAnswered(Struct, frozen=True, kw_only=True, tag="attempt_answered"):
    attempt: AttemptId
    whole_step: bool = False
    """A tool call has ended; else a part of an answer has come, which may still fail."""


class AttemptRetrying(Struct, frozen=True, kw_only=True, tag="attempt_retrying"):
    """The program says that its provider failed and that it tries again by itself."""

    attempt: AttemptId
    failure: Failure
    wait_s: float | None = None
    since_at: float | None = None
    """Time of its first failure since its last whole step; None: now."""


class AttemptGaveUp(Struct, frozen=True, kw_only=True, tag="attempt_gave_up"):
    """The program reported its terminal failure and lingers."""

    attempt: AttemptId
    failure: Failure


class RecordsFound(Struct, frozen=True, kw_only=True, tag="records_found"):
    """Run directories know more than the records, which were lost or are those of a backup."""

    records: tuple[Delegation, ...]
    """Ended ones; or a single one, which may be unfinished."""


class AttemptEnded(Struct, frozen=True, kw_only=True, tag="attempt_ended"):
    attempt: AttemptId
    failure: Failure | None
    """None: it succeeded, and its answer is in the run directory."""
    exit_code: int | None = None
    effects: EffectsWord = "none"
    changed_files: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    """Actions outside: `git push`."""
    unfinished: tuple[str, ...] = ()
    """Of that, what was under way at its end."""
    usage: Usage = Usage()
    gone: bool
    """There is proof that nothing of it runs."""
    answered: bool = False
    warnings: tuple[str, ...] = ()
    """What is missing in its answer, and what it has left for later agents, for people."""
    has_route: bool = True
    """True if the machine has a default route. Looked at where the network failed."""
    luck: float = 0.5


class Woke(Struct, frozen=True, kw_only=True, tag="woke"):
    """The instant of a `WakeAt` has come, or something waited for has changed."""

    delegation: DelegationId
    attempt: AttemptId | None = None
    watch: Watch | None = None
    luck: float = 0.5


class CancelRequested(Struct, frozen=True, kw_only=True, tag="cancel_requested"):
    delegation: DelegationId
    why: str | None = None
    """The reason that its end states; null: the caller wants it."""
    asked_by: AttemptId | None = None
    """The attempt from inside which it was asked for."""


class KeepRequested(Struct, frozen=True, kw_only=True, tag="keep_requested"):
    """A delegation outlives its callers from now on."""

    delegation: DelegationId


class QuestionAnswered(Struct, frozen=True, kw_only=True, tag="question_answered"):
    """A person has chosen."""

    question: str
    delegation: DelegationId
    """The one that the question belongs to, by its name."""
    choice: str
    note: str | None = None
    uid: int
    pid: int | None = None
    attempt: AttemptId | None = None
    """The one from inside which it was answered."""


class ResolveRequested(Struct, frozen=True, kw_only=True, tag="resolve_requested"):
    session: SessionId | None = None
    role: str | None = None
    backend: BackendId | None = None
    chain: tuple[Entry, ...] | None = None
    chain_name: str | None = None
    model: str | None = None
    prompt_tokens: int | None = None
    allow_metered: bool = False
    differs_from: tuple[str, ...] | None = None
    credential: str | None = None
    """With this one alone, where it is configured; None: the one that is picked."""
    lease: AttemptId | None = None
    """Minted by the engine where the caller wants to make the call itself."""
    owner: str | None = None
    """The name of the owner, in a word for people."""
    keeps_turn: bool = False
    """The caller says its turn with each report. Calls of its session overlap, and what one has
    tried or may do is not the other's."""
    luck: float = 0.5


class Reported(Struct, frozen=True, kw_only=True, tag="reported"):
    """The outcome of a call by a caller that talks to a provider itself."""

    outcome: Literal["answered", "success", "failure", "released"]
    """`answered`: the provider has begun to, which is the end of a trial and not of the call."""
    backend: BackendId
    session: SessionId | None = None
    model: str | None = None
    credential: str | None = None
    attempt: AttemptId | None = None
    lease: AttemptId | None = None
    """The lease of the `resolve` that this call was made with."""
    next_lease: AttemptId | None = None
    """Minted by the engine where the caller continues by itself with the next candidate."""
    turn: Turn | None = None
    """Of which the call was a part, as `resolve` or the report before gave it."""
    role: str | None = None
    """With what follows, what was asked of `resolve`: the next one is found by it again."""
    chain: tuple[Entry, ...] | None = None
    prompt_tokens: int | None = None
    allow_metered: bool = False
    differs_from: tuple[str, ...] | None = None
    owner: str | None = None
    started_at: float | None = None
    failure: Failure | None = None
    has_route: bool = True
    further: int = 0
    """Number of times that the same candidate was asked again within the call."""
    has_waited: bool = False
    """The last of them after the wait that its provider had stated."""
    usage: Usage = Usage()
    is_claim: bool = False
    """It comes from inside an attempt, which can say anything: it moves its session alone."""
    luck: float = 0.5


class HealthMarked(Struct, frozen=True, kw_only=True, tag="health_marked"):
    target: str
    """A backend or a scope."""
    reason: str | None = None
    ttl_s: float | None = None
    note: str | None = None
    since_at: float | None = None
    """An imported mark was made then."""
    source: Literal["person", "import"] = "person"


class HealthCleared(Struct, frozen=True, kw_only=True, tag="health_cleared"):
    target: str | None = None


class HealthPaused(Struct, frozen=True, kw_only=True, tag="health_paused"):
    target: str
    note: str | None = None


class HealthResumed(Struct, frozen=True, kw_only=True, tag="health_resumed"):
    target: str


class ReadinessSeen(Struct, frozen=True, kw_only=True, tag="readiness_seen"):
    """The result of a look without cost: the program is there, or the reason why not."""

    backend: BackendId
    reason: Reason | None = None
    detail: str | None = None
    repaired: bool = False
    """The login or the program changed since the mark: evidence of repair."""


class CredentialSeen(Struct, frozen=True, kw_only=True, tag="credential_seen"):
    """The result of a look at the source of a credential, without using it."""

    backend: BackendId
    credential: str
    reason: Reason | None = None
    """The reason why it cannot be used; None: it is there."""
    detail: str | None = None
    changed: bool = False
    """True if it is another one than the one that failed."""


class LoginAnswered(Struct, frozen=True, kw_only=True, tag="login_answered"):
    """A login was used outside of the daemon, and no limit of it was met there."""

    backends: tuple[BackendId, ...]
    """All that use it."""
    at: float


class QuotaSeen(Struct, frozen=True, kw_only=True, tag="quota_seen"):
    """A provider, or a program that knows its plan, said how much of it is used."""

    backend: BackendId
    figures: Figures


class SharedSeen(Struct, frozen=True, kw_only=True, tag="shared_seen"):
    """Findings of other machines, and what a person has said on one of them for all."""

    records: tuple[SharedRecord, ...]


class SessionEnded(Struct, frozen=True, kw_only=True, tag="session_ended"):
    session: SessionId


class SessionCompacted(Struct, frozen=True, kw_only=True, tag="session_compacted"):
    session: SessionId


class ConfigReloaded(Struct, frozen=True, kw_only=True, tag="config_reloaded"):
    changed: tuple[BackendId, ...] = ()
    """Backends whose settings are new: what was not found may be there now."""


class Ticked(Struct, frozen=True, kw_only=True, tag="ticked"):
    """Every 30 s. Persists and announces; no choice waits for it."""

    idle_sessions: tuple[SessionId, ...] = ()
    """Sessions that the store found to be past their time, or too many."""
    fallen_sessions: tuple[Session, ...] = ()
    """Sessions that are away from their original and have nothing running."""
    ran_until_at: float | None = None
    """Time until which the daemon before this one ran; None: this is not the first look."""


class ClockStepped(Struct, frozen=True, kw_only=True, tag="clock_stepped"):
    """The wall clock was set by `by_s` seconds; every window moves with it."""

    by_s: float
    facts: tuple[tuple[str, str], ...] = ()
    """What a later run has to know with the windows that were moved: both or neither is kept."""


class Resumed(Struct, frozen=True, kw_only=True, tag="resumed"):
    """A new run of the daemon has read an unfinished delegation back."""

    delegation: DelegationId
    attempt: AttemptId | None
    """The one that was under way when the run before ended. Another one is of this run: what was
    resumed before it has given it a place, and it is not to be started again."""
    boot: str = ""
    """Identity of this boot of the machine."""
    cwd_ids: tuple[str, ...] = ()
    """Identities of what lies at the path of its directory now."""
    luck: float = 0.5


class WorkspaceMoved(Struct, frozen=True, kw_only=True, tag="workspace_moved"):
    """The directory of an unfinished delegation lies below other ones than before."""

    delegation: DelegationId
    cwd_ids: tuple[str, ...]


Event = (
    DelegateRequested
    | RecordsFound
    | StandbyAsked
    | AttemptStarted
    | ConversationSeen
    | AttemptAnswered
    | AttemptRetrying
    | AttemptGaveUp
    | AttemptEnded
    | Woke
    | CancelRequested
    | KeepRequested
    | QuestionAnswered
    | ResolveRequested
    | Reported
    | HealthMarked
    | HealthCleared
    | HealthPaused
    | HealthResumed
    | ReadinessSeen
    | CredentialSeen
    | LoginAnswered
    | QuotaSeen
    | SharedSeen
    | SessionEnded
    | SessionCompacted
    | TurnBegan
    | TurnFailed
    | TurnAnswered
    | TurnEnded
    | TurnUsed
    | RescueAdvanced
    | RedirectAsked
    | ConfigReloaded
    | Ticked
    | ClockStepped
    | Resumed
    | WorkspaceMoved
)
