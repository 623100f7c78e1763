"""
Records as they are shown: plain dicts with the field names of the wire, computed at an instant.

A backend's entry is its own candidate's: the worst of its scope, its configured model, the
credential that would be used, its quota group and its provider. A mark on another model is listed
among the scopes and does not make the backend itself unhealthy.
"""

from typing import Any, Literal

from fallbackd.core import meter, quota
from fallbackd.core.health import SEVERITY, Health, View, count_at, severity, view
from fallbackd.core.ids import BackendId, ScopeId
from fallbackd.core.policy import Backend, Policy
from fallbackd.core.reasons import Reason
from fallbackd.core.records import Delegation, Snapshot
from fallbackd.core.routing.candidates import stand_ins
from fallbackd.core.scopes import credential_scope, find_backend, own_health, touched, worst

Shown = dict[str, Any]  # any JSON


def health_entries(
    snapshot: Snapshot, policy: Policy, *, now: float, only: Literal["unhealthy"] | None = None
) -> dict[str, Shown]:
    """
    Every configured backend in the order of its declaration, then those that are on record only.

    Args:
        only: "unhealthy" leaves out what may be used freely or by a trial (state `healthy`).
    """
    recorded = (
        BackendId(scope.removeprefix("backend:"))
        for scope in snapshot.health
        if scope.startswith("backend:")
    )
    found: dict[str, Shown] = {}
    for name in dict.fromkeys((*policy.backends, *recorded)):
        entry = health_entry(name, snapshot, policy, now=now)
        is_bare = name not in policy.backends and entry["state"] == "healthy"
        if is_bare or (only is not None and entry["state"] == "healthy"):
            continue
        found[name] = entry
    return found


def health_entry(backend_id: BackendId, snapshot: Snapshot, policy: Policy, *, now: float) -> Shown:
    """The health of one backend. One that no configuration names is what its own record says."""
    backend = find_backend(policy, backend_id) or Backend(id=backend_id, kind="unknown")
    swaps = stand_ins(policy, backend)
    seen, record = own_health(backend, snapshot.health, now=now, stand_ins=swaps)
    scopes = [
        _scope(snapshot.health[scope], now=now)
        for scope in touched(backend, snapshot.health)
        if scope in snapshot.health
    ]
    credentials = [_credential(backend, label, snapshot, now=now) for label in backend.credentials]
    limits = quota.shown(backend, policy, snapshot.meters, now=now)
    budget_until_at = meter.over_cap_until(
        snapshot.meters.get(backend.id), backend.hourly_cap, now=now, unit=backend.cap_unit
    )
    if budget_until_at is not None and severity(seen) < SEVERITY["rate_limited"]:
        return {
            "credentials": credentials,
            **_blank("rate_limited"),
            "reason": Reason.LOCAL_BUDGET.value,
            "detail": f"its {backend.hourly_cap} {backend.cap_unit} an hour are used up",
            "until_at": budget_until_at,
            "source": "policy",
            "seconds_remaining": budget_until_at - now,
            "scopes": scopes,
            "limits": limits,
        }
    return {
        **_shown(seen, record, now=now),
        "scopes": scopes,
        "credentials": credentials,
        "limits": limits,
    }


def _credential(backend: Backend, label: str, snapshot: Snapshot, *, now: float) -> Shown:
    """One of a backend's credentials by its label: its own trouble, with the backend's model."""
    own = {credential_scope(backend, label)}
    if backend.model is not None:
        own.add(ScopeId(f"{credential_scope(backend, label)}+model:{backend.model}"))
    seen, record = worst(snapshot.health, sorted(own), now=now)
    shown = _shown(seen, record, now=now)
    for name in ("marked_broken_at", "ttl_seconds"):
        del shown[name]
    used = snapshot.meters.get(backend.id)
    uses = 0 if used is None else dict(used.credential_uses).get(label, 0)
    return {"label": label, **shown, "uses": uses}


def scope_entry(scope: ScopeId, snapshot: Snapshot, *, now: float) -> Shown:
    """The health of one scope by itself, in the shape of a backend's."""
    record = snapshot.health.get(scope)
    scopes = [] if record is None else [_scope(record, now=now)]
    return {**_shown(view(record, now=now), record, now=now), "scopes": scopes}


