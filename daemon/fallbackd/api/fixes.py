"""What helps a candidate that waiting does not help."""

from collections.abc import Sequence

from fallbackd.backends import KINDS
from fallbackd.core import reasons
from fallbackd.core.reasons import Reason
from fallbackd.core.records import Verdict
from fallbackd_client.wire.shapes import CandidateVerdict, Fix

_WITH = " with: "
_DISABLED = Fix(kind="configuration", text="enable it in the configuration")
_BY_WORD = {one.value: one.row.fix for one in Reason if one.row.fix is not None}


def fix_of(one: Verdict, failed: Reason | None = None) -> Fix | None:
    """
    Args:
        failed: Why it has failed here, which counts more than its state.

    Returns:
        None: Waiting helps, or it needs no help.
    """
    if failed is not None:
        return _worded(failed.row.fix, one)
    if one.verdict == "disabled":
        return _DISABLED
    return _worded(_BY_WORD.get(one.reason or "") or _BY_WORD.get(one.verdict), one)


def _worded(fix: reasons.Fix | None, one: Verdict) -> Fix | None:
    if fix is None:
        return None
    kind = KINDS.get(one.kind)
    text = fix.text
    if kind is not None and fix.command == "login" and kind.setup.login:
        account = f"{one.account} " if one.account else ""
        text = f"log in{_WITH}{account}{kind.setup.login}"
    elif kind is not None and fix.command == "install" and kind.setup.install:
        text = f"install it{_WITH}{kind.setup.install}"
    return Fix(kind=fix.kind, text=text)


def none_installed(candidates: Sequence[CandidateVerdict], path: str | None) -> str | None:
    """
    What was looked for, where, and how to install one.

    Returns:
        None: Something else is in the way too.
    """
    if not candidates or any(one.verdict != "not_installed" for one in candidates):
        return None
    names = list(dict.fromkeys(one.backend for one in candidates))
    where = f"on the daemon's PATH ({path or 'not set'})"
    command = _first_command(candidates)
    if len(names) == 1:
        return f"{names[0]} is not {where}; install it" + (_WITH + command if command else "")
    example = f", for example{_WITH}{command}" if command else ""
    return f"none of {', '.join(names)} is {where}; install one{example}"


def _first_command(candidates: Sequence[CandidateVerdict]) -> str:
    known = (one.fix.text.partition(_WITH)[2] for one in candidates if one.fix is not None)
    return next((one for one in known if one), "")
