"""Model families of the work to be reviewed, from the names that a caller gives."""

from collections.abc import Sequence

from fallbackd.core.authority import PERSON, Authority
from fallbackd.core.health.scopes import find_backend
from fallbackd.core.ids import DelegationId
from fallbackd.core.policy import Policy
from fallbackd.core.records import Delegation
from fallbackd.core.routing.families import UNKNOWN, family_of, family_of_model, known_families
from fallbackd.engine.requests import Invalid
from fallbackd.ports.store import Store

MAX_NAMES = 100


async def families(
    store: Store, policy: Policy, names: Sequence[str], authority: Authority = PERSON
) -> tuple[str, ...] | None:
    """
    The families that a caller means; None where it names none.

    Raises:
        Invalid: A name is neither a family nor a delegation that this caller has begun, or there
            are too many.
    """
    if not names:
        return None
    if len(names) > MAX_NAMES:
        raise Invalid(f"differs_from: {len(names)} names are given; give at most {MAX_NAMES}")
    known = known_families(policy)
    found: dict[str, None] = {}
    for name in names:
        if name in known:
            found[name] = None
            continue
        delegation = await store.delegation(DelegationId(name))
        if delegation is None or not authority.has_begun(delegation):
            raise Invalid(
                f"differs_from: {name!r} is neither a delegation nor a family of models; "
                f"known families are {', '.join(sorted(known))}"
            )
        found[author_of(delegation, policy)] = None
    return tuple(found)


def author_of(delegation: Delegation, policy: Policy) -> str:
    """The family of the backend that answered last there; `?` where it is unknown."""
    hint = delegation.handed_back
    if hint is not None:
        return (hint.model and family_of_model(hint.model)) or UNKNOWN
    served = [one for one in delegation.attempts if one.state == "succeeded"]
    if not served:
        return UNKNOWN
    backend = find_backend(policy, served[-1].backend)
    return (backend and family_of(backend, served[-1].model)) or UNKNOWN
