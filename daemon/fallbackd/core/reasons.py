"""
The reasons for which a call fails: one row for each, with everything that follows from it.

Nothing else decides by the meaning of a reason: a new one is a row here and the rule that finds it.
Callers read its word in `wire/bounds`, people in `docs/words.md`; a test compares each.
Every column is required, so that a row without one does not pass the type checker.
"""

from enum import StrEnum
from typing import Annotated, Literal

from msgspec import Meta, Struct


class Flags(Struct, frozen=True, kw_only=True):
    """Flags by which the engine acts; a failure may override some of them."""

    retryable: bool = False
    """The same request to the same backend may succeed within about 15 minutes."""
    retry_same: bool = False
    """The engine does that by itself, now."""
    rotate_credential: bool = False
    hop: bool = False
    shrink_input: bool = False
    needs_human: bool = False


class ReasonPolicy(Struct, frozen=True, kw_only=True):
    """The time that a backend is out for one reason; configuration may change each number."""

    window_s: float = 60.0
    growth: Annotated[float, Meta(ge=1, le=10)] = 2.0
    max_window_s: float = 600.0
    cooldown_s: Annotated[float, Meta(ge=0, le=86_400)] = 0.0
    max_wait_s: float | None = None
    """Upper bound on what is believed of a time that the provider states; null: unbounded."""
    state: Literal["rate_limited", "broken"] = "rate_limited"
    retries: Annotated[int, Meta(ge=0, le=10)] = 0


Marked = Literal[
    "backend", "model", "named_model", "credential", "credential_of_model", "plan", "provider"
]
"""
What a failure takes out of use. `named_model`: a model that is absent, under the name `default`
where only the backend knows it; `credential_of_model`: the credential for this model;
`plan`: the quota group, else the credential.
"""

About = Literal["backend", "unclear", "request", "task"]
"""
What a failure says something about. `unclear`: two candidates of one delegation may owe it to the
prompt; `request`: the same on every candidate is the request's own; `task`: no other candidate
would cure it.
"""


class Fix(Struct, frozen=True, kw_only=True):
    """A remedy where waiting does not help."""

    kind: Literal["not_permitted", "configuration", "failed"]
    text: str
    command: Literal["login", "install"] | None = None
    """The command of the kind of backend that does it, where the kind has one."""


class Row(Struct, frozen=True, kw_only=True):
    flags: Flags
    window: ReasonPolicy | None
    """None: it never marks."""
    marked: Marked
    about: About
    ended_by: Literal["time", "login", "program", "settings"]
    """Event that ends it early: a login, a changed program (or new settings), or new settings."""
    is_outage: bool
    """It counts as an outage of the service, about which a role may want to be asked."""
    is_passing: bool
    """After it, the same agent resumes its own conversation first."""
    is_limit: bool
    """A limit of the account or service: the meaning of exit status 75."""
    may_be_notice: bool
    """A program that ends well may have printed it, instead of an answer."""
    verdict: Literal["broken", "not_installed", "not_configured"]
    """Of a candidate that is `broken` for it; any but `broken`: it is not set up."""
    fix: Fix | None
    """None: waiting helps, or nothing does."""

    @property
    def is_over_by_itself(self) -> bool:
        """True if a caller may wait for its end, and then be answered."""
        return self.window is not None and self.ended_by == "time"


DAY_S = 86_400.0
_SIX_HOURS_S = 6 * 3600.0


def _window(
    window_s: float,
    max_window_s: float,
    *,
    cooldown_s: float = 0.0,
    growth: float = 2.0,
    max_wait_s: float | None = _SIX_HOURS_S,
    retries: int = 0,
) -> ReasonPolicy:
    return ReasonPolicy(
        window_s=window_s,
        max_window_s=max_window_s,
        cooldown_s=cooldown_s,
        growth=growth,
        max_wait_s=max_wait_s,
        retries=retries,
    )


def _until_repaired(
    window_s: float, *, cooldown_s: float = 0.0, max_wait_s: float | None = None
) -> ReasonPolicy:
    return ReasonPolicy(
        max_wait_s=max_wait_s,
        window_s=window_s,
        growth=1,
        max_window_s=window_s,
        cooldown_s=cooldown_s,
        state="broken",
    )


_AGAIN = Flags(retryable=True, retry_same=True, hop=True)
_LATER = Flags(retryable=True, hop=True)
_ELSEWHERE = Flags(hop=True)
_REPAIR = Flags(hop=True, needs_human=True)
_NEXT_CREDENTIAL = Flags(rotate_credential=True, hop=True)
_SMALLER = Flags(shrink_input=True)


