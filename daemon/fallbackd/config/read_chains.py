"""`[chains]` and `[roles.<name>]`: who comes after whom."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, structs

from fallbackd.backends import ALIASES, JUDGED, KIND_NAMES
from fallbackd.backends.signatures import LATER
from fallbackd.classify.rules import Rule, linear
from fallbackd.config import profiles
from fallbackd.config.fields import Say, convert, guess, join, read, show, table
from fallbackd.config.schema import (
    AuthorityTable,
    EntryTable,
    ReturnTable,
    RoleTable,
    ShortText,
    SignatureTable,
)
from fallbackd.core.ids import BackendId
from fallbackd.core.policy import HOPPING, Backend, Entry, Policy, Role, implicit_backend
from fallbackd.core.reasons import Reason
from fallbackd.core.routing.candidates import AUTHOR, known_families


class KnownNames(Struct, kw_only=True):
    """Backends that entries may name; ids of the form `provider/model` are added when named."""

    backends: dict[BackendId, Backend]
    left_out: frozenset[str] = frozenset()
    quotas: Mapping[str, str] = {}
    """Quota group by provider of such ids."""

    def find(self, id: str) -> Backend | None:
        found = self.backends.get(BackendId(id))
        if found is None and id not in self.left_out:
            like = self.backends.get(profiles.OPENCODE)
            found = implicit_backend(id, like=like, quotas=self.quotas)
            if found is not None:
                self.backends[found.id] = found
        return found


def read_chains(raw: object, known: KnownNames, say: Say) -> dict[str, tuple[Entry, ...]]:
    """The built-in chains, with those of the file in their place or behind them."""
    chains = profiles.chains(known.backends)
    for name, value in table(raw, "chains", say).items():
        path = join("chains", name)
        if not _is_name(name):
            say(path, "must have a name of 1 to 128 printable characters; it is left out.")
            continue
        if not isinstance(value, list):
            say(path, f'{show(value)}: must be a list of backends: ["codex", "gemini"].')
            continue
        chains[name] = _entries(value, path, known, say, primary=name)
    return chains


def _is_name(name: str) -> bool:
    return 1 <= len(name) <= 128 and name.isprintable()


def _entries(
    raw: list[Any], path: str, known: KnownNames, say: Say, *, primary: str | None
) -> tuple[Entry, ...]:
    entries: list[Entry] = []
    seen: set[tuple[str | None, str | None]] = set() if primary is None else {(primary, None)}
    for number, value in enumerate(raw):
        here = join(path, number)
        entry = _entry(value, here, known, say)
        if entry is None:
            continue
        place = (str(entry.backend), entry.model)
        if place in seen:
            what = "the chain's own primary" if place == (primary, None) else "an earlier entry"
            say(here, f"{show(str(entry.backend))} is equal to {what}; it is left out.")
            continue
        seen.add(place)
        entries.append(entry)
    return tuple(entries)


def _entry(raw: object, path: str, known: KnownNames, say: Say) -> Entry | None:
    match raw:
        case str():
            given: dict[str, Any] = {"backend": raw}
        case Mapping():
            given = read(raw, EntryTable, path, say)
        case _:
            say(path, f"{show(raw)}: must be the id of a backend or a table; it is left out.")
            return None
    id = given.get("backend")
    if id is None:
        if not isinstance(raw, Mapping) or "backend" not in raw:
            say(path, "names no backend; it is left out.")
        return None
    if known.find(id) is None:
        if id not in known.left_out:
            near = guess(id, known.backends)
            say(path, f"{show(id)} is not a backend; it is left out.{near}")
        return None
    given["backend"] = BackendId(id)
    return Entry(**given)


def read_roles(
    raw: object, chains: Mapping[str, tuple[Entry, ...]], known: KnownNames, say: Say
) -> dict[str, Role]:
    roles: dict[str, Role] = {}
    for name, value in table(raw, "roles", say).items():
        path = join("roles", name)
        if not _is_name(name):
            say(path, "must have a name of 1 to 128 printable characters; it is left out.")
            continue
        given = read(
            value,
            RoleTable,
            path,
            say,
            by_hand=frozenset({"chain", "fallback_on", "must_differ_from", "return_to_better"}),
        )
        if "must_differ_from" in given:
            here = join(path, "must_differ_from")
            given["must_differ_from"] = _families(given["must_differ_from"], here, known, say)
        if "chain" in given:
            given["chain"] = _role_chain(given["chain"], join(path, "chain"), chains, known, say)
        if "fallback_on" in given:
            given["fallback_on"] = _reasons(given["fallback_on"], join(path, "fallback_on"), say)
        back = given.pop("return_to_better", None)
        if back is not None:
            given |= _return(back, join(path, "return_to_better"), say)
        role = Role(name=name, **given)
        roles[name] = structs.replace(role, on_outage=role.outage_policy)
    return roles


def read_authority(raw: object, roles: Mapping[str, Role], say: Say) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for name, value in table(raw, "authority", say).items():
        path = join("authority", name)
        may = read(value, AuthorityTable, path, say).get("may") or ()
        if name not in roles:
            say(path, f"names no role in [roles]; it has no effect.{guess(name, roles)}")
        elif may:
            found[name] = tuple(may)
            words = ", ".join(may)
            say(
                join(path, "may"),
                f"agents of the role {show(name)} may do more through the daemon than their own"
                f" permissions allow: {words}. A page that they read may ask them to.",
            )
    return found


def _role_chain(
    raw: object, path: str, chains: Mapping[str, tuple[Entry, ...]], known: KnownNames, say: Say
) -> tuple[Entry, ...]:
    match raw:
        case str() if raw in chains:
            return chains[raw]
        case list():
            return _entries(raw, path, known, say, primary=None)
        case str():
            say(path, f"{show(raw)} is not a name in [chains]; it is left out.{guess(raw, chains)}")
        case _:
            say(path, f"{show(raw)}: must be a list of backends, or the name of one in [chains].")
    return ()


def _reasons(raw: object, path: str, say: Say) -> frozenset[Reason] | None:
    if not isinstance(raw, list):
        say(path, f"{show(raw)}: must be a list of reasons; the default is used.")
        return None
    found: set[Reason] = set()
    for number, value in enumerate(raw):
        here = join(path, number)
        fits, reason = convert(value, Reason)
        if not fits:
            near = guess(value, HOPPING) if isinstance(value, str) else ""
            say(here, f"{show(value)} is not a reason; it is left out.{near}")
        elif reason not in HOPPING:
            say(here, f"{show(value)} never leads to another backend; it is left out.")
        else:
            found.add(reason)
    if raw and not found:
        say(path, "holds no usable reason; the default is used.")
        return None
    return frozenset(found)


def _families(raw: object, path: str, known: KnownNames, say: Say) -> tuple[str, ...]:
    """The words that can be used: a bad one does not lift the rule of its neighbours."""
    if not isinstance(raw, list):
        say(path, f"{show(raw)}: must be a list of families, or of {show(AUTHOR)}; it is left out.")
        return ()
    families = known_families(Policy(backends=known.backends))
    found: dict[str, None] = {}
    for number, word in enumerate(raw):
        here = join(path, number)
        if not convert(word, ShortText)[0]:
            say(here, f"{show(word)}: must be text of 1 to 200 characters; it is left out.")
            continue
        assert isinstance(word, str)
        found[word] = None
        if word != AUTHOR and word not in families:
            near = guess(word, (AUTHOR, *sorted(families)))
            say(here, f'{show(word)} is neither "author" nor a family that any backend has.{near}')
    return tuple(found)


def _return(raw: object, path: str, say: Say) -> dict[str, Any]:
    plain = Role(name="")
    given = read(raw, ReturnTable, path, say, in_use=lambda name: getattr(plain, f"return_{name}"))
    if given.get("policy") != "successes":
        for key in ("n", "step"):
            if key in given:
                say(join(path, key), 'has an effect only with policy = "successes".')
    return {f"return_{key}": value for key, value in given.items()}


_ANYWHERE = ("stderr", "jsonl", "http", "unknown")


class Signature(Struct, frozen=True, kw_only=True):
    rule: Rule
    kind: str | None = None
    """None: of every kind."""


def read_signatures(raw: object, say: Say) -> tuple[Signature, ...]:
    if not isinstance(raw, list):
        say("signatures", f"{show(raw)}: must be written as [[signatures]]; it is left out.")
        return ()
    found: dict[str, Signature] = {}
    for number, value in enumerate(raw):
        path = join("signatures", number)
        one = _signature(value, number, path, say)
        if one is None:
            continue
        if one.rule.id in found:
            say(path, f"the id {show(one.rule.id)} is taken; it is left out.")
            continue
        found[one.rule.id] = one
    return tuple(found.values())


def _signature(raw: object, number: int, path: str, say: Say) -> Signature | None:
    given = read(raw, SignatureTable, path, say)
    if not isinstance(raw, dict):
        return None
    for key in ("pattern", "reason"):
        if key not in given:
            if key not in raw:
                say(path, f"has no {key}; the signature is left out.")
            return None
    pattern: str = given["pattern"]
    reason: Reason = given["reason"]
    if why := _trouble(pattern):
        say(join(path, "pattern"), f"{show(pattern)}: {why}; the signature is left out.")
        return None
    kind = given.get("kind")
    if kind is not None:
        kind = ALIASES.get(kind, kind)
        if kind not in (*KIND_NAMES, *LATER, *JUDGED):
            near = guess(kind, (*KIND_NAMES, *JUDGED))
            say(join(path, "kind"), f"{show(kind)} is not a kind; the signature is left out.{near}")
            return None
    stream = given.get("stream")
    rule = Rule(
        id=given.get("id", f"signature-{number}"),
        reason=reason,
        pattern=pattern,
        # A tail of mixed output holds every channel.
        streams=_ANYWHERE if stream is None else tuple(dict.fromkeys((stream, "unknown"))),
        anywhere=True,
        yields=given.get("yields", False),
        is_users=True,
        detail=given.get("detail"),
    )
    return Signature(rule=rule, kind=kind)


def _trouble(pattern: str) -> str | None:
    """Return why a pattern cannot be used, if so."""
    try:
        compiled = linear(pattern)
    except ValueError as error:
        return f"is not a regular expression that can be searched in linear time ({error})"
    return "fits every line" if compiled.search("") is not None else None
