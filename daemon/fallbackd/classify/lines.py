"""
Lines of a program's output to the rule that fits one of them.

A line counts that *is* an error: it begins with a rule's pattern, opens like an error, or stands
behind a vendor's own mark of one, in a channel where that vendor prints errors.
"""

import re
from collections.abc import Iterable
from functools import lru_cache

from msgspec import Struct

from fallbackd.classify.common_rules import COMMON_RULES, GENERAL_FAULTS
from fallbackd.classify.error_json import Said, is_json, read_embedded
from fallbackd.classify.error_lines import MAX_BLOCK_CHARS, MAX_BLOCK_LINES, Line, candidate_lines
from fallbackd.classify.line_shapes import (
    ADDRESSED,
    LEAD,
    PROSE,
    TYPE_INSIDE,
    TYPE_NAME,
    first_sentence,
    is_report,
    is_statement,
    opens_error,
    opens_like_error,
    status_in,
    type_names,
)
from fallbackd.classify.other_programs import is_of_another
from fallbackd.classify.redact import strip_escapes
from fallbackd.classify.rules import Rule, compiled
from fallbackd.classify.stack_frames import without_frames
from fallbackd.core.failures import Confidence, Reason
from fallbackd.core.protocol import Evidence


class Hit(Struct, frozen=True, kw_only=True):
    rule: Rule
    text: str
    confidence: Confidence
    said: Said | None = None
    score: float = 1.0
    """How sure the reason is, 0 to 1. A structure and an exit status are taken as they are."""


MAX_NOTICE_CHARS = 500
"""An answer that is a limit notice is short; whatever is longer is an answer."""

# Statuses that a shell makes of a signal (128 + n), for those that end programs. 145 and above
# are left out: a CLI may fold an HTTP status into them.
SIGNAL_EXITS = frozenset(128 + n for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15))


def first_fit(said: Said, rules: Iterable[Rule]) -> Rule | None:
    """Wording before status: statuses that stand alone are at the end of the common rules."""
    lines = said.lines
    for rule in rules:
        if rule.opens:
            continue
        if rule.codes and any(w in rule.codes for w in said.words):
            return rule
        if rule.pattern:
            status_fits = not rule.statuses or said.status in rule.statuses
            if status_fits and any(compiled(rule).search(line) for line in lines):
                return rule
        elif rule.statuses and said.status in rule.statuses:
            return rule
    return None


def text_hit(evidence: Evidence, rules: tuple[Rule, ...]) -> Hit | None:
    if evidence.http_status is not None and evidence.http_status < 400:
        return None  # an answer that came, whatever it speaks of
    if evidence.exit_code == 0 or not evidence.text:
        return _notice(evidence, rules) or _despite_success(evidence, rules)
    signalled = evidence.signal is not None or evidence.exit_code in SIGNAL_EXITS
    hit = _vendor_line(evidence, rules)
    if hit is None and not signalled and evidence.stream in ("stderr", "unknown", "jsonl"):
        hit = _common_line(evidence)
    if hit is None and evidence.exit_code is not None and not signalled:
        hit = _notice(evidence, rules)
    return hit


@lru_cache(maxsize=8)
def lines_of(text: str, stream: str) -> tuple[Line, ...]:
    if len(text) > MAX_HEAD_CHARS + MAX_TAIL_CHARS:
        # Of a long output, as of many lines, its beginning and its end count.
        text = f"{text[:MAX_HEAD_CHARS]}\n\n{text[-MAX_TAIL_CHARS:].partition(NEWLINE)[2]}"
    plain = strip_escapes(text).replace("’", "'").replace("\r\n", "\n").replace("\r", "\n")
    return candidate_lines(without_frames(plain), mixed=stream == "unknown")


NEWLINE = "\n"
MAX_HEAD_CHARS, MAX_TAIL_CHARS = 16_384, 65_536


