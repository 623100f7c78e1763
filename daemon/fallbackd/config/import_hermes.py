"""
The models of a Hermes `config.yaml`, and the order in which it falls back.

    model                            the primary: it heads [chains] "*"
    model.fallback_chain, fallback_providers, fallback_model
                                     what versions of that program have called its chain: all are
                                     read, in this order, and equal entries are one
    auxiliary.<task>                 [roles.<task>]

Everything else is a line of the report.
"""

import re
from collections.abc import Mapping
from typing import Any

from fallbackd.config.importing import (
    Imported,
    Provider,
    Report,
    Tables,
    find_provider,
    has_password,
    is_address,
)

FILE_NAME = "config.yaml"
MAX_ENTRIES = 100
_MODEL_KEYS = ("default", "model", "name")
_LENGTH = "context_length"
_ENTRY_KEYS = (
    *("provider", "model", "base_url", "api_key", "key_env", "api_key_env", "api_mode"),
    _LENGTH,
)
_DECIDED_LATER = frozenset({"auto", "main"})
"""Words for a provider that is chosen when a call is made."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_MODES = {
    "anthropic_messages": "messages",
    "chat_completions": "chat_completions",
    "codex_responses": "responses",
    "messages": "messages",
    "responses": "responses",
}


def read_hermes(text: str, *, path: str = FILE_NAME) -> Imported:
    """Read what can be read. Garbage is a line of the report, its neighbours live."""
    import yaml  # 20 ms, for those who import

    report = Report()
    try:
        raw = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f" (line {mark.line + 1})"
        report.leave(path, f"is not valid YAML{where}")
        return report.made("hermes", {})
    if not isinstance(raw, Mapping):
        report.leave(path, "holds no table")
        return report.made("hermes", {})
    reader = _Reader(report)
    primary = _primary(raw, report)
    main = reader.take_all([*primary, *_fallbacks(raw, report)], 'chains."*"')
    roles = _roles(raw, reader, main, primary)
    _leave_others(raw, report)
    tables: Tables = {}
    if reader.backends:
        tables["backends"] = reader.backends
    if main:
        tables["chains"] = {"*": main}
    if roles:
        tables["roles"] = roles
    return report.made("hermes", tables)


def _primary(raw: Mapping[Any, Any], report: Report) -> list[tuple[str, Any]]:
    """Return the program's first choice, as an entry of a chain."""
    model = raw.get("model")
    if isinstance(model, str):
        model = {"default": model}
    if not isinstance(model, Mapping):
        if model is not None:
            report.leave("model", "not a mapping or a name")
        return []
    name = next((found for key in _MODEL_KEYS if (found := _word(model, key))), None)
    _leave_rest("model", model, (*_MODEL_KEYS, *_ENTRY_KEYS, "fallback_chain"), report)
    provider = _word(model, "provider")
    if name is None:
        if provider is not None:
            report.leave("model", "names no model, so it is not known what would be asked first")
        return []
    if _is_decided_later(provider):
        if not _word(model, "base_url"):
            report.leave(
                "model",
                f"has no provider that is known before it runs: write {name} and its provider at"
                ' the head of [chains] "*"',
            )
            return []
        provider = "custom"
    entry = {key: value for key, value in model.items() if key in _ENTRY_KEYS}
    return [("model", {**entry, "provider": provider, "model": name})]


def _fallbacks(raw: Mapping[Any, Any], report: Report) -> list[tuple[str, Any]]:
    model = raw.get("model")
    found: list[tuple[str, Any]] = []
    if isinstance(model, Mapping):
        found += _list_of("model.fallback_chain", model.get("fallback_chain"), report)
    for key in ("fallback_providers", "fallback_model"):
        found += _list_of(key, raw.get(key), report)
    return found


def _roles(
    raw: Mapping[Any, Any], reader: "_Reader", main: list[str], primary: list[tuple[str, Any]]
) -> Tables:
    """`auxiliary.<task>` in that program's order: its model, its own chain, the main chain."""
    tasks = raw.get("auxiliary")
    if tasks is None:
        return {}
    if not isinstance(tasks, Mapping):
        reader.report.leave("auxiliary", "not a mapping")
        return {}
    made: Tables = {}
    for task, given in tasks.items():
        chain = _chain_of(str(task), given, reader, main, primary)
        if chain:
            made[str(task)] = {"kind": "utility", "chain": chain}
    return made


