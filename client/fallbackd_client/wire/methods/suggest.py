"""`suggest`: which backend suits a task."""

from msgspec import Struct, field

from fallbackd_client.wire.bounds import DirectoryPath
from fallbackd_client.wire.envelope import Method
from fallbackd_client.wire.shapes import HealthEntry


class Params(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Absent and unknown words count as small, medium, none: callers pass what a person said."""

    goal: str
    project_size: str | None = None
    scope: str | None = None
    complexity: str | None = None
    project_root: DirectoryPath | None = None
    """Absolute path. Backends whose context its text does not fit are left out."""


class CapUse(Struct, frozen=True, kw_only=True):
    used: float
    cap: float | None = None
    unit: str = "calls"
    window_s: float = 3600.0


class Result(Struct, frozen=True, kw_only=True):
    suggestion: str | None = None
    """Null: no backend is available."""
    reason: str = ""
    eta_s: float | None = None
    eta_display: str | None = None
    scores: dict[str, float] = field(default_factory=dict)
    rate_limits: dict[str, CapUse] = field(default_factory=dict)
    available: tuple[str, ...] = ()
    unhealthy: dict[str, HealthEntry] = field(default_factory=dict)
    was_fallback: bool = False
    """The best by score was left out."""


METHOD: Method[Params, Result] = Method(
    "suggest",
    params=Params,
    result=Result,
    read_only=True,
    summary="Which backend suits a task, with scores and an estimate of time.",
)
