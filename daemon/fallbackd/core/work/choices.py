"""Whom a person could choose now, and which rules of the role or the request speak against each."""

from collections.abc import Mapping

from msgspec import structs

from fallbackd.core.case_view import CaseView
from fallbackd.core.health.scopes import find_backend
from fallbackd.core.ids import BackendId
from fallbackd.core.policy import IN_SESSION_KIND, Entry
from fallbackd.core.records import Delegation
from fallbackd.core.routing.candidates import find_role
from fallbackd.core.routing.configured import Choice
from fallbackd.core.routing.families import UNKNOWN, differs, family_of
from fallbackd.core.routing.looking import Request
from fallbackd.core.routing.resolve import Resolved
from fallbackd.core.routing.tiers import Limits
from fallbackd.core.work.outages import service_of
from fallbackd.core.work.resolution import request_of

USABLE = frozenset({"chosen", "healthy", "unproven", "affinity", "cooldown"})


def usable_for(case: CaseView, candidates: tuple[Entry, ...]) -> dict[str, str]:
    """
    Backends that a person could choose now, in the order of the chain.

    Returns:
        For each what a person has to know of it before: "of the author's family gpt, metered".
        Empty where no rule speaks against it.
    """
    request = request_of(case)
    limits = Limits(spent_tiers=request.limits.spent_tiers)
    found = case.resolve(candidates, structs.replace(request, limits=limits))
    names: dict[str, str] = {}
    for verdict in found.verdicts:
        backend = find_backend(case.policy, verdict.backend)
        if verdict.verdict not in USABLE or backend is None or backend.kind == IN_SESSION_KIND:
            continue
        if backend.id not in names and not service_of(case, verdict)[0]:
            choice = resolved_by_person(case, backend.id).choice
            names[backend.id] = "" if choice is None else _against(case, choice)
    return names


def resolved_by_person(case: CaseView, name: BackendId) -> Resolved:
    """What is started where a person says so: no rule of the role holds for it."""
    delegation = case.delegation
    entries = tuple(one for one in delegation.turn.candidates if one.backend == name)
    return case.resolve(entries, Request(prompt_tokens=delegation.turn.prompt_tokens))


def _against(case: CaseView, choice: Choice) -> str:
    delegation = case.delegation
    said = []
    family = family_of(choice.backend, choice.model)
    if not differs(family, frozenset(delegation.turn.differs_from)):
        said.append(_of_family(case, delegation, family))
    if choice.backend.cost == "metered" and not delegation.turn.allow_metered:
        said.append("metered")
    return ", ".join(said)


def _of_family(case: CaseView, delegation: Delegation, family: str | None) -> str:
    role = None if delegation.role is None else find_role(case.policy, delegation.role)
    if family is None:
        return "of an unknown model family, perhaps that of the author"
    if role is not None and family in role.must_differ_from:
        return f"of the family {family}, which this role rules out"
    if family in delegation.turn.differs_from:
        return f"of the author's family {family}"
    assert UNKNOWN in delegation.turn.differs_from
    return f"of the family {family}, perhaps that of the author"


def with_rules(text: str, usable: Mapping[str, str]) -> str:
    """The question, with the candidates that the rules exclude."""
    against = [f"{name} is {why}" for name, why in usable.items() if why]
    return f"{text} By the rules they may not: {'; '.join(against)}." if against else text
