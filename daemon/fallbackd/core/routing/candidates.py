"""Candidates of a request in order, and what the configuration alone says of each."""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from msgspec import Struct, structs

from fallbackd.core.health import Health, view
from fallbackd.core.ids import BackendId, ScopeId
from fallbackd.core.policy import IN_SESSION_KIND, Backend, Entry, Policy, Role, Shell, once
from fallbackd.core.records import Session, Verdict, VerdictWord
from fallbackd.core.scopes import (
    context_of,
    find_backend,
    is_missing_model,
    missing_model_scope,
    model_of,
    scopes_of,
)

# Model families, used to keep a model from reviewing its own work.
#
# A family is what the configuration says of a backend, else what the name of the model shows.


UNKNOWN = "?"
"""An unknown family differs from no other family."""

AUTHOR = "author"
"""In `must_differ_from`: the family that wrote the work under review."""

_WORDS: dict[str, str] = {
    "claude": "claude|opus|sonnet|haiku|fable",
    "gpt": r"gpt|chatgpt|codex|davinci|o[1345](?![0-9])",
    "gemini": "gemini|gemma|learnlm",
    "llama": "llama|codellama",
    "qwen": "qwen|qwq|qvq",
    "mistral": "mistral|mixtral|magistral|codestral|devstral|ministral|pixtral",
    "deepseek": "deepseek",
    "grok": "grok",
    "kimi": "kimi|moonshot",
    "glm": "glm|chatglm",
    "command": "command-(?:a|r)|c4ai",
    "phi": r"phi-?[0-9]",
    "nova": "nova-(?:micro|lite|pro|premier)",
    "minimax": "minimax|abab",
}
KNOWN = frozenset(_WORDS)

_PATTERNS = tuple(
    (family, re.compile(rf"(?<![a-z])(?:{words})", re.IGNORECASE))
    for family, words in _WORDS.items()
)


@lru_cache(maxsize=1024)
def family_of_model(model: str) -> str | None:
    """
    Return the family of a model by its name alone: the part behind the last slash first, as it
    names the model itself.
    """
    parts = model.rsplit("/", 1)
    for part in reversed(parts):
        hits = [
            (hit.start(), family)
            for family, pattern in _PATTERNS
            if (hit := pattern.search(part)) is not None
        ]
        if hits:
            return min(hits)[1]
    return None


def family_of(backend: Backend, model: str | None) -> str | None:
    """
    The family that answers for a candidate; None where it is unknown.

    What is configured holds for the backend's own model; another model that an entry or a caller
    names says more by its name.
    """
    named = None if model is None else family_of_model(model)
    if backend.family is not None and (model is None or model == backend.model):
        return backend.family
    return named or backend.family


def known_families(policy: Policy) -> frozenset[str]:
    """Words that a caller may use."""
    own = (one.family for one in policy.backends.values())
    return KNOWN | {one for one in own if one is not None}


def differs(family: str | None, others: frozenset[str]) -> bool:
    """Return whether a candidate of `family` is certainly none of `others`."""
    if not others:
        return True
    return family is not None and UNKNOWN not in others and family not in others


# Tiers of a chain: labels that say in which way a candidate helps.
#
#     primary ──▶ model ──▶ … ──▶ api (once) ──▶ in_session
#                   │                                └─ nothing is started: the caller does it
#                   └─ the same backend with its fallback model, only where its model is missing


ONCE = frozenset({"api"})
"""Tiers of which one candidate is enough."""


class Limits(Struct, frozen=True, kw_only=True):
    """Limits that the role and the request set, whatever health says."""

    differs_from: frozenset[str] = frozenset()
    """Families of models that may not serve it."""
    allow_metered: bool = True
    spent_tiers: frozenset[str] = frozenset()
    """Tiers that are used up, as far as they are for one use."""


FREE = Limits()


def forbidden(
    entry: Entry, backend: Backend, model: str | None, limits: Limits
) -> tuple[VerdictWord, str] | None:
    """The verdict on a candidate that may not be used, with a sentence. None: it may."""
    if entry.tier is not None and entry.tier in limits.spent_tiers:
        return "tried", f"the tier {entry.tier} was tried already by this delegation"
    if limits.differs_from:
        family = family_of(backend, model)
        if not differs(family, limits.differs_from):
            others = ", ".join(sorted(limits.differs_from))
            return "must_differ", f"its family ({family or 'unknown'}) must differ from {others}"
    if backend.cost == "metered" and not limits.allow_metered:
        return "consent", "it is billed by use and has no consent"
    return None


