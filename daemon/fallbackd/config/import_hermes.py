"""
The fallback chain of a Hermes `config.yaml`.

Its chain stands under any of three keys, which versions of that program have used:
`model.fallback_chain`, `fallback_providers` (a list) and `fallback_model` (a table or a list).
All are read, in this order, and equal entries are one. The chain becomes `[chains] "*"`.
"""

import re
from collections.abc import Mapping
from typing import Any

from fallbackd.config.importing import Imported, Report, Tables
from fallbackd.config.providers import find_provider, has_password, is_address

FILE_NAME = "config.yaml"
MAX_ENTRIES = 100
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
    backends: Tables = {}
    chain: list[str] = []
    seen: dict[tuple[str, ...], str] = {}
    for where, entry in _entries(raw, report):
        _take(where, entry, report, backends, chain, seen)
    _leave_primary(raw, report)
    _leave_others(raw, report)
    tables: Tables = {}
    if chain:
        tables = {"backends": backends, "chains": {"*": chain}}
    return report.made("hermes", tables)


def _entries(raw: Mapping[Any, Any], report: Report) -> list[tuple[str, Any]]:
    model = raw.get("model")
    found: list[tuple[str, Any]] = []
    if isinstance(model, Mapping):
        found += _list_of("model.fallback_chain", model.get("fallback_chain"), report)
    for key in ("fallback_providers", "fallback_model"):
        found += _list_of(key, raw.get(key), report)
    for where, _ in found[MAX_ENTRIES:]:
        report.leave(where, f"the chain has more than {MAX_ENTRIES} entries")
    return found[:MAX_ENTRIES]


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


def _take(
    where: str,
    entry: object,
    report: Report,
    backends: Tables,
    chain: list[str],
    seen: dict[tuple[str, ...], str],
) -> None:
    if not isinstance(entry, Mapping):
        report.leave(where, "not a mapping")
        return
    provider, model = _word(entry, "provider"), _word(entry, "model")
    base_url = (_word(entry, "base_url") or "").rstrip("/")
    if provider is None or model is None:
        missing = "provider" if provider is None else "model"
        report.leave(where, f"has no {missing}, and one is needed to know what would be used")
        return
    known = find_provider(provider)
    if base_url and has_password(base_url):
        report.leave(f"{where}.base_url", "holds a user or a password; put it into a variable")
        return
    if base_url and not is_address(base_url):
        report.leave(f"{where}.base_url", "is no http or https address")
        return
    key = (provider.lower(), model.lower(), base_url.lower())
    if key in seen:
        report.leave(where, f"is the same as {seen[key]}")
        return
    seen[key] = where
    name = _name(provider, model, backends)
    made: Tables = {
        "kind": "openai-http" if known is None else known.kind,
        "provider": provider,
        "model": model,
    }
    address = base_url or (None if known is None else known.base_url)
    if address is None:
        report.leave(
            f"{where}.base_url",
            f"no address of provider {provider!r} is known: {name} stays in the chain, but is"
            " passed over as not_configured until base_url is set in its table of [backends]",
        )
    else:
        made["base_url"] = address
        if base_url.endswith("/anthropic") or "api.anthropic.com" in base_url:
            made["kind"] = "anthropic-http"
    _take_key(where, entry, report, made, name, None if known is None else known.key_env)
    _take_mode(where, entry, report, made, name)
    for other in entry:
        if other not in _KNOWN:
            report.leave(f"{where}.{other}", "has no meaning here")
    backends[name] = made
    chain.append(name)
    report.take(where, f'chains."*"[{len(chain) - 1}] = {name}')


_KNOWN = ("provider", "model", "base_url", "api_key", "key_env", "api_key_env", "api_mode")


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
            report.leave(f"{where}.{field}", "is no name of a variable")
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


def _leave_primary(raw: Mapping[Any, Any], report: Report) -> None:
    model = raw.get("model")
    primary = model if isinstance(model, str) else None
    if isinstance(model, Mapping):
        found = model.get("default") or model.get("model") or model.get("name")
        primary = found if isinstance(found, str) else None
    if primary is not None:
        report.leave("model", "the primary is what its caller asks for; it heads no chain here")


_READ = ("model", "fallback_providers", "fallback_model")
_CURES = {
    "credential_pool_strategies": "set credential_strategy in the tables of [backends] instead",
}
_ABOUT_PROVIDERS = re.compile(r"provider|credential|fallback|model|routing|api_key|base_url", re.I)


def _leave_others(raw: Mapping[Any, Any], report: Report) -> None:
    """The keys that are about providers; what the program does otherwise is none of ours."""
    for key in raw:
        if isinstance(key, str) and key not in _READ and _ABOUT_PROVIDERS.search(key):
            report.leave(key, _CURES.get(key, "is about providers, and is not taken over"))


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
