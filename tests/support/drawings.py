"""
The drawings of ARCHITECTURE.md and of the documentation, made from the code.

    python -m tests.support.drawings        writes them anew
"""

import re
from collections.abc import Callable
from pathlib import Path

from contrib.docs.reference import reason_policies
from msgspec import structs

from fallbackd.core import health
from fallbackd.core.failures import make_failure
from fallbackd.core.health import Health, Pause, view
from fallbackd.core.ids import ScopeId
from fallbackd.core.policy import REASONS
from fallbackd.core.reasons import Reason
from fallbackd.core.work.transitions import TRANSITIONS

ROOT = Path(__file__).parent.parent.parent
T0 = 1_800_000_000.0
NOW = T0 + 100
SCOPE = ScopeId("backend:a")


def delegation_states() -> str:
    """The table by which `apply` moves a delegation."""
    lines = ["| State | may become |", "| --- | --- |"]
    for state, found in TRANSITIONS.items():
        lines.append(
            f"| {state} | {', '.join(one for one in TRANSITIONS if one in found) or '–'} |"
        )
    return "\n".join(lines)


def _failed(record: Health, reason: Reason) -> Health:
    failure = make_failure(reason, now=NOW)
    return health.fail(
        record, SCOPE, failure, REASONS[reason], started_at=NOW - 1, now=NOW, luck=0.5
    )


def _out(reason: Reason, *, ended: bool) -> Health:
    """A record that was marked at T0, its window over or not."""
    found = health.fail(
        None,
        SCOPE,
        make_failure(reason, now=T0),
        REASONS[reason],
        started_at=T0 - 1,
        now=T0,
        luck=0.5,
    )
    assert found.outage is not None
    until_at = NOW - 1 if ended else NOW + 1000
    return structs.replace(
        found, outage=structs.replace(found.outage, until_at=until_at, cooldown_s=50.0)
    )


STATES = {
    "healthy": Health(scope=SCOPE),
    "rate_limited": _out(Reason.RATE_LIMIT, ended=False),
    "broken": _out(Reason.AUTH, ended=False),
    "cooldown": _out(Reason.RATE_LIMIT, ended=True),
    "paused": Health(scope=SCOPE, pause=Pause(since_at=T0)),
}
"""One record for each state, at `NOW`."""
_END = {"rate_limited": NOW + 1000, "broken": NOW + 1000, "cooldown": NOW + 50}


def _after(record: Health, at: float) -> str:
    seen = view(record, now=at)
    return seen.state + (" (unproven)" if seen.unproven and seen.state == "healthy" else "")


EVENTS: dict[str, Callable[[str, Health], str]] = {
    "failure that passes": lambda _, one: _after(_failed(one, Reason.SERVER_ERROR), NOW),
    "failure to repair": lambda _, one: _after(_failed(one, Reason.AUTH), NOW),
    "success": lambda _, one: _after(health.succeed(one, started_at=NOW - 1), NOW),
    "its time is over": lambda state, one: _after(one, _END.get(state, NOW)),
    "a person clears": lambda _, one: _after(health.clear(one), NOW),
    "a person pauses": lambda _, one: _after(structs.replace(one, pause=Pause(since_at=NOW)), NOW),
    "a person resumes": lambda _, one: _after(structs.replace(one, pause=None), NOW),
}


def health_states() -> str:
    """What each event makes of a scope in each state, by running the machine."""
    lines = ["| State | " + " | ".join(EVENTS) + " |", "| --- " * (len(EVENTS) + 1) + "|"]
    for state, record in STATES.items():
        assert view(record, now=NOW).state == state
        found = (event(state, record) for event in EVENTS.values())
        lines.append(f"| {state} | " + " | ".join("–" if one == state else one for one in found))
        lines[-1] += " |"
    return "\n".join(lines)


DRAWINGS = {
    "states of a delegation": delegation_states,
    "states of a scope": health_states,
    "windows of reasons": lambda: reason_policies().rstrip(),
}
PAGES = {
    ROOT / "ARCHITECTURE.md": ("states of a delegation", "states of a scope"),
    ROOT / "docs" / "failover.md": ("states of a delegation", "states of a scope"),
    ROOT / "docs" / "words.md": ("windows of reasons",),
}
"""The drawings that each page has."""


def drawn(name: str) -> str:
    return f"<!-- drawn: {name} -->\n{DRAWINGS[name]()}\n<!-- end -->"


def redrawn(page: str) -> str:
    for name in DRAWINGS:
        pattern = rf"<!-- drawn: {name} -->.*?<!-- end -->"
        page = re.sub(pattern, lambda _, name=name: drawn(name), page, flags=re.DOTALL)
    return page


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(redrawn(page.read_text()))