def labelled(
    entries: Iterable[Entry], policy: Policy, *, fallback_model: str | None = None
) -> tuple[Entry, ...]:
    """
    The entries with their tiers, each followed by what stands in for a missing model.

    Args:
        fallback_model: Of the role, in place of those of the backends.
    """
    found: list[Entry] = []
    for number, entry in enumerate(entries):
        backend = find_backend(policy, entry.backend)
        if entry.tier is None:
            entry = _with_tier(entry, backend, is_first=number == 0)
        found.append(entry)
        if backend is None or backend.kind == IN_SESSION_KIND or entry.tier == "model":
            continue
        model = fallback_model or backend.fallback_model
        if model is not None and model != model_of(entry, backend):
            found.append(
                Entry(backend=entry.backend, model=model, tier="model", effort=entry.effort)
            )
    return tuple(found)


def _with_tier(entry: Entry, backend: Backend | None, *, is_first: bool) -> Entry:
    """An entry whose tier is not configured, with the one that follows from its kind and place."""
    if backend is not None and backend.kind == IN_SESSION_KIND:
        return structs.replace(entry, tier="in_session")
    return structs.replace(entry, tier="primary") if is_first else entry


def wanted(
    entries: Iterable[Entry], policy: Policy, health: Mapping[ScopeId, Health], *, now: float
) -> list[Entry]:
    """The entries without those that stand in for a model which is not known to be missing."""
    found: list[Entry] = []
    before: Entry | None = None
    for entry in entries:
        if entry.tier != "model":
            before = entry
            found.append(entry)
            continue
        is_swap = before is not None and before.backend == entry.backend
        if not is_swap or (
            before is not None and _lacks_its_model(before, policy, health, now=now)
        ):
            found.append(entry)
    return found


def _lacks_its_model(
    entry: Entry, policy: Policy, health: Mapping[ScopeId, Health], *, now: float
) -> bool:
    backend = find_backend(policy, entry.backend)
    if backend is None:
        return False
    scope = missing_model_scope(backend, model_of(entry, backend))
    record = health.get(scope)
    return is_missing_model(record) and view(record, now=now).state == "broken"


def stand_ins(policy: Policy, backend: Backend) -> tuple[str, ...]:
    """The models that are used where the backend's own one is missing, in any role."""
    found = [backend.fallback_model]
    found += [
        role.fallback_model
        for role in policy.roles.values()
        if any(entry.backend == backend.id for entry in role.chain)
    ]
    return tuple(dict.fromkeys(one for one in found if one not in (None, backend.model)))


# A candidate as the configuration alone describes it, before anything is known of its health.


HANDED_BACK = 2
"""The rank of work that goes back to the caller: behind what recovers."""


class Choice(Struct, frozen=True, kw_only=True):
    entry: Entry
    backend: Backend
    model: str | None = None
    credential: str | None = None
    trial_scopes: tuple[ScopeId, ...] = ()
    """Scopes whose single trial this attempt has to lease; empty: no trial."""


class Candidate(Struct, frozen=True, kw_only=True):
    entry: Entry
    choice: Choice | None
    verdict: Verdict
    rank: int = 9
    returns_at: float | None = None
    stated: bool = False
    over_budget: bool = False


class Configured(Struct, frozen=True, kw_only=True):
    """A candidate with one of its credentials, as the configuration alone describes it."""

    entry: Entry
    backend: Backend
    model: str | None
    credential: str | None
    key: str
    same_as: str
    """See `sameness`."""
    scopes: tuple[ScopeId, ...]
    has_own_scopes: bool
    """Which of them count depends on what is known of them."""
    context_tokens: int | None
    never: tuple[VerdictWord, str] | None
    """The rule that excludes it whatever is asked."""
    healthy: Candidate
    """The candidate while nothing is known against it."""


@once
def configured(policy: Policy, entry: Entry, credential: str | None) -> Configured | None:
    """None: its backend is not configured."""
    backend = find_backend(policy, entry.backend)
    if backend is None:
        return None
    model = model_of(entry, backend)
    never: tuple[VerdictWord, str] | None = None
    if not backend.enabled:
        never = "disabled", "switched off in the configuration"
    elif backend.lacks is not None:
        never = "not_configured", backend.lacks
    elif credential is None and backend.credentials:
        never = "tried", "each of its credentials has failed for this work"
    return Configured(
        entry=entry,
        backend=backend,
        model=model,
        credential=credential,
        key=candidate_key(backend.id, entry.model),
        same_as=sameness(backend, model, credential),
        scopes=scopes_of(backend, model, credential),
        has_own_scopes=entry.tier == "model" or backend.implicit,
        context_tokens=context_of(policy, backend, model),
        never=never,
        healthy=Candidate(
            entry=entry,
            choice=Choice(entry=entry, backend=backend, model=model, credential=credential),
            verdict=Verdict(
                backend=backend.id,
                kind=backend.kind,
                account=backend.account,
                model=model,
                verdict="healthy",
                tier=entry.tier,
                credential=credential,
            ),
            rank=HANDED_BACK if backend.kind == IN_SESSION_KIND else 0,
        ),
    )


