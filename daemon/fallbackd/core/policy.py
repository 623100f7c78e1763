"""
Every knob that a decision reads, with unit, default and bounds.

Configuration is the file, policy the value: `config/` turns one into the other. Bounds are
`msgspec.Meta`, so that the loader and the JSON schema say the same.

A policy never changes: what follows from it alone (chains, roles, what is said of a candidate) is
kept on it (`@once`). A function that reads anything else must not be marked so.
"""

import re
from collections.abc import Callable, Mapping
from functools import cached_property, wraps
from typing import Annotated, Any, Literal, TypeVar, TypeVarTuple, Unpack

from msgspec import Meta, Struct, field, structs

from fallbackd.core.ids import BackendId
from fallbackd.core.protocol import Usage
from fallbackd.core.reasons import DAY_S, Reason
from fallbackd.core.reasons import ReasonPolicy as ReasonPolicy

TMUX_SESSION = "fallbackd"
"""The session that holds the windows."""

Window = Annotated[float, Meta(ge=10, le=604_800)]


REASONS: dict[Reason, ReasonPolicy] = {
    reason: reason.row.window for reason in Reason if reason.row.window is not None
}
"""Reasons that are absent never mark."""

MODEL_UNKNOWN_WINDOW_S = 600.0
"""`model_not_found` where the model has no name: the whole backend is out, so not for a day."""


def max_wait_s(policies: Mapping[Reason, ReasonPolicy], reason: Reason) -> float | None:
    found = policies.get(reason)
    return None if found is None else found.max_wait_s


Shell = Literal["own", "confined"]
"""Who says whether a command may run: the agent's own approval, or the confinement."""