def _blank(state: str) -> Shown:
    return {
        "state": state,
        "unproven": False,
        "reason": None,
        "detail": None,
        "since_at": None,
        "until_at": None,
        "count": 0,
        "source": None,
        "seconds_remaining": None,
        "marked_broken_at": None,
        "ttl_seconds": None,
        "note": None,
        "age_s": None,
        "loaded_at": None,
        "stated_reset_at": None,
    }


def _shown(seen: View, record: Health | None, *, now: float) -> Shown:
    blank = _blank(seen.state)
    if record is None:
        return blank
    outage, pause = record.outage, record.pause
    if seen.state == "paused" and pause is not None:
        return {
            **blank,
            "reason": "paused",
            "detail": pause.note,
            "note": pause.note,
            "since_at": pause.since_at,
            "marked_broken_at": pause.since_at,
            "source": "person",
            "age_s": max(0.0, now - pause.since_at),
            "loaded_at": record.loaded_at,
        }
    if outage is None:
        return blank
    if seen.state == "healthy":
        return {
            **blank,
            "unproven": seen.unproven,
            "reason": outage.reason.value,
            "detail": outage.detail,
            "count": count_at(record, now=now),
        }
    until_at = seen.until_at
    return {
        **blank,
        "unproven": seen.unproven,
        "reason": outage.reason.value,
        "detail": outage.detail,
        "since_at": outage.since_at,
        "until_at": until_at,
        "count": count_at(record, now=now),
        "source": outage.source,
        "seconds_remaining": None if until_at is None else max(0.0, until_at - now),
        "marked_broken_at": outage.since_at,
        "ttl_seconds": None if until_at is None else until_at - outage.since_at,
        "note": outage.detail if outage.source == "person" else None,
        "age_s": max(0.0, now - outage.since_at),
        "loaded_at": record.loaded_at,
        "stated_reset_at": outage.stated_reset_at,
        "seen_by": outage.seen_by,
    }


def _scope(record: Health, *, now: float) -> Shown:
    """One scope of an entry. A trial that is under way is named by its attempt."""
    shown = _shown(view(record, now=now), record, now=now)
    for name in ("marked_broken_at", "ttl_seconds"):
        del shown[name]
    trial = record.trial
    return {
        "scope": record.scope,
        **shown,
        "trial": None if trial is None else trial.attempt,
        "trial_owner": None if trial is None else trial.owner,
        "trial_generation": None if trial is None else trial.generation,
        "trial_expires_at": None if trial is None else trial.expires_at,
    }


# --- delegations ------------------------------------------------------------------------------


def fallback_from(delegation: Delegation) -> BackendId | None:
    """The backend originally asked for; None without a move away from it."""
    hops = delegation.hops
    last = hops[-1] if hops else None
    is_back = last is None or (
        last.trigger == "recovery" and last.to_backend == delegation.requested
    )
    return None if is_back else delegation.requested


_HOW = {"preemptive": "was skipped", "recovery": "was left for a better one", "manual": "was left"}


def fallback_reason(delegation: Delegation) -> str | None:
    """A sentence that begins with the reason of the first hop; None without a move away."""
    if fallback_from(delegation) is None:
        return None
    first = delegation.hops[0]
    how = _HOW.get(first.trigger, "failed")
    path = ", then ".join(hop.to_backend for hop in delegation.hops)
    return f"{first.reason}: {first.from_backend} {how}; continuing with {path}."


def last_event(delegation: Delegation) -> tuple[str, BackendId | None, Shown]:
    """
    Kind, backend and fields of the event after which nothing happens until a caller or a person
    acts: the end of a delegation, or its open question.
    """
    if (asked := delegation.question) is not None:
        return (
            "question.opened",
            None,
            {
                "question": asked.question,
                "question_kind": asked.kind,
                "role": asked.role,
                "text": asked.text,
                "choices": [each.choice for each in asked.options],
                "deadline_at": asked.deadline_at,
            },
        )
    failure = delegation.failure
    return (
        "delegation.ended",
        delegation.served_by or delegation.active,
        {
            "state": delegation.state,
            "served_by": delegation.served_by,
            "fallback_from": fallback_from(delegation),
            "reason": None if failure is None else failure.reason.value,
            "detail": None if failure is None else failure.detail,
            "retry_at": delegation.retry_at,
        },
    )