class Chain(Struct, frozen=True, kw_only=True):
    members: tuple[tuple[Entry, Configured | None], ...]
    """Each entry once, with what the configuration says of it, whichever credential is used."""
    has_stand_ins: bool


@once
def chain_of(policy: Policy, candidates: tuple[Entry, ...]) -> Chain:
    entries = tuple(dict.fromkeys(candidates))
    return Chain(
        members=tuple((entry, configured(policy, entry, None)) for entry in entries),
        has_stand_ins=any(entry.tier == "model" for entry in entries),
    )


def candidate_key(backend: str, model: str | None) -> str:
    return backend if model is None else f"{backend}|{model}"


def sameness(backend: Backend, model: str | None, credential: str | None) -> str:
    """
    Two entries with the same provider, model and credential fail together. What is not known is
    the same as nothing else.
    """
    if backend.provider is None or model is None:
        return f"{backend.id}|{model}|{credential}"
    return f"{backend.provider}|{model}|{credential}"


def candidates_for(
    policy: Policy,
    *,
    backend: BackendId | None,
    role: str | None,
    chain: tuple[Entry, ...] | None,
    model: str | None = None,
    session: Session | None = None,
) -> tuple[Entry, ...]:
    """
    The requested backend, then the first chain of explicit, role, requested backend, `*` that
    exists and is not empty. Chains are not joined. The built-in `*` holds all agents: what a
    caller has named does not fall back to it. In a role that is switched off only the first of
    them remains.
    """
    known = None if role is None else find_role(policy, role)
    if not chain and known is None and backend is None and session is not None:
        chain = session.chain
    found = chain or (() if known is None else known.chain)
    fallback_model = None if known is None else known.fallback_model
    requested = backend
    if requested is None and not found and session is not None and session.chain is None:
        requested = session.original
    is_open = backend is None and known is None
    candidates = _chain_led_by(policy, requested, model, found, is_open, fallback_model)
    if known is None:
        return candidates
    if known.at_percent is not None:
        candidates = _before_walls(policy, candidates, known.at_percent)
    return candidates if known.enabled else candidates[:1]


@once
def _before_walls(
    policy: Policy, candidates: tuple[Entry, ...], percent: float
) -> tuple[Entry, ...]:
    return tuple(
        one if one.at_percent is not None else structs.replace(one, at_percent=percent)
        for one in candidates
    )


def own_chain(
    policy: Policy, *, backend: BackendId | None, role: str | None, chain: tuple[Entry, ...] | None
) -> tuple[Entry, ...] | None:
    """The chain that a session keeps of its first request; see `Session.chain`."""
    if backend is not None:
        return None
    if role is None:
        return chain or ()
    known = find_role(policy, role)
    return chain or (() if known is None else known.chain) or None


@once
def _chain_led_by(
    policy: Policy,
    requested: BackendId | None,
    model: str | None,
    chain: tuple[Entry, ...],
    is_open: bool,
    fallback_model: str | None,
) -> tuple[Entry, ...]:
    """
    Args:
        chain: Of the request or of its role; empty: the configured one.
    """
    chain = chain or _chain_of(policy, requested, is_open=is_open)
    return labelled(_led_by(requested, model, chain), policy, fallback_model=fallback_model)


def _led_by(
    requested: BackendId | None, model: str | None, chain: tuple[Entry, ...]
) -> tuple[Entry, ...]:
    """The requested backend before the rest of the chain; without one, the model for its head."""
    if requested is not None:
        rest = (e for e in chain if not (e.backend == requested and e.model in (model, None)))
        return (Entry(backend=requested, model=model), *rest)
    if model is None or not chain:
        return chain
    return (structs.replace(chain[0], model=model), *chain[1:])


def _chain_of(policy: Policy, requested: BackendId | None, *, is_open: bool) -> tuple[Entry, ...]:
    """The configured chain of a backend, else that of all."""
    own = () if requested is None else policy.chains.get(requested, ())
    if own or (policy.any_is_built_in and not is_open):
        return own
    return policy.chains.get("*", ())


@once
def find_role(policy: Policy, name: str) -> Role | None:
    """Exact, then a unique normalised match: lower case, letters and digits, without `agent`."""
    if name in policy.roles:
        return policy.roles[name]
    wanted = _normalised(name)
    found = [role for key, role in policy.roles.items() if _normalised(key) == wanted]
    return found[0] if len(found) == 1 else None


def shell_of(policy: Policy, backend: Backend, role: str | None) -> Shell:
    """`confined` only where the kernel confines the backend wholly."""
    of_role = None if role is None else find_role(policy, role)
    wanted = of_role.shell if of_role is not None and of_role.shell else backend.shell
    is_held = policy.kernel_confines == "yes" and policy.confines(backend)
    return (wanted or policy.defaults.shell) if is_held else "own"


def _normalised(name: str) -> str:
    plain = "".join(ch for ch in name.lower() if ch.isalnum())
    return plain.removesuffix("agent") or plain
