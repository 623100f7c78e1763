"""The configuration in force, as a file would say it: for `config.get` and `config show`."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from fallbackd.config import profiles
from fallbackd.config.load import Loaded
from fallbackd.config.read_chains import Signature
from fallbackd.config.schema import BackendTable, Notify, ReasonTable
from fallbackd.core.policy import Backend, Entry, Policy, Role
from fallbackd.core.protocol import CredentialRef
from fallbackd_conversations.redact import redact_command

HIDDEN = "(set)"
"""Stands for values of variables and headers: they may be secrets."""

_BACKEND_FIELDS = tuple(one.name for one in msgspec.structs.fields(BackendTable))
_REASON_FIELDS = tuple(one.name for one in msgspec.structs.fields(ReasonTable))


def as_dict(loaded: Loaded) -> dict[str, Any]:  # a JSON document
    """Every value in force, defaults included. Secrets by reference only; no nulls."""
    policy = loaded.policy
    shown: dict[str, Any] = {
        "import": list(loaded.imports),
        "export_voice_health": loaded.export_voice,
        "defaults": _fields(policy.defaults),
        "policy": {
            reason.value: _fields(values, _REASON_FIELDS)
            for reason, values in policy.reasons.items()
        },
        "backends": {
            backend.id: _backend(backend, loaded)
            for backend in policy.backends.values()
            if _is_shown(backend)
        },
        "chains": _chains(policy),
        "prices": {model: _fields(price) for model, price in policy.prices.items()},
        "roles": {name: _role(role) for name, role in policy.roles.items()},
        "authority": {name: {"may": list(may)} for name, may in policy.may.items()},
        "opencode": _fields_if_set(loaded.opencode),
        "share": {} if loaded.share is None else _fields(loaded.share),
        "notify": _notify(loaded.notify),
        "handoff": _fields_if_set(policy.handoff),
        "interactive": _fields_if_set(loaded.interactive),
        "quota": _fields_if_set(loaded.quota),
        "gateway": _fields_if_set(loaded.gateway),
        "signatures": [_signature(one) for one in loaded.signatures],
    }
    written = _without_nulls(shown)
    assert isinstance(written, dict)
    return {key: value for key, value in written.items() if value not in ([], {})}


def _fields(value: Struct, names: Sequence[str] | None = None) -> dict[str, Any]:
    return {
        name: msgspec.to_builtins(getattr(value, name))
        for name in (names or value.__struct_fields__)
    }


def _fields_if_set(value: Struct) -> dict[str, Any]:
    """Nothing of a table in which every value is the default."""
    return {} if value == type(value)() else _fields(value)


def _signature(one: Signature) -> dict[str, Any]:
    return {
        "id": one.rule.id,
        "kind": one.kind,
        "stream": one.rule.streams[0] if len(one.rule.streams) <= 2 else None,
        "pattern": one.rule.pattern,
        "reason": one.rule.reason.value,
        "detail": one.rule.detail,
    }


def _is_shown(backend: Backend) -> bool:
    """Leave out implicit backends, and profiles that would need a table and have none."""
    profile = profiles.BACKENDS.get(backend.id)
    is_left_out = profile is not None and profile.lacks is not None and backend == profile
    return not (backend.implicit or is_left_out)


def _notify(notify: Notify) -> dict[str, Any]:
    """The address may contain a token, so it is not shown."""
    if notify == Notify():
        return {}
    hidden = None if notify.url is None else HIDDEN
    return {
        **_fields(notify),
        "url": hidden,
        "command": redact_command(notify.command) if notify.command else None,
    }


def _backend(backend: Backend, loaded: Loaded) -> dict[str, Any]:
    options = loaded.options[backend.id]
    shown: dict[str, Any] = {}
    for name in _BACKEND_FIELDS:
        source = backend if name in backend.__struct_fields__ else options
        value = getattr(source, name, None)
        if value not in (None, "", (), {}) and name != "credentials":
            shown[name] = msgspec.to_builtins(value)
    if backend.lacks is not None:
        shown["enabled"] = False  # without the address that could not be read, it would be another
    if "command" in shown:
        shown["command"] = redact_command(shown["command"])
    for name in ("env", "headers"):
        hidden = dict.fromkeys(shown.pop(name, {}), HIDDEN)
        if hidden:
            shown[name] = hidden
    if options.credentials:
        shown["credentials"] = [_credential(one) for one in options.credentials]
    return shown


def _credential(one: CredentialRef) -> dict[str, Any]:
    """The place of a secret, as the file says it."""
    place: Any = redact_command(one.argv) if one.source == "command" else one.name
    shown = {"label": one.label, one.source: place, "field": one.field}
    return {**shown, "into": one.into if one.into != one.name else None}


def _chains(policy: Policy) -> dict[str, Any]:
    return {
        name: _chain(chain)
        for name, chain in policy.chains.items()
        if name != profiles.ANY or not policy.any_is_built_in
    }


def _chain(chain: Sequence[Entry]) -> list[Any]:
    return [
        str(entry.backend) if written == {"backend": entry.backend} else written
        for entry in chain
        for written in [msgspec.to_builtins(entry)]
    ]


def _role(role: Role) -> dict[str, Any]:
    return {
        "kind": role.kind,
        "chain": _chain(role.chain) if role.chain else None,
        "at_percent": role.at_percent,
        "fallback_on": None if role.fallback_on is None else sorted(role.fallback_on),
        "enabled": role.enabled,
        "max_fallback_depth": role.max_fallback_depth,
        "idle_s": role.idle_s,
        "on_outage": role.on_outage,
        "must_differ_from": list(role.must_differ_from) or None,
        "allow_metered": role.allow_metered,
        "shell": role.shell,
        "fallback_model": role.fallback_model,
        "replay": None if role.replay == "ask" else role.replay,
        "question_timeout_s": role.question_timeout_s,
        "return_to_better": _return(role),
    }


def _return(role: Role) -> dict[str, Any]:
    if role.return_policy != "successes":
        return {"policy": role.return_policy}
    return {"policy": role.return_policy, "n": role.return_n, "step": role.return_step}


def _without_nulls(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_nulls(one) for key, one in value.items() if one is not None}
    if isinstance(value, list | tuple):
        return [_without_nulls(one) for one in value]
    return value