def _chain_of(
    task: str, given: object, reader: "_Reader", main: list[str], primary: list[tuple[str, Any]]
) -> list[str]:
    where, report = f"auxiliary.{task}", reader.report
    if not isinstance(given, Mapping):
        report.leave(where, "not a mapping")
        return []
    entries = _list_of(f"{where}.fallback_chain", given.get("fallback_chain"), report)
    own = _own_entry(given, primary)
    if _word(own, "model") and not _is_decided_later(_word(own, "provider")):
        entries.insert(0, (where, own))
    _leave_rest(where, given, (*_ENTRY_KEYS, "fallback_chain"), report)
    chain = reader.take_all(entries, f"roles.{task}.chain")
    if not entries:
        report.leave(
            where, "names no model with its provider: work for it goes along the main chain"
        )
    return [*chain, *(name for name in main if name not in chain)] if chain else []


def _own_entry(given: Mapping[Any, Any], primary: list[tuple[str, Any]]) -> Tables:
    """Return a task's own model; `main` is the provider of the primary."""
    own = {key: value for key, value in given.items() if key in _ENTRY_KEYS and value}
    if primary and (_word(own, "provider") or "").lower() == "main":
        first = primary[0][1]
        whole = {**first, **own, "provider": first["provider"]}
        if own.get("model") and _LENGTH not in own:
            whole.pop(_LENGTH, None)  # of another model
        return whole
    return own


def _is_decided_later(provider: str | None) -> bool:
    return (provider or "auto").lower() in _DECIDED_LATER


def _leave_rest(
    where: str, given: Mapping[Any, Any], known: tuple[str, ...], report: Report
) -> None:
    for key in given:
        if key not in known:
            report.leave(f"{where}.{key}", "has no meaning here")


def _list_of(key: str, value: object, report: Report) -> list[tuple[str, Any]]:
    match value:
        case None:
            return []
        case Mapping():
            return [(key, value)]
        case list():
            return [(f"{key}[{number}]", one) for number, one in enumerate(value)]
        case _:
            report.leave(key, "not a mapping or list")
            return []


