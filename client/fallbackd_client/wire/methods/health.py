"""Health of backends and scopes."""

from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from fallbackd_client.wire.bounds import DurationS, Name, Note, one_of
from fallbackd_client.wire.envelope import Method
from fallbackd_client.wire.shapes import HealthEntry

Action = Literal["list", "get", "mark", "clear", "pause", "resume"]


class HealthParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    action: Action = "list"
    """What to do."""
    target: Name | None = None
    """A backend, or a scope such as `quota:chatgpt-plan`."""
    platform: Name | None = None
    """The same as `target`, for older callers."""
    reason: Note | None = None
    """With `mark`: a reason of the taxonomy, or your own words."""
    ttl_s: DurationS | None = None
    """With `mark`: for how long; 0 clears the mark."""
    ttl: DurationS | None = None
    """The same as `ttl_s`, for older callers."""
    ttl_seconds: DurationS | None = None
    """The same as `ttl_s`, for older callers."""
    note: Note | None = None
    """A note for people."""
    only: Literal["unhealthy"] | None = None
    """With `list`: leave out healthy backends."""
    everywhere: bool = False
    """Say it for all machines that share health; an error if they cannot be reached."""

    @property
    def only_reads(self) -> bool:
        """True if these params change nothing."""
        return self.action in ("list", "get")

    def normalised(self) -> "HealthParams":
        """
        Return these params under today's names.

        Raises:
            msgspec.ValidationError: Two names contradict each other, or a target is missing.
        """
        target = one_of(target=self.target, platform=self.platform)
        if target is None and self.action in ("get", "mark", "pause", "resume"):
            raise msgspec.ValidationError(
                f"Object missing required field `target` for action {self.action!r}"
            )
        return msgspec.structs.replace(
            self,
            target=target,
            platform=None,
            ttl_s=one_of(ttl_s=self.ttl_s, ttl=self.ttl, ttl_seconds=self.ttl_seconds),
            ttl=None,
            ttl_seconds=None,
        )


class HealthResult(Struct, frozen=True, kw_only=True):
    """`cleared` after `clear`, `health` after everything else; both after a mark with TTL 0."""

    health: dict[str, HealthEntry] | UnsetType = UNSET
    """Health by backend; absent after `clear`."""
    cleared: tuple[str, ...] | UnsetType = UNSET
    """What had a mark that was cleared; only after `clear`, or `mark` with a `ttl_s` of 0."""


HEALTH: Method[HealthParams, HealthResult] = Method(
    "health",
    params=HealthParams,
    result=HealthResult,
    read_only=False,  # list and get change nothing, the others do
    who="person",
    who_reads="any",
    promises="record",
    errors=("unknown", "draining"),
    summary="Read and set the health of backends and scopes.",
    example=(
        {"action": "mark", "target": "codex", "ttl_s": 3600, "reason": "saving it for tonight"},
        {
            "health": {
                "codex": {
                    "state": "broken",
                    "reason": "manual",
                    "detail": "saving it for tonight",
                    "until_at": 1767272400.0,
                    "count": 1,
                    "source": "person",
                }
            }
        },
    ),
)


METHODS = (HEALTH,)
