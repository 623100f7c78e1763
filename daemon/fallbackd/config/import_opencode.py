"""What a `model-fallback.json` of opencode becomes here, as tables with a report."""

from fallbackd.config.fallback_file import OLDER, Fallbacks, read_fallbacks
from fallbackd.config.importing import Imported, Report, Tables


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
    for problem in found.warnings:
        report.leave(problem.path, problem.message)
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
