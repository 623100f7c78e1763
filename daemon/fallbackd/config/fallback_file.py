"""
`model-fallback.json` of opencode projects, and `rate-limit-fallback.json`, its older form.

Read where they lie, field by field: what cannot be used is left out and said, the rest holds.
"""

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field, structs

from fallbackd.backends import KINDS
from fallbackd.classify.rules import Rule
from fallbackd.config.fields import Problem, Say, guess, join, problem, show
from fallbackd.config.importing import Imported, Report, Tables
from fallbackd.core.ids import BackendId
from fallbackd.core.opencode.session import NAMES
from fallbackd.core.policy import REASONS, Entry, Project, Role, implicit_backend
from fallbackd.core.protocol import Evidence
from fallbackd.core.reasons import Reason, ReasonPolicy

NEWER, OLDER = NAMES
ANY = "*"
LOGS = ".local/share/opencode/logs"
"""Below the home directory: where users of these files look for the log."""

CATEGORIES: Mapping[str, tuple[Reason, ...]] = {
    "rate_limit": (Reason.RATE_LIMIT, Reason.USAGE_LIMIT),
    "quota_exceeded": (Reason.USAGE_LIMIT, Reason.BILLING),
    "5xx": (Reason.SERVER_ERROR,),
    "timeout": (Reason.TIMEOUT, Reason.STALLED, Reason.NETWORK),
    "overloaded": (Reason.OVERLOADED,),
}
WINDOWED = (Reason.RATE_LIMIT, Reason.USAGE_LIMIT, Reason.BILLING)
"""Reasons whose window `cooldownMs` is."""
LEAST_MS = 10_000
MOST_MS = 604_800_000
RETRY_ORIGINAL_MS = 900_000
"""`retryOriginalAfterMs`, where a file does not say it."""
_TOP = (
    "enabled", "defaults", "agents", "patterns", "logging", "logLevel", "logPath", "agentDirs",
    "$schema",
)  # fmt: skip
_DEFAULTS = ("fallbackOn", "cooldownMs", "retryOriginalAfterMs", "maxFallbackDepth")
_OLD_TOP = ("fallbackModel", "cooldownMs", "enabled", "patterns", "logging", "$schema")


class Fallbacks(Struct, frozen=True, kw_only=True):
    """The settings of one file."""

    enabled: bool = True
    chains: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """`provider/model` ids by agent; `*` for the others."""
    fallback_on: frozenset[Reason] | None = None
    window_s: float | None = None
    healthy_after_s: float | None = None
    max_fallback_depth: int | None = None
    rules: tuple[Rule, ...] = ()
    logging: bool = True
    log_level: str = "info"
    log_path: str | None = None
    agent_dirs: tuple[str, ...] = ()
    is_older: bool = False
    is_valid: bool = True
    warnings: tuple[Problem, ...] = ()

    def project(self, agents: Mapping[str, tuple[str, ...]]) -> Project:
        """
        Return the same settings as decisions read them.

        Args:
            agents: Chains of agent files. What stands in the file itself goes before them.
        """
        chains = {ANY: (), **agents, **self.chains}
        return Project(
            enabled=self.enabled,
            roles={
                name: Role(
                    name=name,
                    chain=tuple(Entry(backend=BackendId(one)) for one in models),
                    fallback_on=self.fallback_on,
                    max_fallback_depth=self.max_fallback_depth,
                    return_policy="new_session",
                )
                for name, models in chains.items()
            },
            reasons=self._windows(),
        )

    def _windows(self) -> dict[Reason, ReasonPolicy]:
        if self.window_s is None and self.healthy_after_s is None:
            return {}
        healthy_s = self.healthy_after_s
        if healthy_s is None:
            healthy_s = RETRY_ORIGINAL_MS / 1000
        made = {}
        for reason in WINDOWED:
            plain = REASONS[reason]
            window_s = plain.window_s if self.window_s is None else self.window_s
            made[reason] = structs.replace(
                plain,
                window_s=window_s,
                max_window_s=max(plain.max_window_s, window_s),
                cooldown_s=max(0.0, healthy_s - window_s),
            )
        return made


def read_fallbacks(text: str, *, path: str, home: str) -> Fallbacks:
    """
    Args:
        path: Of the file, for messages.
        home: Real path of the home directory.
    """
    warnings: list[Problem] = []

    def say(where: str, message: str) -> None:
        warnings.append(problem(f"{path}: {where}" if where else path, message))

    try:
        raw = json.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError):
        say("", "is not valid JSON; none of it is used.")
        return Fallbacks(is_valid=False, warnings=tuple(warnings))
    if not isinstance(raw, dict):
        say("", f"holds {show(raw)}, not an object; none of it is used.")
        return Fallbacks(is_valid=False, warnings=tuple(warnings))
    is_older = isinstance(raw.get("fallbackModel"), str)
    given = _migrated(raw, say) if is_older else raw
    found = _read(given, say, home=home)
    if is_older:
        say("", f"is of the older form; it was migrated while it was read. {NEWER} is the new one.")
    return structs.replace(found, is_older=is_older, warnings=tuple(warnings))


