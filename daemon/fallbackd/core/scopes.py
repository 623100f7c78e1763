"""Scopes that a candidate touches, and the scope that a failure is about."""

from collections.abc import Callable, Iterable, Mapping

from fallbackd.core.failures import Failure
from fallbackd.core.health import HEALTHY, Health, View, severity, view
from fallbackd.core.ids import BackendId, ScopeId
from fallbackd.core.policy import OPENCODE, Backend, Entry, Policy, implicit_backend, once
from fallbackd.core.reasons import Marked, Reason


def backend_scope(backend: str) -> ScopeId:
    return ScopeId(f"backend:{backend}")


def owner_of(backend: Backend) -> str:
    """Credentials and hosts belong to the provider where it is known, else to the backend."""
    return backend.provider or backend.id


def credential_scope(backend: Backend, label: str) -> ScopeId:
    return ScopeId(f"credential:{owner_of(backend)}/{label}")


def model_of(entry: Entry, backend: Backend) -> str | None:
    return entry.model or backend.model


DEFAULT_MODEL = "default"
"""In the scope of a model whose name only the backend knows."""


def model_scope(backend: Backend, model: str | None) -> ScopeId:
    return ScopeId(f"model:{backend.id}/{DEFAULT_MODEL if model is None else model}")


def scopes_of(backend: Backend, model: str | None, credential: str | None) -> tuple[ScopeId, ...]:
    """Every scope whose outage takes this candidate out, the backend's own first."""
    found = [backend_scope(backend.id), model_scope(backend, model)]
    if credential is not None:
        one = credential_scope(backend, credential)
        found.append(one)
        if model is not None:
            found.append(ScopeId(f"{one}+model:{model}"))
    if backend.quota is not None:
        found.append(ScopeId(f"quota:{backend.quota}"))
    if backend.provider is not None:
        found.append(ScopeId(f"provider:{backend.provider}"))
    return tuple(found)


def failed_scope(
    failure: Failure, backend: Backend, model: str | None, credential: str | None
) -> ScopeId:
    """The scope that a failure marks: what it names, else by the row of its reason."""
    if failure.scope is not None and ":" in failure.scope:
        return ScopeId(failure.scope)
    if (named := _NAMED.get(failure.scope or "")) is not None:
        return named(backend, model, credential)
    marked = failure.reason.row.marked
    if marked == "credential_of_model" and not failure.rotate_credential:
        marked = "model"  # an aggregator's upstream is throttled: no key would do better
    elif marked == "backend" and failure.rotate_credential:
        marked = "credential"  # the failure itself may say that a key is to blame
    return _MARKED[marked](backend, model, credential)


def _of_backend(backend: Backend, model: str | None, credential: str | None) -> ScopeId:
    return backend_scope(backend.id)


def _of_model(backend: Backend, model: str | None, credential: str | None) -> ScopeId:
    return backend_scope(backend.id) if model is None else ScopeId(f"model:{backend.id}/{model}")


def missing_model_scope(backend: Backend, model: str | None) -> ScopeId:
    """Without a name it is the backend itself, unless another model stands in for it."""
    if model is None and backend.fallback_model is None:
        return backend_scope(backend.id)
    return model_scope(backend, model)


def _of_named_model(backend: Backend, model: str | None, credential: str | None) -> ScopeId:
    return missing_model_scope(backend, model)


def _of_limited_model(backend: Backend, model: str | None, credential: str | None) -> ScopeId:
    if model is None and backend.quota is not None:
        # Which one it was is not known: the other programs of the account use it by default, too.
        return _of_plan(backend, model, credential)
    if credential is None or model is None:
        return model_scope(backend, model)
    return _of_credential_of_model(backend, model, credential)


def _of_credential(backend: Backend, model: str | None, credential: str | None) -> ScopeId:
    return (
        backend_scope(backend.id) if credential is None else credential_scope(backend, credential)
    )


def _of_credential_of_model(backend: Backend, model: str | None, credential: str | None) -> ScopeId:
    found = _of_credential(backend, model, credential)
    return found if credential is None or model is None else ScopeId(f"{found}+model:{model}")


def plan_scope(backend: Backend) -> ScopeId:
    """The plan of a login that is used without a key of ours."""
    return _of_plan(backend, None, None)


def _of_plan(backend: Backend, model: str | None, credential: str | None) -> ScopeId:
    if backend.quota is None:
        return _of_credential(backend, model, credential)
    return ScopeId(f"quota:{backend.quota}")


def _of_provider(backend: Backend, model: str | None, credential: str | None) -> ScopeId:
    if backend.provider is None:
        return backend_scope(backend.id)
    return ScopeId(f"provider:{backend.provider}")


_MARKED: Mapping[Marked, Callable[[Backend, str | None, str | None], ScopeId]] = {
    "backend": _of_backend,
    "model": _of_model,
    "named_model": _of_named_model,
    "credential": _of_credential,
    "credential_of_model": _of_credential_of_model,
    "plan": _of_plan,
    "provider": _of_provider,
}

