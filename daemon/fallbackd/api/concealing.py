"""What a process inside an attempt is shown of an answer: no paths and no accounts of others."""

from typing import TypeVar

from msgspec import Struct, structs

from fallbackd_client.wire.health_shapes import HealthEntry
from fallbackd_client.wire.methods.callers import ReportResult, ResolveResult
from fallbackd_client.wire.methods.daemon import DaemonStatus, StatusResult
from fallbackd_client.wire.shapes import CandidateVerdict, Failure

T = TypeVar("T")
_OF_PERSONS: dict[type[Struct], tuple[str, ...]] = {
    CandidateVerdict: ("detail", "credential", "scope", "fix"),
    Failure: ("scope",),
    ResolveResult: ("credential", "turn"),
    ReportResult: ("turn",),
    HealthEntry: ("detail", "note", "seen_by", "scopes", "credentials"),
    DaemonStatus: (
        *("config_path", "config_errors", "config_warnings", "state_dir", "store", "troubles"),
        "path",
    ),
    StatusResult: ("programs", "toolchains", "readiness", "plans", "share"),
}
"""Fields that keep their defaults for such a caller."""


def concealed(value: T) -> T:
    """The same without them, at any depth."""
    found: object = value
    match value:
        case Struct():
            hidden = _OF_PERSONS.get(type(value), ())
            plain = {one.name: one for one in structs.fields(type(value))}
            changed = {
                name: plain[name].default_factory()
                if callable(plain[name].default_factory)
                else plain[name].default
                for name in hidden
            }
            for name in plain.keys() - changed.keys():
                changed[name] = concealed(getattr(value, name))
            found = structs.replace(value, **changed)
        case tuple():
            found = tuple(concealed(one) for one in value)
        case dict():
            found = {name: concealed(one) for name, one in value.items()}
    return found  # type: ignore[return-value] # of the same type