def _migrated(raw: Mapping[str, Any], say: Say) -> dict[str, Any]:  # any JSON
    for key in raw:
        if key not in _OLD_TOP:
            say(key, "is not a known key; it has no effect.")
    made: dict[str, Any] = {
        key: raw[key] for key in ("enabled", "patterns", "logging") if key in raw
    }
    made["agents"] = {ANY: {"fallbackModels": [raw["fallbackModel"]]}}
    if "cooldownMs" in raw:
        made["defaults"] = {"cooldownMs": raw["cooldownMs"]}
    return made


def _read(raw: Mapping[str, Any], say: Say, *, home: str) -> Fallbacks:
    _say_unknown(raw, _TOP, "", say)
    given: dict[str, Any] = {}
    for key in ("enabled", "logging"):
        if isinstance(raw.get(key), bool):
            given[key] = raw[key]
        elif key in raw:
            say(key, f"{show(raw[key])}: must be true or false; true is used.")
    given |= _defaults(raw.get("defaults", {}), say)
    if "agents" in raw:
        given["chains"] = _agents(raw["agents"], say)
    if "patterns" in raw:
        given["rules"] = _patterns(raw["patterns"], say)
    if raw.get("logLevel") in ("debug", "info"):
        given["log_level"] = raw["logLevel"]
    elif "logLevel" in raw:
        say("logLevel", f'{show(raw["logLevel"])}: must be "debug" or "info"; info is used.')
    if (place := _inside(raw.get("logPath"), home)) is not None:
        given["log_path"] = place
    elif "logPath" in raw:
        say(
            "logPath",
            f"{show(raw['logPath'])}: must lie inside $HOME/{LOGS}, since agents may write this"
            " file; the default is used. `log_path` in [opencode] of config.toml names any place.",
        )
    if "agentDirs" in raw:
        given["agent_dirs"] = _texts(raw["agentDirs"], "agentDirs", say)
    return Fallbacks(**given)


def _defaults(raw: object, say: Say) -> dict[str, Any]:
    if not isinstance(raw, dict):
        say("defaults", f"{show(raw)}: must be an object; the defaults are used.")
        return {}
    given: dict[str, Any] = {}
    _say_unknown(raw, _DEFAULTS, "defaults.", say)
    for key, name in (("cooldownMs", "window_s"), ("retryOriginalAfterMs", "healthy_after_s")):
        value: Any = raw.get(key)
        if _is_number(value) and LEAST_MS <= value <= MOST_MS:
            given[name] = value / 1000
        elif key in raw:
            say(
                f"defaults.{key}",
                f"{show(value)}: must be a number of milliseconds from {LEAST_MS} to {MOST_MS};"
                " the default is used.",
            )
    depth = raw.get("maxFallbackDepth")
    if isinstance(depth, int) and not isinstance(depth, bool) and 1 <= depth <= 10:
        given["max_fallback_depth"] = depth
    elif "maxFallbackDepth" in raw:
        message = f"{show(depth)}: must be a whole number from 1 to 10; the default 3 is used."
        say("defaults.maxFallbackDepth", message)
    if "fallbackOn" in raw:
        given["fallback_on"] = _categories(raw["fallbackOn"], say)
    return given


def _say_unknown(raw: Mapping[str, Any], known: tuple[str, ...], prefix: str, say: Say) -> None:
    for key in raw:
        if key not in known:
            say(f"{prefix}{key}", "is not a known key; it has no effect." + guess(key, known))


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, int) or math.isfinite(value)


def _categories(raw: object, say: Say) -> frozenset[Reason] | None:
    found: set[Reason] = set()
    words = _texts(raw, "defaults.fallbackOn", say)
    for number, word in enumerate(words):
        if word in CATEGORIES:
            found.update(CATEGORIES[word])
        else:
            near = guess(word, CATEGORIES)
            say(f"defaults.fallbackOn[{number}]", f"{show(word)} is not a category.{near}")
    if words and not found:
        say("defaults.fallbackOn", "names no category that is known; the default is used.")
        return None
    return frozenset(found) if isinstance(raw, list) else None


def _agents(raw: object, say: Say) -> dict[str, tuple[str, ...]]:
    if not isinstance(raw, dict):
        say("agents", f"{show(raw)}: must be an object; it is left out.")
        return {}
    chains: dict[str, tuple[str, ...]] = {}
    for name, value in raw.items():
        here = join("agents", name) if name != ANY else "agents.*"
        if not (1 <= len(name) <= 128 and name.isprintable()):
            say(here, "must have a name of 1 to 128 printable characters; it is left out.")
        elif not isinstance(value, dict) or "fallbackModels" not in value:
            say(here, "has no fallbackModels; it is left out.")
        else:
            chain = read_models(value["fallbackModels"], f"{here}.fallbackModels", say)
            if chain:
                chains[name] = chain
    return chains