_NAMED: Mapping[str, Callable[[Backend, str | None, str | None], ScopeId]] = {
    "model": _of_limited_model,
    "credential": _of_credential,
}


def worst(
    health: Mapping[ScopeId, Health], scopes: Iterable[ScopeId], *, now: float
) -> tuple[View, Health | None]:
    """The worst of several scopes; of equally bad ones the one that lasts longest."""
    found: tuple[View, Health | None] = (HEALTHY, None)
    for scope in scopes:
        record = health.get(scope)
        if record is None or (record.outage is None and record.pause is None):
            continue
        seen = view(record, now=now)
        if _rank(seen) > _rank(found[0]):
            found = (seen, record)
    return found


def _rank(seen: View) -> tuple[int, float]:
    until_at = seen.until_at
    return (
        severity(seen),
        float("inf") if until_at is None and seen.state == "broken" else until_at or 0.0,
    )


def touched(backend: Backend, health: Mapping[ScopeId, Health]) -> tuple[ScopeId, ...]:
    """Every scope on record that belongs to a backend, of any of its models and credentials."""
    own = [
        backend_scope(backend.id),
        *(ScopeId(f"quota:{backend.quota}") for _ in (1,) if backend.quota is not None),
        *(ScopeId(f"provider:{backend.provider}") for _ in (1,) if backend.provider is not None),
    ]
    return tuple(dict.fromkeys([*own, *(one for one in health if _is_owned(backend, one))]))


def _is_owned(backend: Backend, scope: ScopeId) -> bool:
    """Return whether a scope is about a model or a credential of this backend."""
    if scope.startswith(f"model:{backend.id}/"):
        return True
    plain = scope.partition("+model:")[0]
    return any(plain == credential_scope(backend, label) for label in backend.credentials)


def is_scope_of(backend: Backend, scope: ScopeId) -> bool:
    """Return whether a backend touches a scope, on record or not."""
    return _is_owned(backend, scope) or scope in touched(backend, {})


def is_missing_model(record: Health | None) -> bool:
    """Return whether the outage of a scope says no more than that some model is not there."""
    outage = None if record is None else record.outage
    return outage is not None and outage.reason is Reason.MODEL_NOT_FOUND


def own_health(
    backend: Backend,
    health: Mapping[ScopeId, Health],
    *,
    now: float,
    stand_ins: tuple[str, ...] = (),
) -> tuple[View, Health | None]:
    """
    The worst of what the backend's own candidate touches. Of several credentials the best one
    counts: it is the one that is used. A mark on another model makes no difference.

    Args:
        stand_ins: Models that are used where its own one is missing.
    """
    own = _best_credential(backend, backend.model, health, now=now)
    if not stand_ins or own[0].state != "broken" or not is_missing_model(own[1]):
        return own
    others = {scope: one for scope, one in health.items() if not is_missing_model(one)}
    found = (
        _best_credential(backend, model, others, now=now)
        for model in stand_ins
        if not is_missing_model(health.get(ScopeId(f"model:{backend.id}/{model}")))
    )
    return min(found, key=lambda one: severity(one[0]), default=own)


def _best_credential(
    backend: Backend, model: str | None, health: Mapping[ScopeId, Health], *, now: float
) -> tuple[View, Health | None]:
    labels: tuple[str | None, ...] = backend.credentials or (None,)
    return min(
        (worst(health, scopes_of(backend, model, label), now=now) for label in labels),
        key=lambda one: severity(one[0]),
    )


def context_of(policy: Policy, backend: Backend, model: str | None) -> int | None:
    """
    Return the size of the context in tokens: as configured, else as an opencode server says of its
    models.
    """
    if backend.context_tokens is not None or model is None:
        return backend.context_tokens
    return policy.contexts.get(model)


def find_backend(policy: Policy, backend: BackendId) -> Backend | None:
    """
    A configured backend, or the one that a `provider/model` id stands for where some chain or
    role names it, or a known opencode server offers it.
    """
    found = policy.backends.get(backend)
    return found if found is not None or "/" not in backend else _implicit(policy, backend)


@once
def _implicit(policy: Policy, backend: BackendId) -> Backend | None:
    if backend not in policy.served and backend not in named_ids(policy):
        return None
    return implicit_backend(backend, like=policy.backends.get(OPENCODE), quotas=policy.quotas)


def named_ids(policy: Policy) -> set[str]:
    """Return the ids that chains and roles speak of."""
    found: set[str] = {entry.backend for chain in policy.chains.values() for entry in chain}
    found.update(entry.backend for role in policy.roles.values() for entry in role.chain)
    for project in policy.projects.values():
        found.update(entry.backend for role in project.roles.values() for entry in role.chain)
    found.update(policy.chains)
    return found


def backend_of(scope: ScopeId, policy: Policy) -> BackendId | None:
    """The backend that a scope is about; None: it is about more than one, or about a key."""
    kind, _, name = scope.partition(":")
    if kind == "backend":
        return BackendId(name)
    if kind != "model":
        return None
    found = [one for one in policy.backends if name.startswith(f"{one}/")]
    return max(found, key=len, default=BackendId(name.partition("/")[0]))
