"""What a caller that talks to a provider itself is told: candidate, credential, lease."""

from msgspec import Struct, structs

from fallbackd.core import health as machine
from fallbackd.core.chain import Choice, Request, Resolved
from fallbackd.core.draft import Draft
from fallbackd.core.events import Reported
from fallbackd.core.failures import Failure
from fallbackd.core.ids import AttemptId
from fallbackd.core.policy import Backend, Entry
from fallbackd.core.rotation import other_credential
from fallbackd.core.scopes import model_of
from fallbackd.core.state import Verdict

LEASE_S = 600.0
"""A caller that never reports loses its lease after this long."""


class Resolution(Struct, frozen=True, kw_only=True):
    """What would be used now; `backend` null: nobody."""

    backend: str | None
    model: str | None = None
    credential: str | None = None
    tier: str | None = None
    trigger: str | None = None
    candidates: tuple[Verdict, ...] = ()
    retry_at: float | None = None
    position: int | None = None
    """Place of the chosen one among the candidates, 0 for the requested one."""
    lease_id: str | None = None
    lease_generation: int | None = None
    lease_expires_at: float | None = None
    lease_owner: str | None = None


class ReportAnswer(Struct, frozen=True, kw_only=True):
    failure: Failure | None = None
    next: Resolution | None = None
    candidates: tuple[Verdict, ...] = ()
    """Verdicts of the candidates after a failure."""
    retry_at: float | None = None
    ignored: bool = False


def leased(
    draft: Draft,
    found: Resolution,
    choice: Choice,
    lease: AttemptId | None,
    *,
    owner: str | None,
) -> Resolution:
    """With the lease of the one trial, where one is needed and the caller makes the call."""
    if lease is None or not choice.trial_scopes:
        return found
    expires_at = draft.now + LEASE_S
    generation = 0
    for scope in choice.trial_scopes:
        record = draft.health[scope]
        held = machine.lease(record, lease, now=draft.now, expires_at=expires_at, owner=owner)
        draft.put_health(held)
        generation = held.generation
    return structs.replace(
        found,
        lease_id=lease,
        lease_generation=generation,
        lease_expires_at=expires_at,
        lease_owner=owner,
    )


def counted_credential(choice: Choice) -> str | None:
    """Its credential, where the strategy has to know how often it was chosen."""
    backend = choice.backend
    if len(backend.credentials) < 2 or backend.credential_strategy in ("fill_first", "random"):
        return None
    return choice.credential


def resolution_of(candidates: tuple[Entry, ...], resolved: Resolved) -> Resolution:
    choice = resolved.choice
    if choice is None:
        return Resolution(backend=None, candidates=resolved.verdicts, retry_at=resolved.retry_at)
    first = candidates[0]
    redirected = (first.backend, first.model) != (choice.entry.backend, choice.entry.model)
    return Resolution(
        backend=choice.backend.id,
        model=choice.model,
        credential=choice.credential,
        tier=choice.entry.tier,
        trigger="preemptive" if redirected else None,
        candidates=resolved.verdicts,
        retry_at=resolved.retry_at,
        position=next(
            (at for at, one in enumerate(resolved.verdicts) if one.verdict == "chosen"), None
        ),
    )


def on_same_backend(
    draft: Draft,
    event: Reported,
    backend: Backend,
    failure: Failure,
    candidates: tuple[Entry, ...],
    *,
    once_more: bool,
) -> Resolution | None:
    """Going on with the same backend: once more alike, or with another credential."""
    entry = Entry(backend=backend.id, model=event.model)
    position = next(
        (
            at
            for at, one in enumerate(candidates)
            if one.backend == backend.id and model_of(one, backend) == model_of(entry, backend)
        ),
        None,
    )
    if position is not None:
        entry = candidates[position]
    if once_more:
        resolved = draft.resolve((entry,), Request(credential=event.credential))
    elif failure.rotate_credential and event.credential is not None:
        resolved = other_credential(
            draft, backend, entry, without=frozenset({event.credential}), tokens=None
        )
    else:
        return None
    choice = resolved.choice
    if choice is None or resolved.verdicts[0].state != "healthy":
        return None
    draft.count_credential(backend.id, counted_credential(choice))
    found = structs.replace(resolution_of((entry,), resolved), position=position)
    return leased(draft, found, choice, event.next_lease, owner=event.owner)