def read_models(raw: object, path: str, say: Say) -> tuple[str, ...]:
    """The usable ones of a list of `provider/model` ids. A model may have slashes of its own."""
    if not isinstance(raw, list) or not raw:
        say(path, f'{show(raw)}: must be a list of models: ["anthropic/claude-sonnet-4"].')
        return ()
    found: dict[str, None] = {}
    for value in raw:
        if not isinstance(value, str) or implicit_backend(value) is None:
            say(path, f"{show(value)} is not a model of the form provider/model; it is left out.")
        else:
            found[value] = None
    return tuple(found)


def _patterns(raw: object, say: Say) -> tuple[Rule, ...]:
    """
    Words that mean a limit, where nothing better is known: they are short, and stand in errors of
    every kind. What they mean in particular says the classifier.
    """
    return tuple(
        Rule(
            id=f"opencode-pattern-{number}",
            reason=_meaning(text),
            pattern="(?i)" + (rf"\b{text}\b" if text.isdigit() else re.escape(text)),
            streams=("jsonl", "http", "stderr", "unknown"),
            anywhere=True,
            yields=True,
            is_users=True,
        )
        for number, text in enumerate(_texts(raw, "patterns", say))
        if text.strip()
    )


def _meaning(text: str) -> Reason:
    status = int(text) if text.isdigit() and len(text) == 3 else None
    evidence = Evidence(text=text, stream="jsonl", http_status=status)
    from fallbackd.classify.classifier import classify  # slow to load, needed by few files

    found = classify(evidence, KINDS["opencode"].rules, now=0.0)
    return Reason.UNKNOWN if found is None else found.reason


def _texts(raw: object, path: str, say: Say) -> tuple[str, ...]:
    if not isinstance(raw, list):
        say(path, f"{show(raw)}: must be a list of texts; it is left out.")
        return ()
    found = []
    for number, value in enumerate(raw[:1000]):
        if isinstance(value, str) and 0 < len(value) <= 1000:
            found.append(value)
        else:
            say(f"{path}[{number}]", f"{show(value)}: must be a text; it is left out.")
    return tuple(found)


def _inside(raw: object, home: str) -> str | None:
    """The absolute path of a file in the directory of logs, by its words: nothing is looked up."""
    if not isinstance(raw, str) or not raw.isprintable() or not home.startswith("/"):
        return None
    path = f"{home}/{raw[2:]}" if raw.startswith("~/") else raw
    folder, _, name = path.rpartition("/")
    return path if folder == f"{home.rstrip('/')}/{LOGS}" and name not in ("", ".", "..") else None


def read_opencode_file(text: str, *, path: str, home: str) -> Imported:
    """
    Args:
        path: Of the file, for the report.
        home: Real path of the home directory.
    """
    found = read_fallbacks(text, path=path, home=home)
    report = Report()
    tables: Tables = {}
    if found.is_older:
        report.take(OLDER, "migrated from the older form")
    _roles(found, tables, report)
    for reason, policy in found.project({}).reasons.items():
        tables.setdefault("policy", {})[reason.value] = {
            "window_s": policy.window_s,
            "max_window_s": policy.max_window_s,
            "cooldown_s": policy.cooldown_s,
        }
        report.take("defaults.cooldownMs", f"policy.{reason.value}")
    if not found.enabled:
        tables["opencode"] = {"enabled": False}
        report.take("enabled", "opencode.enabled")
    if found.rules:
        tables["signatures"] = [
            {
                "id": one.id,
                "kind": "opencode",
                "pattern": one.pattern,
                "reason": one.reason.value,
                "yields": one.yields,
            }
            for one in found.rules
        ]
        report.take("patterns", "signatures")
    if found.log_path is not None:
        tables.setdefault("opencode", {})["log_path"] = found.log_path
        report.take("logPath", "opencode.log_path")
    for warning in found.warnings:
        report.leave(warning.path, warning.message)
    return report.made("opencode", tables)


def _roles(found: Fallbacks, tables: Tables, report: Report) -> None:
    limits: Tables = {"return_to_better": {"policy": "new_session"}}
    if found.fallback_on is not None:
        limits["fallback_on"] = sorted(one.value for one in found.fallback_on)
    if found.max_fallback_depth is not None:
        limits["max_fallback_depth"] = found.max_fallback_depth
    for name, models in found.chains.items():
        tables.setdefault("roles", {})[name] = {"chain": list(models), **limits}
        report.take(f"agents.{name}", f"roles.{name}")
