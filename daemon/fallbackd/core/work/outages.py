"""
Services that are out, and roles that must not go elsewhere in silence because of it.

A throttle passes by itself and is never such an outage; a missing model has its own stand-in.
What needs a repair is out at once, anything else after three failures without a success. Its
one trial comes when the window is over, and five minutes after the last failure at the earliest.
"""

from collections.abc import Callable, Iterator

from msgspec import Struct, structs

from fallbackd.core.case import CaseView
from fallbackd.core.health import Health, count_at, is_paused
from fallbackd.core.policy import Entry
from fallbackd.core.reasons import Reason
from fallbackd.core.records import Turn, Verdict
from fallbackd.core.routing.candidates import family_of
from fallbackd.core.routing.looking import Request
from fallbackd.core.routing.resolve import Resolved, without_choice
from fallbackd.core.scopes import find_backend, model_of, scopes_of

OUT_AFTER = 3
"""Failures in a row."""
TRIAL_AFTER_S = 300.0
_PASS_BY_THEMSELVES = frozenset(one.value for one in Reason if not one.row.is_outage)
_LABELLED = frozenset({"model", "api", "in_session"})
"""Tiers that stand in for the others: where one of them helps, it need not be asked about."""
_NO_MATTER = frozenset({"disabled", "paused", "context", "must_differ", "consent", "local_network"})
"""Verdicts that say nothing about the service."""


class Out(Struct, frozen=True, kw_only=True):
    """The reason why a role does not go on by itself."""

    verdict: Verdict
    """Of the candidate that is out; of the one that no other family may stand in for."""
    text: str
    is_first: bool = False
    in_trial: bool = False
    trial_at: float | None = None
    """Time when one trial is made there."""


def guard(
    case: CaseView,
    turn: Turn,
    candidates: tuple[Entry, ...],
    request: Request,
    resolved: Resolved,
) -> tuple[Resolved, Out | None]:
    """
    Apply the role's `on_outage` rule to a resolution.

    Returns:
        The resolution, its choice perhaps the trial of a service that was out; and with a service
        that is out, no choice and what is out.
    """
    if turn.on_outage == "fallback":
        return resolved, None
    for number, verdict in _in_question(resolved):
        is_out, trial_at = service_of(case, verdict)
        if not is_out:
            continue
        trial = None
        if trial_at is not None and case.now >= trial_at:
            trial = _trial_of(case, candidates, request, resolved, number=number)
        if trial is None:
            out = _out_of(verdict, is_first=number == 0, trial_at=trial_at)
            return without_choice(resolved, _why(out, turn)), out
        resolved = trial
        break
    if resolved.choice is None or not turn.creative or _writes_alike(case, candidates, resolved):
        return resolved, None
    first = resolved.verdicts[0]
    found = Out(
        verdict=first,
        text=f"{first.backend} cannot be used now ({first.reason or first.verdict}), and no "
        f"other backend may write in the place of {turn.role or 'a creative role'}",
    )
    return without_choice(resolved, _why(found, turn)), found


def _in_question(resolved: Resolved) -> Iterator[tuple[int, Verdict]]:
    """The candidates up to the chosen one whose service may be out, with their numbers."""
    has_choice = resolved.choice is not None
    for number, verdict in enumerate(resolved.verdicts):
        is_chosen = verdict.verdict == "chosen"
        is_passed = has_choice and not is_chosen and verdict.tier in _LABELLED
        if not is_passed and verdict.verdict not in _NO_MATTER:
            yield number, verdict
        if is_chosen:
            return


def _why(out: Out, turn: Turn) -> str:
    return f'not used: {out.text} (on_outage = "{turn.on_outage}")'


def _trial_of(
    case: CaseView,
    candidates: tuple[Entry, ...],
    request: Request,
    resolved: Resolved,
    *,
    number: int,
) -> Resolved | None:
    """The resolution with the candidate of that number chosen, where it can be used at all."""
    entry = _entry_of(case, candidates, resolved.verdicts[number])
    alone = None if entry is None else case.resolve((entry,), request)
    if alone is None or alone.choice is None:
        return None
    others = tuple(
        structs.replace(one, verdict="healthy") if one.verdict == "chosen" else one
        for one in resolved.verdicts
    )
    verdicts = (*others[:number], alone.verdicts[0], *others[number + 1 :])
    return structs.replace(resolved, choice=alone.choice, verdicts=verdicts)


