"""Health of backends and scopes."""

from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from fallbackd_client.wire.aliases import one_of
from fallbackd_client.wire.bounds import DurationS, Name, Note
from fallbackd_client.wire.envelope import Method
from fallbackd_client.wire.shapes import HealthEntry

Action = Literal["list", "get", "mark", "clear", "pause", "resume"]


class HealthParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    action: Action = "list"
    target: Name | None = None
    """A backend or a scope."""
    platform: Name | None = None
    """The same as `target`."""
    reason: Note | None = None
    ttl_s: DurationS | None = None
    """0 clears."""
    ttl: DurationS | None = None
    ttl_seconds: DurationS | None = None
    note: Note | None = None
    only: Literal["unhealthy"] | None = None

    def normalised(self) -> "HealthParams":
        """
        The same under today's names.

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
    cleared: tuple[str, ...] | UnsetType = UNSET


HEALTH: Method[HealthParams, HealthResult] = Method(
    "health",
    params=HealthParams,
    result=HealthResult,
    read_only=False,  # list and get change nothing, the others do
    summary="Read and set the health of backends and scopes.",
)


METHODS = (HEALTH,)
