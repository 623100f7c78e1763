"""How a failure marks whose reason was guessed from text: shortly, whatever it states."""

from msgspec import structs

from fallbackd.core.failures import Failure
from fallbackd.core.policy import ReasonPolicy

SURE = 0.95
MAX_FIRST_WINDOW_S, MAX_WINDOW_S = 60.0, 1800.0
"""It grows while the same is found again: what holds longer proves itself."""


def is_doubtful(failure: Failure) -> bool:
    return failure.confidence == "text" and failure.confidence_score < SURE


def doubted(failure: Failure, policy: ReasonPolicy, *, now: float) -> tuple[Failure, ReasonPolicy]:
    """A failure and its policy, bounded: a stated time beyond the first window is not believed."""
    window_s = min(policy.window_s, MAX_FIRST_WINDOW_S)
    until_at = failure.wait_until_at
    if until_at is not None and until_at > now + window_s:
        failure = structs.replace(failure, wait_until_at=None, wait_s=None)
    bounded = structs.replace(
        policy,
        window_s=window_s,
        max_window_s=max(window_s, min(policy.max_window_s, MAX_WINDOW_S)),
        growth=max(policy.growth, 2.0),
        cooldown_s=min(policy.cooldown_s, window_s),
    )
    return failure, bounded
