"""
What a chain holds now. The one way to look: for a delegation, for a caller that makes the calls
itself, and for a message in a session of an opencode server.
"""

from collections.abc import Callable

from msgspec import Struct, structs

from fallbackd.core.case_view import CaseView
from fallbackd.core.policy import Entry
from fallbackd.core.routing.looking import Request
from fallbackd.core.routing.resolve import Resolved
from fallbackd.core.turn import Turn
from fallbackd.core.work.outages import Out, guard


class Search(Struct, frozen=True, kw_only=True):
    candidates: tuple[Entry, ...]
    request: Request
    resolved: Resolved
    out: Out | None
    """The service that is out, where the role does not go elsewhere by itself."""


def search(
    case: CaseView,
    turn: Turn,
    candidates: tuple[Entry, ...],
    request: Request,
    *,
    may_doubt: Callable[[Resolved], bool] | None = None,
) -> Search:
    """
    Args:
        may_doubt: Whether a stated time may be doubted where no candidate is usable: then one early
            trial is made, unless the role wants a word about outages. None: never.
    """
    resolved, out = guard(case, turn, candidates, request, case.resolve(candidates, request))
    if (
        out is None
        and resolved.choice is None
        and turn.on_outage == "fallback"
        and may_doubt is not None
        and may_doubt(resolved)
    ):
        resolved = case.resolve(candidates, structs.replace(request, last_resort=True))
    return Search(candidates=candidates, request=request, resolved=resolved, out=out)
