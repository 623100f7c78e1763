"""What is shared: facts about an account or a service, never about this machine."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from fallbackd.core.failures import Reason
from fallbackd.core.health.record import Outage
from fallbackd.core.health.scopes import scopes_of
from fallbackd.core.ids import ScopeId
from fallbackd.core.policy import Policy

SHARED_REASONS = frozenset(
    {
        Reason.RATE_LIMIT,
        Reason.USAGE_LIMIT,
        Reason.BILLING,
        Reason.OVERLOADED,
        Reason.SERVER_ERROR,
    }
)
"""A network that fails or a program that crashes may be this machine's own trouble."""


def is_shared_reason(reason: Reason, detail: str | None) -> bool:
    return reason in SHARED_REASONS or (reason is Reason.AUTH and detail == "revoked")


def is_shared_fact(outage: Outage) -> bool:
    """Whether other machines may know of an outage that was found here."""
    is_found = outage.source in ("policy", "provider")
    return is_found and is_shared_reason(outage.reason, outage.detail)


class SharedNames:
    """
    The names under which machines know the scopes of this one.

    Args:
        remote: HTTP backends on another host than this one: their models are the same everywhere.
        private: Providers on this host.
        identities: `credential:OWNER/LABEL` to `credential:OWNER/DIGEST`. A label is no identity:
            credentials that are not here are not shared.
    """

    def __init__(
        self,
        *,
        remote: frozenset[str] = frozenset(),
        private: frozenset[str] = frozenset(),
        identities: Mapping[ScopeId, ScopeId] = MappingProxyType({}),
    ) -> None:
        self._remote = remote
        self._private = private
        self._shared = dict(identities)
        self._local = {shared: local for local, shared in identities.items()}

    def mirrored(self, scope: ScopeId) -> ScopeId | None:
        """The name of a scope about which machines tell each other; None: it is ours alone."""
        kind, _, name = scope.partition(":")
        is_common = (
            kind in ("quota", "credential")
            or (kind == "provider" and name not in self._private)
            or (kind == "model" and name.partition("/")[0] in self._remote)
        )
        return self.named(scope) if is_common else None

    def named(self, scope: ScopeId) -> ScopeId | None:
        """The name of a scope about which a person may say something for all machines."""
        if not scope.startswith("credential:"):
            return scope
        return _renamed(scope, self._shared)

    def local(self, scope: ScopeId) -> ScopeId | None:
        """The scope of this machine that a shared one is; None: none that it could be."""
        if not scope.startswith("credential:"):
            return scope
        return _renamed(scope, self._local)

    def known(self, policy: Policy, health: Iterable[ScopeId]) -> tuple[ScopeId, ...]:
        """Every scope of this configuration that has a name, under its local one."""
        found: dict[ScopeId, None] = {}
        for backend in policy.backends.values():
            for label in backend.credentials or (None,):
                for scope in scopes_of(backend, backend.model, label):
                    found[scope] = None
        found.update(dict.fromkeys(health))
        return tuple(scope for scope in found if self.named(scope) is not None)


def _renamed(scope: ScopeId, names: Mapping[ScopeId, ScopeId]) -> ScopeId | None:
    """A credential, or a credential with a model."""
    plain, plus, model = scope.partition("+model:")
    found = names.get(ScopeId(plain))
    return None if found is None else ScopeId(f"{found}{plus}{model}")
