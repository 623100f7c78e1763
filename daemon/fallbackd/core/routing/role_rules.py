"""What a role and a request say about who may serve a delegation, fixed when it is admitted."""

from msgspec import Struct

from fallbackd.core.health.scopes import find_backend
from fallbackd.core.policy import Entry, OnOutage, Policy, Role
from fallbackd.core.records import Session
from fallbackd.core.routing.families import AUTHOR, UNKNOWN
from fallbackd.core.routing.tiers import Limits


class RoleRules(Struct, frozen=True, kw_only=True):
    role: str | None = None
    creative: bool = False
    on_outage: OnOutage = "fallback"
    allow_metered: bool = True
    differs_from: tuple[str, ...] = ()
    question_timeout_s: float | None = None

    @property
    def limits(self) -> Limits:
        return Limits(differs_from=frozenset(self.differs_from), allow_metered=self.allow_metered)


def rules_for(
    policy: Policy,
    role: Role | None,
    session: Session | None,
    candidates: tuple[Entry, ...],
    *,
    allow_metered: bool,
    differs_from: tuple[str, ...] | None,
) -> RoleRules:
    """
    Args:
        allow_metered: The caller agrees to what bills by use.
        differs_from: Families that the caller names; None: it names nobody.
    """
    first = find_backend(policy, candidates[0].backend) if candidates else None
    pays_already = first is not None and first.cost == "metered"
    families = dict.fromkeys(differs_from or ())
    for word in () if role is None else role.must_differ_from:
        if word != AUTHOR:
            families[word] = None
        elif differs_from is None:
            families[(session and session.author_family) or UNKNOWN] = None
    return RoleRules(
        role=None if role is None else role.name,
        creative=role is not None and role.kind == "creative",
        on_outage="fallback" if role is None else role.outage_policy,
        allow_metered=allow_metered or pays_already or (role is not None and role.allow_metered),
        differs_from=tuple(families),
        question_timeout_s=None if role is None else role.question_timeout_s,
    )