def _vendor_line(
    evidence: Evidence, rules: tuple[Rule, ...], *, only_despite_success: bool = False
) -> Hit | None:
    """The last line that a rule of this vendor (or user) knows in a channel named by the rule."""
    heard = [
        r
        for r in rules
        if r.pattern and _is_heard(r, evidence.stream)
        and not (only_despite_success and r.requires_exit)
    ]  # fmt: skip
    openers = [r for r in heard if r.opens]
    heard = [r for r in heard if not r.opens]
    weak: Hit | None = None
    lines = lines_of(evidence.text, evidence.stream)
    for at in range(len(lines) - 1, -1, -1):
        line = lines[at].text
        opener = next((r for r in openers if compiled(r).match(line)), None)
        if opener is not None:
            block = _block(lines, at)
            statement = block[_end_of_match(opener, line) :].strip() or line
            said = _said_in(statement)
            rule = first_fit(said, (*rules, *COMMON_RULES))
            if rule is not None and (rule.pattern or rule.codes):
                return Hit(rule=rule, text=block, confidence="text", said=said)
            if rule is not None:
                weak = weak or Hit(rule=rule, text=block, confidence="text", said=said)
            elif weak is None and opener.reason is not Reason.UNKNOWN:
                weak = Hit(rule=opener, text=line, confidence="text")
            continue
        for rule in heard:
            found = compiled(rule).search(line)
            if found and (rule.anywhere or found.start() == 0 or opens_error(lines[at])):
                return Hit(rule=rule, text=_block(lines, at), confidence="text")
    return weak


def _block(lines: tuple[Line, ...], at: int) -> str:
    """The line and those that continue it: terminals wrap sentences, JSON spreads over lines."""
    parts = [lines[at].text]
    size = len(parts[0])
    for line in lines[at + 1 : at + MAX_BLOCK_LINES]:
        size += len(line.text)
        if line.begins or size > MAX_BLOCK_CHARS or opens_like_error(line.text):
            break
        parts.append(line.text)
    return "\n".join(parts)


def _said_in(text: str) -> Said:
    """What a line states, with the words and the status of JSON that is quoted in it."""
    flat = " ".join(text.split())
    inner = read_embedded(flat) if "{" in flat else None
    words = tuple(m[1].lower() for m in TYPE_INSIDE.finditer(flat[:600]))
    status = status_in(flat)
    if inner is not None:
        words, status = (*words, *inner.words), status or inner.status
    return Said(
        text=flat if inner is None else f"{flat}\n{inner.text}",
        words=words,
        status=status,
        value=None if inner is None else inner.value,
    )


def _is_heard(rule: Rule, stream: str) -> bool:
    # A tail of mixed output, as a person pastes it, holds every channel.
    return stream in (rule.streams or ("stderr", "unknown", "jsonl")) or (
        stream == "unknown" and not rule.anywhere
    )


def _common_line(evidence: Evidence) -> Hit | None:
    weak: Hit | None = None
    is_errors = evidence.stream == "stderr"
    lines = lines_of(evidence.text, evidence.stream)
    listed = _listed_statuses(evidence.text)
    if listed is _EVERY:
        return None
    for at in range(len(lines) - 1, -1, -1):
        line = lines[at]
        if line.is_quiet or is_json(line.text):
            continue  # whole JSON has been read as a structure
        opens = opens_error(line) and not listed.match(line.text)
        if line.is_deep and not is_errors:
            continue
        short = is_errors and _is_short(line.text)
        if opens or short:
            text = _block(lines, at)
            said = _said_in(text)
            rule = _fits_all(said, COMMON_RULES)
            about = said.text
        else:
            text, said = line.text, Said(text=line.text, words=type_names(line.text))
            rule = _says(line.text, COMMON_RULES)
            is_crash = rule is not None and rule.reason is Reason.CRASH
            # What a program prints on its own stderr and dies of is its own crash.
            is_own = is_errors and bool(evidence.exit_code)
            about = _whole_trace(lines, at) if is_crash and not is_own else line.text
        if rule is None or is_of_another(line.text) or is_of_another(about):
            continue
        hit = Hit(rule=rule, text=text, confidence="text", said=said)
        is_vague = rule.reason is Reason.CRASH or rule.id in GENERAL_FAULTS
        if (rule.pattern or rule.codes) and not is_vague:
            return hit
        weak = weak or hit
    return weak


