"""What a daemon that drains or ends waits for, as text for people."""

from __future__ import annotations

import time

from fallbackd_client.cli.ids import shortened
from fallbackd_client.cli.output import Style, duration, table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallbackd_client.calls import Json


def _cells(one: dict[str, Json], at: float) -> list[object]:
    return [
        one.get("state", "?"),
        None if one.get("created_at") is None else duration(at - one["created_at"]),
        one.get("active") or one.get("requested"),
        one.get("phase"),
    ]


def waits_for_view(found: dict[str, Json], style: Style, *, nothing: str, then: str) -> str:
    """
    Args:
        nothing: What is said where nothing runs.
        then: How to stop waiting, or to end what runs.
    """
    lines = found.get("waits_for") or []
    count = found.get("running") or 0
    counts = ((count, "delegation"), (found.get("calls") or 0, "gateway call"))
    what = " and ".join(f"{some} {one}{'s' * (some != 1)}" for some, one in counts if some)
    if not what:
        return nothing
    shown = [f"{found.get('state', 'draining')}; waiting for {what} to end"]
    if lines:
        at = time.time()
        short = shortened([str(one.get("delegation", "?")) for one in lines], is_part=True)
        rows = [[name, *_cells(one, at)] for name, one in zip(short, lines, strict=True)]
        shown += ["", table(["ID", "STATE", "SINCE", "BACKEND", "PHASE"], rows, style)]
        if count > len(lines):
            shown.append(f"… and {count - len(lines)} more")
        shown.append("")
    return "\n".join([*shown, style.paint(then, "dim")])
