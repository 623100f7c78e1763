"""What a program's exit status says by itself, and where its end says more than its words."""

import re

from fallbackd.classify.lines import SIGNAL_EXITS, Hit
from fallbackd.classify.rules import Rule
from fallbackd.classify.stack_frames import has_frames
from fallbackd.core.failures import Reason
from fallbackd.core.protocol import Evidence
from fallbackd_conversations.redact import strip_escapes

_EXITS: dict[int, Reason] = {
    75: Reason.RATE_LIMIT,
    76: Reason.AUTH,
    78: Reason.NOT_CONFIGURED,
    126: Reason.PERMISSION,
    127: Reason.NOT_INSTALLED,
}


def is_limit_exit(evidence: Evidence) -> bool:
    return evidence.exit_code == 75 and evidence.signal is None


def special_exit(evidence: Evidence) -> Hit | None:
    """Statuses with a meaning; after an answer 126 and 127 belong to a tool of the agent."""
    code = evidence.exit_code
    if code is None or evidence.signal is not None or code not in _EXITS:
        return None
    if code == 75 or (evidence.answered and code in (126, 127)):
        return None  # 75 lets the text say which limit
    return _exit_hit(_EXITS[code], f"exit-{code}", evidence)


def exit_alone(evidence: Evidence, rules: tuple[Rule, ...]) -> Hit | None:
    code = evidence.exit_code
    if evidence.signal is not None:
        return _exit_hit(Reason.CRASH, "signal", evidence)
    if not code:
        return _silent_end(evidence)
    vendor = next((r for r in rules if code in r.exits), None)
    if vendor is not None:
        return Hit(rule=vendor, text=evidence.text, confidence="exit_code")
    if code == 75:
        return _exit_hit(Reason.RATE_LIMIT, "exit-75", evidence)
    if code in SIGNAL_EXITS or code < 0:
        return _exit_hit(Reason.CRASH, "signal", evidence)
    if _is_asking(evidence):
        return _exit_hit(Reason.APPROVAL_REQUIRED, "asks", evidence)
    if _has_own_trace(evidence):
        return _exit_hit(Reason.CRASH, "trace", evidence)
    if evidence.answered:
        return _exit_hit(Reason.TASK_FAILED, "exit-after-answer", evidence)
    return _exit_hit(Reason.UNKNOWN, "exit", evidence)


def _silent_end(evidence: Evidence) -> Hit | None:
    """A program that ended well, or of which no end is known, fails where it has said nothing."""
    is_mute = evidence.stream == "stdout" and not evidence.text.strip() and not evidence.answered
    if evidence.empty or (evidence.exit_code == 0 and is_mute):
        return _exit_hit(Reason.EMPTY_RESULT, "empty", evidence)
    return None


MAX_TRACE_CHARS = 16_384


def _has_own_trace(evidence: Evidence) -> bool:
    return evidence.stream == "stderr" and has_frames(evidence.text[-MAX_TRACE_CHARS:])


_QUESTION = re.compile(
    r"\b(?:allow|apply|approve|confirm|continue|execute|permit|proceed|run|trust)\b.{0,200}\?\s{0,3}"
    r"[(\[]y(?:es)?/no?(?:/[^)\]]{1,20})?[)\]]\s{0,3}[:>]?\s{0,3}$",
    re.I,
)


def is_plain_end(evidence: Evidence) -> bool:
    """A question for leave, or a trace on a program's own stderr: the end says what it was."""
    if not evidence.exit_code:
        return False
    return _is_asking(evidence) or _has_own_trace(evidence)


def _is_asking(evidence: Evidence) -> bool:
    """The last that it printed asks for leave: its input ended where the answer was read."""
    if evidence.stream not in ("stdout", "stderr", "unknown"):
        return False
    last = strip_escapes(evidence.text[-1000:]).rstrip().rpartition("\n")[2]
    return _QUESTION.search(last) is not None


def _exit_hit(reason: Reason, name: str, evidence: Evidence) -> Hit:
    return Hit(rule=Rule(id=name, reason=reason), text=evidence.text, confidence="exit_code")