class _Reader:
    """Turns entries into backends. An entry that is there already is the same backend."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.backends: Tables = {}
        self._seen: dict[tuple[str, ...], tuple[str, str]] = {}
        """Where an entry was found first, and the backend that it has become."""

    def take_all(self, entries: list[tuple[str, Any]], place: str) -> list[str]:
        """The chain of these entries, which goes to `place` of the configuration."""
        chain: list[str] = []
        for where, entry in entries[:MAX_ENTRIES]:
            name = self._take(where, entry)
            if name is None:
                continue
            if name in chain:
                first = next(at for at, one in self._seen.values() if one == name)
                self.report.leave(where, f"is the same as {first}")
                continue
            chain.append(name)
            self.report.take(where, f"{place}[{len(chain) - 1}] = {name}")
        for where, _ in entries[MAX_ENTRIES:]:
            self.report.leave(where, f"the chain has more than {MAX_ENTRIES} entries")
        return chain

    def _take(self, where: str, entry: object) -> str | None:
        report = self.report
        if not isinstance(entry, Mapping):
            report.leave(where, "not a mapping")
            return None
        provider, model = _word(entry, "provider"), _word(entry, "model")
        base_url = (_word(entry, "base_url") or "").rstrip("/")
        if provider is None or model is None:
            missing = "provider" if provider is None else "model"
            report.leave(where, f"has no {missing}, and one is needed to know what would be used")
            return None
        if base_url and (why := _why_unusable(base_url)) is not None:
            report.leave(f"{where}.base_url", why)
            return None
        model = _own_name(model, provider)
        key = (provider.lower(), model.lower(), base_url.lower())
        if key in self._seen:
            return self._seen[key][1]
        name = _name(provider, model, self.backends)
        self._seen[key] = (where, name)
        known = find_provider(provider)
        made = _backend_of(known, provider, model, base_url)
        if "base_url" not in made:
            report.leave(
                f"{where}.base_url",
                f"no address of provider {provider!r} is known: {name} stays in the chain, but is"
                " passed over as not_configured until base_url is set in its table of [backends]",
            )
        _take_key(where, entry, report, made, name, None if known is None else known.key_env)
        _take_mode(where, entry, report, made, name)
        _take_length(where, entry, report, made, name)
        _leave_rest(where, entry, _ENTRY_KEYS, report)
        self.backends[name] = made
        return name


def _why_unusable(base_url: str) -> str | None:
    if has_password(base_url):
        return "holds a user or a password; put it into a variable"
    return None if is_address(base_url) else "is not an http or https address"


def _backend_of(known: Provider | None, provider: str, model: str, base_url: str) -> Tables:
    """The table of a backend, without `base_url` where no address is known."""
    made: Tables = {
        "kind": "openai-http" if known is None else known.kind,
        "provider": provider,
        "model": model,
    }
    address = base_url or (None if known is None else known.base_url)
    if address is not None:
        made["base_url"] = address
        if base_url.endswith("/anthropic") or "api.anthropic.com" in base_url:
            made["kind"] = "anthropic-http"
    return made


def _take_key(
    where: str,
    entry: Mapping[Any, Any],
    report: Report,
    made: Tables,
    name: str,
    usual: str | None,
) -> None:
    if entry.get("api_key") not in (None, ""):
        report.leave(
            f"{where}.api_key",
            "a key is never taken by value; put it into a variable and name that",
        )
    for field in ("key_env", "api_key_env"):
        variable = _word(entry, field)
        if variable is None:
            continue
        if not _VARIABLE.fullmatch(variable):
            report.leave(f"{where}.{field}", "is not the name of a variable")
            continue
        made["credentials"] = [{"label": "main", "env": variable}]
        report.take(f"{where}.{field}", f"backends.{name}.credentials")
        return
    if usual is not None:
        made["credentials"] = [{"label": "main", "env": usual}]


def _take_mode(
    where: str, entry: Mapping[Any, Any], report: Report, made: Tables, name: str
) -> None:
    mode = _word(entry, "api_mode")
    if mode is None:
        return
    known = _MODES.get(mode.lower())
    if known is None:
        report.leave(f"{where}.api_mode", f"is none of {', '.join(sorted(_MODES))}")
    elif known == "messages":
        made["kind"] = "anthropic-http"
        report.take(f"{where}.api_mode", f"backends.{name}.kind")
    else:
        made["api_mode"] = known
        report.take(f"{where}.api_mode", f"backends.{name}.api_mode")


def _take_length(
    where: str, entry: Mapping[Any, Any], report: Report, made: Tables, name: str
) -> None:
    stated = entry.get(_LENGTH)
    if stated is None:
        return
    if isinstance(stated, bool) or not isinstance(stated, int) or stated < 1:
        report.leave(f"{where}.{_LENGTH}", "is not a number of tokens")
        return
    made["context_tokens"] = stated
    report.take(f"{where}.{_LENGTH}", f"backends.{name}.context_tokens")


def _own_name(model: str, provider: str) -> str:
    """
    Return the provider's own name of a model, which that program may write with the provider
    before.

    OpenRouter has models of its own, `openrouter/auto` say: its other names have a vendor in them.
    """
    prefix, _, rest = model.partition("/")
    is_before = prefix.lower() == provider.lower() and bool(rest)
    return rest if is_before and (prefix.lower() != "openrouter" or "/" in rest) else model


_READ = ("auxiliary", "delegation", "fallback_model", "fallback_providers", "model")
_CURES = {
    "credential_pool_strategies": "set credential_strategy in the tables of [backends] instead",
}


def _leave_others(raw: Mapping[Any, Any], report: Report) -> None:
    """Nothing that is not taken vanishes without a line."""
    for key in raw:
        if key not in _READ:
            report.leave(str(key), _CURES.get(str(key), "has no meaning here"))
    delegation = raw.get("delegation")
    for key in delegation if isinstance(delegation, Mapping) else ():
        why = "has no meaning here"
        if key in _ENTRY_KEYS:
            why = "is of subagents, which choose by role here: write a role with its chain"
        report.leave(f"delegation.{key}", why)
    if delegation is not None and not isinstance(delegation, Mapping):
        report.leave("delegation", "not a mapping")


def _word(entry: Mapping[Any, Any], key: str) -> str | None:
    value = entry.get(key)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    word = str(value).strip()
    return word if word and word.isprintable() and len(word) <= 500 else None


def _name(provider: str, model: str, backends: Tables) -> str:
    plain = name = f"{provider}/{model}"
    number = 2
    while name in backends:
        name = f"{plain}-{number}"
        number += 1
    return name