class Reason(StrEnum):
    """The one taxonomy of failures; `Reason.AUTH.row` is what follows from it."""

    row: Row

    def __new__(cls, word: str, row: Row | None = None) -> "Reason":
        """Make a member of its row. (Looking one up by its word does not come here.)"""
        if row is None:
            raise TypeError(f"the reason {word} has no row")
        one = str.__new__(cls, word)
        one._value_ = word
        one.row = row
        return one

    # fmt: off
    RATE_LIMIT = "rate_limit", Row(
        flags=Flags(retryable=True, rotate_credential=True, hop=True),
        window=_window(300, 3600, cooldown_s=600),
        marked="credential_of_model", about="backend", ended_by="time", verdict="broken",
        is_outage=False, is_passing=False, is_limit=True, may_be_notice=True,
        fix=None,
    )
    USAGE_LIMIT = "usage_limit", Row(
        flags=_NEXT_CREDENTIAL,
        window=_window(3600, _SIX_HOURS_S, cooldown_s=600, max_wait_s=8 * DAY_S),
        marked="plan", about="backend", ended_by="time", verdict="broken",
        is_outage=False, is_passing=False, is_limit=True, may_be_notice=True,
        fix=None,
    )
    LOCAL_BUDGET = "local_budget", Row(
        flags=_ELSEWHERE,
        window=_window(3600, 3600, growth=1, max_wait_s=None),
        marked="backend", about="backend", ended_by="time", verdict="broken",
        is_outage=False, is_passing=False, is_limit=False, may_be_notice=False,
        fix=None,
    )
    OVERLOADED = "overloaded", Row(
        flags=_AGAIN,
        window=_window(30, 600, retries=1),
        marked="model", about="backend", ended_by="time", verdict="broken",
        is_outage=True, is_passing=True, is_limit=True, may_be_notice=False,
        fix=None,
    )
    SERVER_ERROR = "server_error", Row(
        flags=_AGAIN,
        window=_window(30, 600, retries=1),
        marked="backend", about="backend", ended_by="time", verdict="broken",
        is_outage=True, is_passing=True, is_limit=False, may_be_notice=False,
        fix=None,
    )
    NETWORK = "network", Row(
        flags=_AGAIN,
        window=_window(30, 600, retries=1),
        marked="provider", about="backend", ended_by="time", verdict="broken",
        is_outage=True, is_passing=True, is_limit=False, may_be_notice=False,
        fix=None,
    )
    TIMEOUT = "timeout", Row(
        flags=_LATER,
        window=_window(60, 600),
        marked="backend", about="unclear", ended_by="time", verdict="broken",
        is_outage=True, is_passing=False, is_limit=False, may_be_notice=False,
        fix=None,
    )
    STALLED = "stalled", Row(
        flags=_LATER,
        window=_window(60, 600),
        marked="backend", about="backend", ended_by="time", verdict="broken",
        is_outage=True, is_passing=False, is_limit=False, may_be_notice=False,
        fix=None,
    )
    CRASH = "crash", Row(
        flags=_LATER,
        window=_window(60, 600),
        marked="backend", about="unclear", ended_by="time", verdict="broken",
        is_outage=True, is_passing=True, is_limit=False, may_be_notice=False,
        fix=None,
    )
    UNKNOWN = "unknown", Row(
        flags=_LATER,
        window=_window(60, 600),
        marked="backend", about="unclear", ended_by="time", verdict="broken",
        is_outage=True, is_passing=False, is_limit=False, may_be_notice=False,
        fix=None,
    )
    EMPTY_RESULT = "empty_result", Row(
        flags=_AGAIN,
        window=_window(300, 3600, retries=1),
        marked="backend", about="backend", ended_by="time", verdict="broken",
        is_outage=True, is_passing=False, is_limit=False, may_be_notice=False,
        fix=None,
    )
    BILLING = "billing", Row(
        flags=Flags(rotate_credential=True, hop=True, needs_human=True),
        window=_until_repaired(3600, cooldown_s=600, max_wait_s=8 * DAY_S),
        marked="credential", about="backend", ended_by="login", verdict="broken",
        is_outage=True, is_passing=False, is_limit=True, may_be_notice=True,
        fix=Fix(kind="not_permitted", text="its account needs credit or a payment method"),
    )
    AUTH = "auth", Row(
        flags=_NEXT_CREDENTIAL,
        window=_until_repaired(600),
        marked="credential", about="backend", ended_by="login", verdict="broken",
        is_outage=True, is_passing=False, is_limit=False, may_be_notice=True,
        fix=Fix(kind="not_permitted", text="log in again", command="login"),
    )
    NOT_INSTALLED = "not_installed", Row(
        flags=_REPAIR,
        window=_until_repaired(600),
        marked="backend", about="backend", ended_by="program", verdict="not_installed",
        is_outage=True, is_passing=False, is_limit=False, may_be_notice=False,
        fix=Fix(kind="configuration", text="install it", command="install"),
    )
    NOT_CONFIGURED = "not_configured", Row(
        flags=_REPAIR,
        window=_until_repaired(600),
        marked="backend", about="backend", ended_by="program", verdict="not_configured",
        is_outage=True, is_passing=False, is_limit=False, may_be_notice=False,
        fix=Fix(kind="configuration", text="it needs a login or configuration", command="login"),
    )
    PERMISSION = "permission", Row(
        flags=_REPAIR,
        window=_until_repaired(600),
        marked="backend", about="backend", ended_by="program", verdict="broken",
        is_outage=True, is_passing=False, is_limit=False, may_be_notice=False,
        fix=Fix(kind="not_permitted", text="the daemon may not run it or use its directory"),
    )
    TLS = "tls", Row(
        flags=_REPAIR,
        window=_until_repaired(600),
        marked="backend", about="backend", ended_by="login", verdict="broken",
        is_outage=True, is_passing=False, is_limit=False, may_be_notice=False,
        fix=Fix(
            kind="configuration",
            text="its certificate is not accepted: check proxy and CA settings",
        ),
    )
    MODEL_NOT_FOUND = "model_not_found", Row(
        flags=_ELSEWHERE,
        window=_until_repaired(DAY_S),
        marked="named_model", about="backend", ended_by="settings", verdict="broken",
        is_outage=False, is_passing=False, is_limit=False, may_be_notice=False,
        fix=Fix(kind="configuration", text="choose another model"),
    )
    MANUAL = "manual", Row(
        flags=_ELSEWHERE,
        window=_until_repaired(600),
        marked="backend", about="backend", ended_by="time", verdict="broken",
        is_outage=True, is_passing=False, is_limit=False, may_be_notice=False,
        fix=None,
    )
    CONTEXT_OVERFLOW = "context_overflow", Row(
        flags=_SMALLER,
        window=None,
        marked="backend", about="request", ended_by="time", verdict="broken",
        is_outage=True, is_passing=False, is_limit=False, may_be_notice=False,
        fix=Fix(kind="failed", text="the prompt does not fit its context: shorten it"),
    )
    PAYLOAD_TOO_LARGE = "payload_too_large", Row(
        flags=_SMALLER,
        window=None,
        marked="backend", about="request", ended_by="time", verdict="broken",
        is_outage=True, is_passing=False, is_limit=False, may_be_notice=False,
        fix=Fix(kind="failed", text="the prompt is too large for it: shorten it"),
    )
    FORMAT_ERROR = "format_error", Row(
        flags=_ELSEWHERE,
        window=None,
        marked="backend", about="request", ended_by="time", verdict="broken",
        is_outage=True, is_passing=False, is_limit=False, may_be_notice=False,
        fix=Fix(kind="failed", text="its provider does not accept the request"),
    )
    CONTENT_POLICY = "content_policy", Row(
        flags=_ELSEWHERE,
        window=None,
        marked="backend", about="request", ended_by="time", verdict="broken",
        is_outage=True, is_passing=False, is_limit=False, may_be_notice=False,
        fix=Fix(kind="failed", text="its provider refuses the prompt"),
    )
    PROVIDER_POLICY = "provider_policy", Row(
        flags=_ELSEWHERE,
        window=None,
        marked="backend", about="request", ended_by="time", verdict="broken",
        is_outage=True, is_passing=False, is_limit=False, may_be_notice=False,
        fix=Fix(kind="not_permitted", text="the settings of its account forbid this"),
    )
    TASK_FAILED = "task_failed", Row(
        flags=Flags(),
        window=None,
        marked="backend", about="task", ended_by="time", verdict="broken",
        is_outage=True, is_passing=False, is_limit=False, may_be_notice=False,
        fix=Fix(kind="failed", text="the work itself failed there"),
    )
    APPROVAL_REQUIRED = "approval_required", Row(
        flags=Flags(needs_human=True),
        window=None,
        marked="backend", about="task", ended_by="time", verdict="broken",
        is_outage=True, is_passing=False, is_limit=False, may_be_notice=False,
        fix=None,
    )
    CANCELLED = "cancelled", Row(
        flags=Flags(),
        window=None,
        marked="backend", about="task", ended_by="time", verdict="broken",
        is_outage=True, is_passing=False, is_limit=False, may_be_notice=False,
        fix=None,
    )
    SESSION = "session", Row(
        flags=_ELSEWHERE,
        window=None,
        marked="backend", about="backend", ended_by="time", verdict="broken",
        is_outage=False, is_passing=False, is_limit=False, may_be_notice=False,
        fix=None,
    )
    LOCAL_NETWORK = "local_network", Row(
        flags=_LATER,
        window=None,
        marked="backend", about="backend", ended_by="time", verdict="broken",
        is_outage=True, is_passing=False, is_limit=False, may_be_notice=False,
        fix=None,
    )
    # fmt: on


FINAL = frozenset({Reason.CONTENT_POLICY})
"""Of the request, and another provider would be asked to do what this one refuses to."""
WORDS = frozenset(one.value for one in Reason)

NOT_SET_UP = frozenset(one.value for one in Reason if one.row.verdict != "broken")
"""Words of the reasons for which a backend is no more than a name here."""
