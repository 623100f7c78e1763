"""
Choice of the backends that can answer a request, and of the model that each is asked for.

A caller's own model name goes to backends of its family, so each candidate of a call is an entry
with its model; a name that one caller misspells marks that name alone. A session of the gateway is
a conversation and the model that it names. A failure that says nothing of the backend (form,
length, content filter) is reported without the session, which stays.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import partial

from msgspec import Struct, structs

from fallbackd.backends import http_calls, passage
from fallbackd.backends.http_calls import EMBEDS, same_vectors
from fallbackd.backends.model_names import spelled_like
from fallbackd.backends.spec import ApiMode, BackendKind
from fallbackd.core.authority import Authority
from fallbackd.core.callers.lease import Resolution
from fallbackd.core.ids import BackendId
from fallbackd.core.policy import Backend, Entry, Policy
from fallbackd.core.reasons import WORDS
from fallbackd.core.records import Verdict, VerdictWord
from fallbackd.core.routing.candidates import family_of, family_of_model
from fallbackd.engine.environment import Settings
from fallbackd.fronts.gateway.answers import Refusal
from fallbackd.fronts.gateway.translate.translation import can_translate

ALIAS = "claude-fallbackd-"
"""Prefix of the name of a chain: Claude Code shows only models that begin with `claude`."""
_ANY = "*"
_USABLE = frozenset({"healthy", "unproven", "cooldown"})
MAX_NAMES = 256
"""Callers invent names."""
MAX_KNOWN_CHARS = 1000


class Wanted(Struct, frozen=True, kw_only=True):
    """The meaning of the `model` of a request."""

    entries: tuple[Entry, ...]
    role: str | None = None
    name: str = _ANY
    """Name of the chain, the role or the backend; `*`: it was the id of a real model."""
    model: str | None = None
    """The id of a real model; None: it was a name of ours."""


def wanted(model: str | None, policy: Policy) -> Wanted:
    name = (model or "").removeprefix(ALIAS)
    kind, _, rest = name.partition(":")
    if kind in ("chain", "role") and rest:
        name = rest
    if name in policy.roles and kind != "chain":
        role = policy.roles[name]
        return Wanted(entries=role.chain, role=name, name=name)
    if name in policy.backends:  # before chains: the chain of a backend is what follows it
        backend = BackendId(name)
        behind = policy.chains.get(name) or policy.chains.get(_ANY, ())
        return Wanted(entries=(Entry(backend=backend), *behind), name=name)
    if name in policy.chains and name != _ANY:
        return Wanted(entries=policy.chains[name], name=name)
    return Wanted(entries=_serving(model, policy), model=model)


def _serving(model: str | None, policy: Policy) -> tuple[Entry, ...]:
    """Backends of a real model, then those that may be asked for any."""
    backends = policy.backends.values()
    own = [Entry(backend=one.id) for one in backends if model and one.model == model]
    others = [Entry(backend=one.id) for one in backends if one.is_http]
    return (*own, *policy.chains.get(_ANY, ()), *others)


def unknown_name(
    header: str | None,
    model: str | None,
    settings: Settings,
    kinds: Mapping[str, BackendKind],
    mode: ApiMode,
) -> Refusal | None:
    """
    Say why a name that can only be one of ours is not answered; None: it is known, or it may be the
    id of a real model.

    Args:
        header: What stands in place of the model.
    """
    name = header or (model or "").removeprefix(ALIAS)
    kind, _, rest = name.partition(":")
    is_prefixed = kind in ("chain", "role") and bool(rest)
    if not (header or is_prefixed):
        return None
    if name == _ANY or _is_known(name, settings.policy, is_prefixed=is_prefixed):
        return None
    known = ", ".join([one for one in names(settings, kinds, {mode}) if not one.startswith(ALIAS)])
    what = kind if is_prefixed else "chain, role, backend or model"
    text = f"no {what} is named {rest if is_prefixed else name}"
    text += f"; known are: {known[:MAX_KNOWN_CHARS]}" if known else "; none is configured"
    return Refusal(404, text, "unknown_name")


def _is_known(name: str, policy: Policy, *, is_prefixed: bool) -> bool:
    if not is_prefixed and any(one.model == name for one in policy.backends.values()):
        return True
    kind, _, rest = name.partition(":")
    return rest in policy.roles if kind == "role" else wanted(name, policy).name != _ANY


class Fitting(Struct, frozen=True, kw_only=True):
    """The entries that can be asked at all, and why the others cannot."""

    entries: tuple[Entry, ...]
    passed_over: tuple[Verdict, ...] = ()


def fitting(
    found: Wanted,
    settings: Settings,
    kinds: Mapping[str, BackendKind],
    mode: ApiMode,
    *,
    side: str = "",
) -> Fitting:
    """
    Keep the entries that can be asked and know which model to ask for, each once.

    Args:
        side: See `passage.Passage`. Nothing of another API means the same.
    """
    policy = settings.policy
    kept: dict[tuple[str, str | None], Entry] = {}
    passed_over: dict[BackendId, Verdict] = {}
    for entry in found.entries:
        backend = policy.backends.get(entry.backend)
        if backend is None or not backend.enabled:
            continue
        judged = _judged(entry, backend, found.model, settings, kinds, mode, side, kept.values())
        if isinstance(judged, Verdict):
            passed_over.setdefault(backend.id, judged)
            continue
        for one in judged:
            key = one.backend, one.model
            if key not in kept or kept[key].tier == "model":
                kept[key] = one
    return Fitting(
        entries=tuple(kept.values()),
        passed_over=tuple(
            one
            for one in passed_over.values()
            if all(one.backend != entry.backend for entry in kept.values())
        ),
    )


def _judged(
    entry: Entry,
    backend: Backend,
    asked: str | None,
    settings: Settings,
    kinds: Mapping[str, BackendKind],
    mode: ApiMode,
    side: str,
    before: Collection[Entry],
) -> Verdict | Sequence[Entry]:
    """The entries that are asked in place of one; or why that backend is not asked."""

    def unsuited(why: str, word: VerdictWord = "protocol") -> Verdict:
        return Verdict(
            backend=backend.id, kind=backend.kind, model=entry.model, verdict=word, reason=why
        )

    embeds = side in EMBEDS
    api = api_of(backend, settings, kinds)
    may_translate = entry.translate and not side
    why = _other_protocol(api, mode, may_translate=may_translate, embeds=embeds)
    if why is not None:
        return unsuited(why)
    own = settings.options_of(backend.id).embeddings
    if embeds:
        model = _embedding_model(own, asked, entry.model)
        # Nothing stands in for a missing one: a tier of `model` does so itself.
        entry = structs.replace(entry, model=model, tier="model")
        if (why := _no_vectors(model, before)) is not None:
            return unsuited(why)
    else:
        model = model_for(entry, backend, asked)
        if own and not (backend.model or entry.model):
            return unsuited("it has no model but those of its embeddings", "not_configured")
    if model is None:
        return unsuited("no model: set the backend's model", "not_configured")
    return _with_stand_in(entry, backend, model, asked=asked)


def _with_stand_in(
    entry: Entry, backend: Backend, model: str | None, *, asked: str | None
) -> tuple[Entry, ...]:
    """
    The candidate, and where a caller has named its model, the backend's own model behind it: that
    one is asked where the host does not have the model, as it is with `fallback_model`.
    """
    own = structs.replace(entry, model=model)
    if asked is None or entry.model is not None or backend.model in (None, model):
        return (own,)
    return own, structs.replace(entry, model=backend.model, tier="model")


class Choices:
    """Names that the `model` of a request offers, kept while the configuration stays as it is."""

    def __init__(self) -> None:
        self._settings: Settings | None = None
        self._found: dict[tuple[str | None, ApiMode, str, str | None], tuple[Wanted, Fitting]] = {}

    def find(
        self,
        name: str | None,
        settings: Settings,
        kinds: Mapping[str, BackendKind],
        mode: ApiMode,
        *,
        side: str,
        model: str | None,
    ) -> tuple[Wanted, Fitting]:
        """
        Args:
            side: See `fitting`.
            model: Whose vectors are asked for, also where a chain is named in its place.
        """
        if settings is not self._settings or len(self._found) >= MAX_NAMES:
            self._settings = settings
            self._found.clear()
        model = model if side in EMBEDS else None
        key = name, mode, side, model
        if key not in self._found:
            found = wanted(name, settings.policy)
            if model is not None:
                found = structs.replace(found, model=wanted(model, settings.policy).model)
            self._found[key] = found, fitting(found, settings, kinds, mode, side=side)
        return self._found[key]


def _embedding_model(own: tuple[str, ...], asked: str | None, of_entry: str | None) -> str | None:
    """
    Find the embedding model of a backend that is meant; None: it has none of that name.

    Args:
        of_entry: It may be another model, which writes.
    """
    named = asked or of_entry or ""
    found = next((one for one in own if same_vectors(one, named)), None)
    return next(iter(own), None) if found is None and asked is None else found


def _no_vectors(model: str | None, before: Collection[Entry]) -> str | None:
    """Say why a backend cannot make these vectors; None: it can."""
    if model is None:
        return "its embeddings do not name the model"
    first = next(iter(before), None)
    if first is None or same_vectors(model, first.model or ""):
        return None
    return f"its model is {model}, and vectors of {first.model} are another space"


def embeddings(
    settings: Settings, kinds: Mapping[str, BackendKind], modes: Collection[ApiMode]
) -> list[str]:
    """The embedding models that `model` may be in one of these APIs."""
    return [
        model
        for one in settings.policy.backends.values()
        if one.enabled and api_of(one, settings, kinds) in modes
        for model in settings.options_of(one.id).embeddings
    ]


def _other_protocol(
    api: ApiMode | None, mode: ApiMode, *, may_translate: bool, embeds: bool
) -> str | None:
    """Say why a backend of this API cannot answer a request of that one; None: it can."""
    if embeds and api == "responses":
        api = "chat_completions"  # both are of OpenAI's API, which has one for embeddings
    if api == mode or (may_translate and can_translate(mode, api)):
        return None
    if api is None:
        return "it has no HTTP API that a request could be passed on to"
    return f"it speaks {api}, the request is {mode}"


def api_of(
    backend: Backend, settings: Settings, kinds: Mapping[str, BackendKind]
) -> ApiMode | None:
    """The API of a backend; None: it is a program, or speaks none that can be passed on."""
    kind = kinds.get(backend.kind)
    if kind is None or kind.endpoint is None:
        return None
    mode = http_calls.mode_of(kind.endpoint, settings.options_of(backend.id))
    return mode if mode in passage.MODES else None


def model_for(entry: Entry, backend: Backend, asked: str | None) -> str | None:
    """
    The model that this candidate is asked for; None: not specified.

    A model that the caller names goes to backends of its own family, under the name that the host
    has for it: a caller uses several models of one vendor, and the configuration names one.
    """
    if entry.model is not None:
        return entry.model
    if asked is None:
        return backend.model
    family = family_of_model(asked)
    if backend.model is None:
        return asked if family is None or backend.family in (None, family) else None
    if family is None or family != family_of(backend, backend.model):
        return backend.model
    return spelled_like(asked, backend.model)


def _is_served(
    entries: tuple[Entry, ...],
    *,
    settings: Settings,
    kinds: Mapping[str, BackendKind],
    modes: Collection[ApiMode],
) -> bool:
    found = Wanted(entries=entries)
    return any(fitting(found, settings, kinds, mode).entries for mode in modes)


def names(
    settings: Settings, kinds: Mapping[str, BackendKind], modes: Collection[ApiMode]
) -> list[str]:
    """List what `model` may be in one of these APIs: chains, roles, backends and their models."""
    policy = settings.policy
    is_served = partial(_is_served, settings=settings, kinds=kinds, modes=modes)
    served = [one for one in policy.backends.values() if is_served((Entry(backend=one.id),))]
    own = [name for name, entries in policy.chains.items() if name != _ANY and is_served(entries)]
    own += [name for name, role in policy.roles.items() if is_served(role.chain)]
    own += [one.id for one in served]
    aliases = [ALIAS + one for one in own if not one.startswith("claude")]
    return list(dict.fromkeys([*own, *aliases, *filter(None, (one.model for one in served))]))


def serves_others(
    settings: Settings, kinds: Mapping[str, BackendKind], modes: Collection[ApiMode]
) -> bool:
    """
    Return whether a model that is none of `names`, as programs ask by themselves, has a backend.
    """
    found = wanted("?", settings.policy)
    return any(fitting(found, settings, kinds, mode).entries for mode in modes)


def entry_of(entries: tuple[Entry, ...], chosen: Resolution) -> Entry:
    named = [one for one in entries if one.backend == chosen.backend]
    found = next((one for one in named if one.model in (None, chosen.model)), None)
    if found is not None:
        return found
    # What stands in for a missing model (`fallback_model`) is no entry of the chain.
    return structs.replace(named[0], model=chosen.model)


def others(entries: tuple[Entry, ...], chosen: Resolution) -> tuple[Entry, ...]:
    """
    The entries that are left behind a candidate, fewer wherever one is of its backend: without its
    own entry, or, where it stands in for a missing model, without all entries of its backend.
    """
    same = [one for one in entries if one.backend == chosen.backend]
    own = [one for one in same if one.model in (None, chosen.model)][:1] or same
    return tuple(one for one in entries if one not in own)


def why_not_first(chosen: Resolution) -> str:
    """The reason why the first candidate is out of rotation; empty: it is not."""
    first = next(iter(chosen.candidates), None)
    if first is None or first.verdict in ("chosen", "paused"):
        return ""
    return first.reason if first.reason is not None and first.reason in WORDS else ""


def is_alone(chosen: Resolution) -> bool:
    """Return whether no other candidate would be asked instead."""
    return all(one.verdict not in _USABLE for one in chosen.candidates)


def unmetered(
    entries: tuple[Entry, ...], backends: Mapping[BackendId, Backend]
) -> tuple[Entry, ...]:
    """
    Keep what an attempt may ask that may spend nothing: also the first one is not billed by use.
    """
    return tuple(one for one in entries if backends[one.backend].cost != "metered")


def all_metered(name: str | None, asker: Authority) -> Refusal:
    text = f"only backends that bill each call answer {name or 'requests without a model'}, and"
    text += f" you are asking from {asker.place}, which was not given allow_metered"
    return Refusal(403, text, "consent")


def none_for(name: str | None, mode: ApiMode, side: str = "") -> Refusal:
    """No configured backend speaks the API of the caller."""
    if side in EMBEDS:
        text = f"no backend has embeddings of {name or 'a model'} in this API ({mode}):"
        text += " name the model in the embeddings of a backend"
        return Refusal(404, text, "no_backend")
    text = f"no backend that speaks this API ({mode}) is configured for"
    text += f" {name or 'requests without a model'}"
    todo = "configure one of a kind that ends in -http, with its model"
    return Refusal(404, f"{text}: {todo}", "no_backend")
