"""
Distinguish a machine without a network from a provider that cannot be reached.

Two provider hosts that fail within a moment while none answers say so; so does a machine without
a default route. Hosts on this machine say nothing about it.
"""

from msgspec import structs

from fallbackd.core.case import Case
from fallbackd.core.failures import Failure, make_failure
from fallbackd.core.health import Outage
from fallbackd.core.ids import BackendId, ScopeId
from fallbackd.core.policy import Backend
from fallbackd.core.reasons import Reason
from fallbackd.core.records import MadeMark
from fallbackd.core.scopes import failed_scope, find_backend

MOMENT_S = 10.0
_LOOPBACK_WORDS = ("127.0.0.1", "localhost", "[::1]", "::1:")


def own_trouble(
    case: Case,
    backend: Backend | None,
    failure: Failure,
    *,
    has_route: bool,
    marks: tuple[MadeMark, ...] = (),
) -> Failure | None:
    """
    Return a `network` failure as this machine's own; None: it is the provider's.

    Marks of the same moment are withdrawn: they were about the same trouble.

    Args:
        marks: Made on the way by the caller's own request; those of delegations are on record.
    """
    if failure.reason is not Reason.NETWORK or backend is None or backend.is_local:
        return None
    if any(word in failure.evidence for word in _LOOPBACK_WORDS):
        return None
    others = _marked_now(case, backend, failure)
    if has_route and (not others or _answers(case)):
        return None
    for scope, outage in others.items():
        record = case.health[scope]
        before = _before(case, scope, outage, marks)
        case.put_health(structs.replace(record, outage=before, trial=None))
    why = "this machine has no default route"
    if has_route:
        why = "several providers cannot be reached at once"
    return make_failure(
        Reason.LOCAL_NETWORK,
        now=case.now,
        confidence=failure.confidence,
        signature="fallbackd/local_network",
        evidence=f"{why}: {failure.evidence}",
    )


def _marked_now(case: Case, backend: Backend, failure: Failure) -> dict[ScopeId, Outage]:
    """Marks of this moment for `network`, of other hosts that are not on this machine."""
    own = failed_scope(failure, backend, backend.model, None)
    found: dict[ScopeId, Outage] = {}
    for scope, record in case.health.items():
        outage = record.outage
        if outage is None or outage.reason is not Reason.NETWORK or scope == own:
            continue
        if not _is_now(case, outage.last_failure_at) or outage.source in ("person", "import"):
            continue
        if not any(one.is_local or _is_same_host(one, backend) for one in _hosts_of(case, scope)):
            found[scope] = outage
    return found


def _hosts_of(case: Case, scope: ScopeId) -> list[Backend]:
    """The backends whose host a scope is about."""
    kind, _, name = scope.partition(":")
    if kind == "backend":
        one = find_backend(case.policy, BackendId(name))
        return [] if one is None else [one]
    return [one for one in case.policy.backends.values() if one.provider == name]


def _is_same_host(left: Backend, right: Backend) -> bool:
    """Two CLIs of one kind talk to the same host, unless it is known to be another."""
    if left.provider is not None or right.provider is not None:
        return left.provider == right.provider
    return left.kind == right.kind and left.kind not in ("generic-cli", "acp")


def _is_now(case: Case, at: float) -> bool:
    return 0 <= case.now - at <= MOMENT_S


def _answers(case: Case) -> bool:
    """Return whether some provider that is not on this machine has answered within the moment."""
    for used in case.meters.values():
        if used.answered_at is None or not _is_now(case, used.answered_at):
            continue
        backend = find_backend(case.policy, used.backend)
        if backend is not None and not backend.is_local:
            return True
    return False


def _before(case: Case, scope: ScopeId, outage: Outage, own: tuple[MadeMark, ...]) -> Outage | None:
    """
    Return the outage that a scope had before a mark, where the work that made it has not ended.
    """
    others = (made for one in case.snapshot.active.values() for made in one.turn.marks)
    for made in (*own, *others):
        if made.scope == scope and made.since_at == outage.since_at:
            return made.before
    return None