def _whole_trace(lines: tuple[Line, ...], at: int) -> str:
    """A traceback, or the exception at its end if that one is of a program's own code."""
    block = _block(lines, at)
    following = lines[at + block.count("\n") + 1 : at + MAX_BLOCK_LINES * 3]
    end = next((one.text for one in following if TYPE_NAME.match(one.text)), "")
    return end if is_of_another(end) else block


def _fits_all(said: Said, rules: Iterable[Rule]) -> Rule | None:
    """For a statement that is known to be an error: a rule may fit anywhere in it."""
    for rule in rules:
        if rule.codes and any(w in rule.codes for w in said.words):
            return rule
        if rule.pattern:
            if rule.statuses and said.status not in rule.statuses:
                continue
            if any(compiled(rule).search(line) for line in said.lines):
                return rule
        elif rule.statuses and said.status in rule.statuses:
            return rule
    return None


def _says(line: str, rules: Iterable[Rule]) -> Rule | None:
    """For a line that may be prose: it has to begin with what a rule knows, and to be a report."""
    names = type_names(line)
    lead = LEAD.match(line[:400])
    is_prose = PROSE.search(first_sentence(line)) is not None
    may_lead = not is_prose and (
        lead is not None or not line.isascii() or ADDRESSED.match(line) is not None
    )
    for rule in rules:
        if rule.codes and any(w in rule.codes for w in names):
            return rule
        if not rule.pattern or rule.statuses:
            continue
        is_anchored = rule.pattern.startswith("^")
        if is_prose and not is_anchored:
            continue
        pattern = compiled(rule)
        found = pattern.search(line) if may_lead else pattern.match(line)
        if found is None:
            continue
        if found.start() == 0 and is_anchored:
            return rule
        begins = (
            found.start() == 0
            or (lead is not None and found.start() <= lead.end())
            # Other scripts have other words for "your".
            or (found.start() <= 16 and not found[0].isascii())
        )
        if begins and is_statement(line, found, is_bare=found.start() == 0):
            return rule
        if is_report(line, found.start()):
            return rule
    return None


_LISTED = re.compile(r"[1-5]\d\d(?=\s|:|$)")
_NEVER = re.compile(r"(?!)")
_EVERY = re.compile(r"")
_HEADS = re.compile(r"^\W{0,4}([1-5]\d\d(?=\s|:|$)|[a-z]{2,30}_[a-z_]{2,30}(?=:\s))", re.M)


def _listed_statuses(text: str) -> re.Pattern[str]:
    """A list of what statuses mean has several of them; a failure has one."""
    found = {head[1] for head in _HEADS.finditer(text)}
    if len(found) > 2:
        return _EVERY
    return _LISTED if len(found) > 1 else _NEVER


def _is_short(line: str) -> bool:
    """A few words that no other program has signed (`grep: …`)."""
    return len(line.split()) <= 5 and not re.match(r"[\w./-]+: ", line)


def _notice(evidence: Evidence, rules: tuple[Rule, ...]) -> Hit | None:
    """A limit notice as the whole answer of a program."""
    text = strip_escapes(evidence.text).replace("’", "'").strip()
    if evidence.stream not in ("stdout", "unknown") or not text:
        return None
    if len(text) > MAX_NOTICE_CHARS or len(text.splitlines()) > 4:
        return None
    first = text.splitlines()[0]
    for rule in (*rules, *COMMON_RULES):
        if not rule.reason.row.may_be_notice or not rule.pattern or rule.opens or rule.statuses:
            continue
        if rule.streams and evidence.stream not in rule.streams:
            continue
        found = compiled(rule).match(first)
        if found and (rule in rules or is_statement(first, found, is_bare=True)):
            return Hit(rule=rule, text=text, confidence="text")
    return None


def _despite_success(evidence: Evidence, rules: tuple[Rule, ...]) -> Hit | None:
    if not evidence.text or evidence.exit_code != 0:
        return None
    return _vendor_line(evidence, rules, only_despite_success=True)


def _end_of_match(rule: Rule, line: str) -> int:
    found = compiled(rule).match(line)
    return found.end() if found else 0