class Defaults(Struct, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """`[defaults]` of the configuration."""

    max_fallback_depth: Annotated[int, Meta(ge=1, le=10)] = 3
    """Most moves to another backend within one delegation."""
    settle_s: Annotated[float, Meta(ge=0, le=60)] = 5.0
    """How long `delegate` with `wait = settled` waits for an early failure."""
    wait_threshold_s: Annotated[float, Meta(ge=0, le=3600)] | None = None
    """How long a delegation waits for a reset time stated by the provider while no other candidate
    is usable; default: 30 s interactive, 300 s batch. Beside a usable candidate it waits for at
    most `patience_s`."""
    dedup_window_s: Annotated[float, Meta(ge=0, le=60)] = 3.0
    """Reports of the same failure within this time count once."""
    patience_s: Annotated[float, Meta(ge=0, le=600)] | None = None
    """How long an agent may retry on its own, from the first failure until a whole step has
    succeeded; default: 5 s interactive, 30 s batch."""
    first_output_s: Annotated[float, Meta(ge=0.1, le=86_400)] | None = None
    """Longest wait for the first output; default: as `first_answer_s`."""
    first_answer_s: Annotated[float, Meta(ge=0.1, le=86_400)] | None = None
    """Longest wait for the provider's first reply; default: 120 s interactive, 300 s batch."""
    stall_s: Annotated[float, Meta(ge=0.1, le=86_400)] | None = None
    """Longest silence after the first output; default: 450 s for agents, 180 s for HTTP, 900 s for
    HTTP on loopback."""
    busy_stall_s: Annotated[float, Meta(ge=0.1, le=86_400)] = 1200.0
    """Longest silence inside one tool call."""
    timeout_s: Annotated[float, Meta(ge=0.1, le=604_800)] | None = None
    """Deadline of a delegation that names none; default: no deadline."""
    trial_grace_s: Annotated[float, Meta(ge=0.1, le=3600)] = 20.0
    """A probe of a program whose output does not show the provider's reply passes after this time
    without a failure."""
    stop_grace_s: Annotated[float, Meta(ge=0, le=60)] = 2.0
    """Time between SIGTERM and SIGKILL when an agent is stopped."""
    backoff_base_s: Annotated[float, Meta(ge=0, le=60)] = 2.0
    """First pause before the same backend is tried again."""
    backoff_max_s: Annotated[float, Meta(ge=0, le=600)] = 60.0
    """Longest pause before the same backend is tried again."""
    max_attempts: Annotated[int, Meta(ge=1, le=50)] = 8
    """Most attempts of one delegation."""
    retry_share: Annotated[float, Meta(ge=0, le=1)] = 0.1
    """Retries and moves of all delegations together, as a share of the delegations; protects
    providers during an outage."""
    retry_floor: Annotated[int, Meta(ge=0, le=10_000)] = 8
    """Retries and moves that are allowed in any case, also when few delegations run."""
    max_running: Annotated[int, Meta(ge=1, le=1000)] = 64
    """Attempts that run at the same time on this host; more wait as `queued`."""
    max_unfinished: Annotated[int, Meta(ge=1, le=100_000)] = 1000
    """Delegations that have not ended; more are refused."""
    max_unfinished_of_client: Annotated[int, Meta(ge=1, le=100_000)] = 750
    """Delegations of one login session that have not ended; more are refused."""
    last_resort_s: Annotated[float, Meta(ge=1, le=86_400)] = 60.0
    """While no backend is usable, one probe is allowed this long after the last attempt."""
    loop_steps: Annotated[int, Meta(ge=3, le=1000)] = 20
    """An agent that repeats the same step this often is stopped as `stalled`."""
    idle_s: Annotated[float, Meta(ge=0, le=604_800)] = 3600.0
    """A session returns to its first choice after this long without a delegation."""
    max_nesting: Annotated[int, Meta(ge=0, le=10)] = 2
    """How deep delegations from inside delegations may go."""
    default_cwd: str | None = None
    """Working directory of requests that name none; default: a private directory."""
    allowed_roots: tuple[str, ...] = ()
    """Directories below which agents may work; default: anywhere."""
    allow_broad_cwd: bool = False
    """Allow agents to work in very broad directories, such as `/` or the home directory."""
    confine: bool = True
    """Let the kernel hold agents to their permissions, where it can (Landlock, Linux 6.2)."""
    shell: Shell = "own"
    """Whether agents ask before they run a command. `own`: as each is set up itself. `confined`:
    not at `workspace`, where the kernel holds them to their places; commands that leave the
    machine (push, publish, send) stay refused where the agent can refuse them."""
    workspace_lock: Literal["on", "off"] = "on"
    """Let only one delegation at a time write in a directory."""
    on_partial: Literal["continue", "ask", "fail"] = "continue"
    """What to do if a failed attempt may have changed files: `continue` with the next backend,
    `ask` a person, or `fail`."""
    residents: Annotated[int, Meta(ge=0, le=16)] = 0
    """Most agent CLIs that stay after a prompt, so that the next one of the session needs no start;
    0: none stays. Each needs up to 250 MB. They end after ten minutes without a prompt, and where
    less than a fifth of the memory is free. For kinds `claude` and `codex`."""
    reserve_percent: Annotated[float, Meta(ge=0, le=100)] = 0.0
    """Share of each plan that batch work leaves to interactive work: at 20 it stops where 80 % of a
    window is used, as long as a figure of the last 15 minutes says so; 0: none."""
    max_log_bytes: Annotated[int, Meta(ge=65_536)] = 64 * 1024 * 1024
    """Most bytes kept of the output of one attempt."""
    max_sessions: Annotated[int, Meta(ge=1)] = 10_000
    """Most sessions that are remembered; the oldest go first."""
    session_ttl_s: Annotated[float, Meta(ge=60)] = 7 * DAY_S
    """Sessions that were unused for this long are forgotten."""
    delegation_ttl_s: Annotated[float, Meta(ge=60)] = 30 * DAY_S
    """Delegations that ended this long ago are removed."""
    tmux: bool = False
    """Open a tmux window for each delegation that follows its log."""
    tmux_windows: Annotated[int, Meta(ge=1, le=200)] = 16
    """Most tmux windows; further delegations get none."""
    max_runs_bytes: Annotated[int, Meta(ge=1024 * 1024)] = 4 * 1024 * 1024 * 1024
    """Most bytes of prompts, answers and logs; the oldest ended delegations go first."""
    journal_ttl_s: Annotated[float, Meta(ge=60)] = 7 * DAY_S
    """Events can be replayed for this long."""
    max_journal: Annotated[int, Meta(ge=1000)] = 200_000
    """Most events that can be replayed."""


Cost = Literal["subscription", "metered", "local"]
OnOutage = Literal["stop", "skip", "ask", "fallback"]
ReplayWord = Literal["ask", "external-ok"]
"""Whether work is given to another agent after one has committed, published or sent something:
a person is asked, or it is (`external-ok`)."""
RoleKind = Literal["creative", "adversarial", "validator", "utility"]

ON_OUTAGE: Mapping[RoleKind, OnOutage] = {
    "creative": "stop",
    "adversarial": "ask",
    "validator": "ask",
    "utility": "fallback",
}
"""What a role does about a service that is out, where its table does not say."""


class Entry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One entry of a chain."""

    backend: BackendId
    model: str | None = None
    tier: Literal["primary", "model", "api", "in_session"] | None = None
    effort: str | None = None
    at_percent: float | None = None
    """Second choice for new work from this use of a window of its plan on."""
    translate: bool = False
    """A call of the gateway in another API than its own may be translated for it."""


CredentialStrategy = Literal["fill_first", "round_robin", "least_used", "random"]


class Backend(Struct, frozen=True, kw_only=True):
    """A configured backend, as far as decisions know it."""

    id: BackendId
    kind: str
    name: str = ""
    """For people; empty: the id."""
    implicit: bool = False
    """Not configured by itself: a `provider/model` that some chain or caller names."""
    enabled: bool = True
    lacks: str | None = None
    """What the configuration has to say before it can be used, in words: it is passed over."""
    model: str | None = None
    provider: str | None = None
    """Host or name of the provider, where it is known: scope `provider:…`."""
    family: str | None = None
    quota: str | None = None
    credentials: tuple[str, ...] = ()
    """Labels. Values are never here."""
    credential_strategy: CredentialStrategy = "fill_first"
    context_tokens: int | None = None
    hourly_cap: int | None = None
    """Enforced where it is configured."""
    shown_cap: int | None = None
    """Built in: shown by `suggest`, not enforced."""
    cap_unit: str = "requests"
    loopback: bool = False
    is_http: bool = False
    """Its calls start no process on this machine. Of its kind, as the next three are."""
    keeps_to_reading: bool = False
    """Its program has a read-only mode that is enforced."""
    plain_output: bool = False
    """Its output does not show `provider_answered`: a trial passes after `trial_grace_s`."""
    greets: bool = False
    """It prints something as soon as it has begun, before its provider answers."""
    scores: Mapping[str, int] = field(default_factory=dict)
    """`suggest`: points by word, e.g. {"size:small": 30, "scope:code": 20}."""
    suggestible: bool = True
    stall_s: float | None = None
    busy_stall_s: float | None = None
    first_answer_s: float | None = None
    timeout_s: float | None = None
    retries: int | None = None
    backoff_base_s: float | None = None
    backoff_max_s: float | None = None
    allow_env: tuple[str, ...] = ()
    confine: bool | None = None
    """Null: as `[defaults]` says."""
    shell: Shell | None = None
    """Null: as `[defaults]` says."""
    account: str | None = None
    """What stands before commands of its program where it is not the usual account:
    `CODEX_HOME=/home/me/.codex-work`."""
    cost: Cost | None = None
    """How a call is paid for: by a plan, by itself, or not at all."""
    fallback_model: str | None = None
    """Used once in place of a model that is missing."""
    reasons: Mapping[Reason, ReasonPolicy] = field(default_factory=dict)
    """Overrides of the policy for this backend (imported configurations)."""

    @property
    def is_local(self) -> bool:
        """True if the backend is on this machine: it works without a network."""
        return self.loopback or self.cost == "local"


class Role(Struct, frozen=True, kw_only=True):
    name: str
    chain: tuple[Entry, ...] = ()
    at_percent: float | None = None
    """The one of each candidate that names none."""
    enabled: bool = True
    kind: RoleKind | None = None
    fallback_on: frozenset[Reason] | None = None
    """Null: every reason with `hop`."""
    max_fallback_depth: int | None = None
    idle_s: float | None = None
    return_policy: Literal["idle", "new_session", "successes"] = "idle"
    return_n: int = 5
    """Of the policy `successes`: answers before a better backend is looked for."""
    return_step: Literal["best", "one"] = "best"
    on_outage: OnOutage | None = None
    """Null: by the kind; a role without a kind falls back."""
    must_differ_from: tuple[str, ...] = ()
    """`author`, or families of models."""
    allow_metered: bool = False
    shell: Shell | None = None
    """Null: as the backend says."""
    fallback_model: str | None = None
    """Instead of the one of each backend."""
    replay: ReplayWord = "ask"
    question_timeout_s: float | None = None
    """How long its questions wait for a person; null: for ever."""

    @property
    def outage_policy(self) -> OnOutage:
        if self.on_outage is not None:
            return self.on_outage
        return "fallback" if self.kind is None else ON_OUTAGE[self.kind]


class Project(Struct, frozen=True, kw_only=True):
    """The rules of one directory's own file for opencode sessions there."""

    enabled: bool = True
    roles: Mapping[str, Role] = field(default_factory=dict)
    """By agent; `*` for every other one."""
    reasons: Mapping[Reason, ReasonPolicy] = field(default_factory=dict)


class Handoff(Struct, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """`[handoff]`: how the conversation of a session is continued."""

    mode: Literal["native", "brief", "none"] = "native"
    """How the next agent is given what was said in the session: as a conversation of its own
    (`native`), as text in front of the prompt (`brief`), or not at all (`none`). An agent resumes
    its own conversation unless it is `none`."""
    max_turns: Annotated[int, Meta(ge=1, le=100)] = 40
    """Most earlier prompts that are given, the latest ones."""
    start_s: Annotated[float, Meta(ge=1, le=600)] = 30.0
    """Longest wait for the first output of claude, codex or gemini that continues a conversation,
    once it was started; then it is started once more with a brief. opencode prints nothing before
    its provider answers, and has the limit of every first output."""


class Price(Struct, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """`[prices.<model>]`: what an HTTP API bills, in US dollars for a million tokens."""

    input: Annotated[float, Meta(ge=0, le=1_000_000)] = 0.0
    """For a million tokens of prompts."""
    output: Annotated[float, Meta(ge=0, le=1_000_000)] = 0.0
    """For a million tokens of answers."""


class Policy(Struct, frozen=True, kw_only=True, dict=True):
    """Everything that a decision reads besides the records. Its mappings are never changed."""

    defaults: Defaults = Defaults()
    handoff: Handoff = Handoff()
    reasons: Mapping[Reason, ReasonPolicy] = field(default_factory=lambda: dict(REASONS))
    backends: Mapping[BackendId, Backend] = field(default_factory=dict)
    """In the order of declaration."""
    chains: Mapping[str, tuple[Entry, ...]] = field(default_factory=dict)
    any_is_built_in: bool = False
    """The chain `*` is the default for work without a backend or a role, not a user's choice."""
    roles: Mapping[str, Role] = field(default_factory=dict)
    prices: Mapping[str, Price] = field(default_factory=dict)
    """By the id of the model, as its backend is asked for it."""
    rescues: bool = True
    """Whether failed turns of opencode sessions are taken to another model."""
    quotas: Mapping[str, str] = field(default_factory=dict)
    """Quota group by provider, for `provider/model` ids without a configuration."""
    contexts: Mapping[str, int] = field(default_factory=dict)
    """Tokens that a model holds, by the `provider/model` ids of opencode servers, as they say."""
    may: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What the agents of a role may ask of the daemon beyond their own permissions."""
    served: frozenset[str] = frozenset()
    """`provider/model` ids that known opencode servers offer."""
    projects: Mapping[str, Project] = field(default_factory=dict)
    """By directory; empty: the user's own file, for wherever there is no other."""
    windows: Mapping[BackendId, Mapping[Reason, ReasonPolicy]] = field(default_factory=dict)
    """Of candidates that the files of projects name: the longest that any of them asks for."""
    kernel_confines: Literal["no", "partly", "yes"] = "no"
    """Whether the kernel can hold a program to the places that it may write to. Partly: a file
    elsewhere can still be truncated."""

    @cached_property
    def computed(self) -> dict[Any, Any]:
        """Conclusions from this policy alone, by function and arguments: see `once`."""
        return {}

    def confines(self, backend: Backend) -> bool:
        """Return whether a backend's program is to be confined, as far as the kernel can."""
        return self.wants_confined(backend) and self.kernel_confines != "no"

    def wants_confined(self, backend: Backend) -> bool:
        """Return whether the configuration asks to confine a backend's program."""
        return self.defaults.confine if backend.confine is None else backend.confine

    def priced(self, usage: Usage, backend: BackendId, model: str | None) -> Usage:
        """The usage with its cost, where the provider states none and the price is known."""
        found = self.backends.get(backend)
        price = self.prices.get(model or (None if found is None else found.model) or "")
        is_free = found is None or not found.is_http or found.cost == "subscription"
        if price is None or is_free or usage.cost_usd is not None or usage == Usage():
            return usage
        cost = price.input * usage.input_tokens + price.output * usage.output_tokens
        return structs.replace(usage, cost_usd=round(cost / 1e6, 9))

    def wait_threshold_s(self, mode: str) -> float:
        fixed = self.defaults.wait_threshold_s
        return fixed if fixed is not None else (30.0 if mode == "interactive" else 300.0)

    def patience_s(self, mode: str) -> float:
        fixed = self.defaults.patience_s
        return fixed if fixed is not None else (5.0 if mode == "interactive" else 30.0)

    def reason(self, reason: Reason, backend: BackendId | None = None) -> ReasonPolicy | None:
        """The policy of a reason, the backend's own first; None: this reason never marks."""
        if backend is not None and (found := self.backends.get(backend)) is not None:
            own = found.reasons.get(reason)
            if own is not None:
                return own
        if backend is not None and (asked := self.windows.get(backend)) is not None:
            own = asked.get(reason)
            if own is not None:
                return own
        return self.reasons.get(reason)


HOPPING = frozenset(reason for reason in Reason if reason.row.flags.hop)

IN_SESSION_KIND = "in-session"
"""The kind of backend that does nothing: the work is handed back to the caller."""

OPENCODE = BackendId("opencode")
"""Whose limits a `provider/model` id shares."""
_IMPLICIT = re.compile(r"[A-Za-z0-9][\w.-]{0,99}(?:/[\w.:@+-]{1,200})+", re.ASCII)

_LIMITLESS = Backend(id=OPENCODE, kind="opencode")


def implicit_backend(
    id: str, *, like: Backend | None = None, quotas: Mapping[str, str] = {}
) -> Backend | None:
    """
    A backend for a `provider/model` id without a configuration; None for ids of another form.

    Args:
        like: The opencode backend whose limits it shares.
        quotas: Quota group by provider.
    """
    if len(id) > 300 or not _IMPLICIT.fullmatch(id):
        return None
    like = like or _LIMITLESS
    return Backend(
        id=BackendId(id),
        kind="opencode",
        keeps_to_reading=True,
        implicit=True,
        enabled=like.enabled,
        model=id,
        provider=id.partition("/")[0],
        quota=quotas.get(id.partition("/")[0]),
        suggestible=False,
        stall_s=like.stall_s,
        busy_stall_s=like.busy_stall_s,
        first_answer_s=like.first_answer_s,
        timeout_s=like.timeout_s,
        retries=like.retries,
        backoff_base_s=like.backoff_base_s,
        backoff_max_s=like.backoff_max_s,
        allow_env=like.allow_env,
        confine=like.confine,
        shell=like.shell,
        cost=like.cost,
    )


# Conclusions from the configuration alone, each computed once.
#
# They are kept on the `Policy` and go with it: a policy never changes, a new one begins with
# nothing.


MOST = 4096
"""Values of one policy: callers name models and roles as they like."""

_Args = TypeVarTuple("_Args")
_Found = TypeVar("_Found")


def once(
    compute: Callable[[Policy, Unpack[_Args]], _Found],
) -> Callable[[Policy, Unpack[_Args]], _Found]:
    """`compute` reads nothing but its arguments, which can be hashed."""

    @wraps(compute)
    def found(policy: Policy, *args: *_Args) -> _Found:
        known: dict[Any, Any] = policy.computed
        key = (compute, args)
        try:
            value: _Found = known[key]
        except KeyError:
            if len(known) >= MOST:
                known.clear()
            value = known[key] = compute(policy, *args)
        return value

    return found
