"""
A shortage of this machine: descriptors, memory, disk, threads. No backend is to blame for it,
whichever program on this machine reports it.
"""

import re

from fallbackd.classify.lines import Hit
from fallbackd.classify.rules import Rule
from fallbackd.core.failures import Reason
from fallbackd.core.protocol import Evidence

SHORTAGE = "shortage"
_CODES = frozenset({"EMFILE", "ENFILE", "ENOMEM", "ENOSPC", "EDQUOT"})
_STATED = re.compile(
    r"\b(?:EMFILE|ENFILE|ENOMEM|ENOSPC|EDQUOT)\b|too many open files|no space left on device"
    r"|disk quota exceeded|cannot allocate memory|can't start new thread"
    r"|unable to create (?:new )?native thread"
    r"|(?:fork|thread|spawn)\b.{0,80}resource temporarily unavailable",
    re.I,
)
_LAST_LINES, _MAX_CHARS = 4, 2_000
_RULE = Rule(id=SHORTAGE, reason=Reason.CRASH, detail=SHORTAGE, marks=False, retry=False)


def shortage_hit(hit: Hit | None, evidence: Evidence) -> Hit | None:
    """
    The shortage that a program on this machine failed of; None: it failed of something else, or
    another machine says so.

    Args:
        hit: What the evidence was found to say; None: nothing that is known.
    """
    if evidence.http_status is not None or evidence.stream == "http" or evidence.exit_code == 0:
        return None
    if evidence.code in _CODES:
        return Hit(rule=_RULE, text=evidence.text, confidence="structured")
    is_guess = hit is None or hit.rule.id.startswith("model/")
    text = _end_of(evidence.text) if is_guess or hit is None else hit.text[:_MAX_CHARS]
    stated = _STATED.search(text)
    if stated is None:
        return None
    return Hit(rule=_RULE, text=text, confidence="text" if hit is None else hit.confidence)


def _end_of(text: str) -> str:
    return "\n".join(text.rstrip()[-_MAX_CHARS:].split("\n")[-_LAST_LINES:])