def _out_of(verdict: Verdict, *, is_first: bool, trial_at: float | None) -> Out:
    return Out(
        verdict=verdict,
        text=f"{verdict.backend} is out ({verdict.reason or 'it keeps failing'})",
        is_first=is_first,
        in_trial=verdict.verdict == "in_trial",
        trial_at=trial_at,
    )


def service_of(case: CaseView, verdict: Verdict) -> tuple[bool, float | None]:
    """Return whether the service of a candidate is out, and when one trial is made there if so."""
    backend = find_backend(case.policy, verdict.backend)
    if backend is None:
        return False, None
    out = [
        record
        for scope in scopes_of(backend, verdict.model, None)
        if (record := case.health.get(scope)) is not None and is_out(record, now=case.now)
    ]
    if out:
        due = [_trial_at(one) for one in out]
        known = [at for at in due if at is not None]
        return True, max(known) if len(known) == len(due) else None
    if verdict.state == "broken" and verdict.reason not in _PASS_BY_THEMSELVES:
        return True, verdict.until_at  # a credential of it
    return False, None


def is_out(record: Health, *, now: float) -> bool:
    outage = record.outage
    if outage is None or is_paused(record, now=now) or not outage.reason.row.is_outage:
        return False
    return outage.state == "broken" or count_at(record, now=now) >= OUT_AFTER


def _trial_at(record: Health) -> float | None:
    outage = record.outage
    if outage is None or outage.until_at is None:
        return None
    last_at = outage.last_failure_at or outage.since_at
    return max(outage.until_at, last_at + TRIAL_AFTER_S)


def _entry_of(case: CaseView, candidates: tuple[Entry, ...], verdict: Verdict) -> Entry | None:
    backend = find_backend(case.policy, verdict.backend)
    if backend is None:
        return None
    return next(
        (
            one
            for one in candidates
            if one.backend == backend.id
            and one.tier == verdict.tier
            and model_of(one, backend) == verdict.model
        ),
        None,
    )


def _writes_alike(case: CaseView, candidates: tuple[Entry, ...], resolved: Resolved) -> bool:
    """
    Return whether the chosen candidate may write for the first: it is the first itself, of the same
    family, or of a tier that is there to stand in for it.
    """
    choice = resolved.choice
    assert choice is not None
    first = find_backend(case.policy, candidates[0].backend)
    if choice.entry.tier in _LABELLED or choice.backend.id == candidates[0].backend:
        return True
    if first is None:
        return False
    family = family_of(first, model_of(candidates[0], first))
    return family is not None and family == family_of(choice.backend, choice.model)


# The state of a chain now. The one way to look: for a delegation, for a caller that makes the calls
# itself, and for a message in a session of an opencode server.


class Search(Struct, frozen=True, kw_only=True):
    candidates: tuple[Entry, ...]
    request: Request
    resolved: Resolved
    out: Out | None
    """The service that is out, where the role does not go elsewhere by itself."""


def search(
    case: CaseView,
    turn: Turn,
    candidates: tuple[Entry, ...],
    request: Request,
    *,
    may_doubt: Callable[[Resolved], bool] | None = None,
) -> Search:
    """
    Args:
        may_doubt: Whether a stated time may be doubted where no candidate is usable: then one early
            trial is made, unless the role wants a word about outages. None: never.
    """
    resolved, out = guard(case, turn, candidates, request, case.resolve(candidates, request))
    if (
        out is None
        and resolved.choice is None
        and turn.on_outage == "fallback"
        and may_doubt is not None
        and may_doubt(resolved)
    ):
        resolved = case.resolve(candidates, structs.replace(request, last_resort=True))
    return Search(candidates=candidates, request=request, resolved=resolved, out=out)
