"""
Lines of a program's output to the rule that fits one of them.

A line counts that *is* an error: it begins with a rule's pattern, opens like an error, or stands
behind a vendor's own mark of one, in a channel where that vendor prints errors.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import chain

from msgspec import Struct

from fallbackd.classify.common_rules import (
    COMMON_RULES,
    GENERAL_FAULTS,
    Fitting,
    common,
    fitting,
)
from fallbackd.classify.error_json import Said, is_json, read_embedded
from fallbackd.classify.error_lines import (
    ADDRESSED,
    LEAD,
    MAX_BLOCK_CHARS,
    MAX_BLOCK_LINES,
    PROSE,
    TYPE_INSIDE,
    TYPE_NAME,
    Line,
    candidate_lines,
    first_sentence,
    is_agents_words,
    is_of_another,
    is_report,
    is_statement,
    opens_error,
    opens_like_error,
    status_in,
    type_names,
    without_frames,
)
from fallbackd.classify.rules import Found, Rule, compiled
from fallbackd.core.failures import Confidence
from fallbackd.core.protocol import Evidence
from fallbackd.core.reasons import Reason
from fallbackd_conversations.redact import strip_escapes


class Hit(Struct, frozen=True, kw_only=True):
    rule: Rule
    text: str
    confidence: Confidence
    said: Said | None = None
    score: float = 1.0
    """Certainty of the reason, 0 to 1. A structure and an exit status are taken as they are."""


MAX_NOTICE_CHARS = 500
"""An answer that is a limit notice is short; whatever is longer is an answer."""

# Statuses that a shell makes of a signal (128 + n), for those that end programs. 145 and above
# are left out: a CLI may fold an HTTP status into them.
SIGNAL_EXITS = frozenset(128 + n for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15))


def first_fit(said: Said, rules: tuple[Rule, ...] = ()) -> Rule | None:
    """
    The first of these rules, then of the common ones, that fits anywhere in a statement. Wording
    before status: statuses that stand alone are at the end of the common rules.
    """
    lines, words = said.lines, frozenset(said.words)
    first = fitting(rules).among(lines, words, said.status) if rules else []
    for rule in chain(first, common().among(lines, words, said.status)):
        if rule.opens:
            continue
        if not words.isdisjoint(rule.codes):
            return rule
        if rule.statuses and said.status not in rule.statuses:
            continue
        if not rule.pattern and rule.statuses:
            return rule
        if rule.pattern and any(map(compiled(rule).search, lines)):
            return rule
    return None


def text_hit(evidence: Evidence, rules: tuple[Rule, ...]) -> Hit | None:
    if evidence.http_status is not None and evidence.http_status < 400:
        return None  # an answer that came, whatever it speaks of
    if evidence.exit_code == 0 or not evidence.text:
        return _notice(evidence, rules) or _despite_success(evidence, rules)
    signalled = evidence.signal is not None or evidence.exit_code in SIGNAL_EXITS
    hit = _vendor_line(evidence, rules)
    if hit is not None or signalled:
        return hit
    if evidence.stream in ("stderr", "unknown", "jsonl"):
        hit = _common_line(evidence)
    if hit is None and evidence.exit_code is not None:
        hit = _notice(evidence, rules)
    return hit


@lru_cache(maxsize=8)
def lines_of(text: str, stream: str) -> tuple[Line, ...]:
    plain = (
        strip_escapes(_both_ends(text)).replace("’", "'").replace("\r\n", "\n").replace("\r", "\n")
    )
    return candidate_lines(without_frames(plain), mixed=stream == "unknown")


def has_agents_words(text: str) -> bool:
    return any(map(is_agents_words, _both_ends(text).split(NEWLINE)))


NEWLINE = "\n"
MAX_HEAD_CHARS, MAX_TAIL_CHARS = 2_048, 6_144
MAX_HEAD_LINES, MAX_TAIL_LINES = 10, 60
"""
Bounds for a long output, whose beginning and end are read: a failure ends a run, or keeps it from
beginning.
"""


def _both_ends(text: str) -> str:
    head, tail = "", text
    if len(text) > MAX_HEAD_CHARS + MAX_TAIL_CHARS:
        head, tail = text[:MAX_HEAD_CHARS], text[-MAX_TAIL_CHARS:].partition(NEWLINE)[2]
    lines = tail.rsplit(NEWLINE, MAX_TAIL_LINES)
    if len(lines) > MAX_TAIL_LINES:
        head, tail = head or lines[0], NEWLINE.join(lines[1:])
    if not head:
        return tail
    return NEWLINE.join((*head.split(NEWLINE, MAX_HEAD_LINES)[:MAX_HEAD_LINES], "", tail))


MAX_READ_CHARS = 2_400
"""Bound for all statements of an output together, the last ones first."""


def _last_first(lines: tuple[Line, ...]) -> Iterator[int]:
    """Places of the lines that are read, from the end of the output."""
    left = MAX_READ_CHARS
    for at in reversed(range(len(lines))):
        left -= len(lines[at].text)
        if left < 0 and at + 1 < len(lines):
            return
        yield at


def _vendor_line(
    evidence: Evidence, rules: tuple[Rule, ...], *, only_despite_success: bool = False
) -> Hit | None:
    """The last line that a rule of this vendor (or user) knows in a channel named by the rule."""
    heard = [
        r
        for r in rules
        if _is_heard(r, evidence.stream) and not (only_despite_success and r.requires_exit)
    ]
    if not heard:
        return None
    weak: Hit | None = None
    lines = lines_of(evidence.text, evidence.stream)
    openers, known = [one for one in heard if one.opens], fitting(rules)
    for at in _last_first(lines):
        opener = _opener(lines[at].text, openers)
        if opener is None:
            hit = _known_line(lines, at, known, heard)
        else:
            hit = _behind(opener, lines, at, rules)
        if hit is not None and _is_sure(hit, opener):
            return hit
        weak = weak or hit
    return weak


def _is_sure(hit: Hit, opener: Rule | None) -> bool:
    return opener is None or (hit.rule is not opener and _has_words(hit.rule))


def _opener(line: str, rules: list[Rule]) -> Rule | None:
    return next((one for one in rules if compiled(one).match(line)), None)


def _known_line(lines: tuple[Line, ...], at: int, rules: Fitting, heard: list[Rule]) -> Hit | None:
    for rule in rules.among((lines[at].text,)):
        if rule.opens or rule not in heard:
            continue
        found = compiled(rule).search(lines[at].text)
        if found and (rule.anywhere or found.start() == 0 or opens_error(lines[at])):
            return Hit(rule=rule, text=_block(lines, at), confidence="text")
    return None


def _behind(opener: Rule, lines: tuple[Line, ...], at: int, rules: tuple[Rule, ...]) -> Hit | None:
    """The text after a vendor's mark of an error; the mark itself may name a reason."""
    line, block = lines[at].text, _block(lines, at)
    said = _said_in(block[_end_of_match(opener, line) :].strip() or line)
    rule = first_fit(said, rules)
    if rule is not None:
        return Hit(rule=rule, text=block, confidence="text", said=said)
    if opener.reason is not Reason.UNKNOWN:
        return Hit(rule=opener, text=line, confidence="text")
    return None


def _has_words(rule: Rule) -> bool:
    """More than a status, which says least of a cause."""
    return bool(rule.pattern or rule.codes)


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
    """The statement of a line, with the words and the status of JSON that is quoted in it."""
    flat = " ".join(text.split())
    inner = read_embedded(flat) if "{" in flat else None
    words = tuple(m[1].lower() for m in TYPE_INSIDE.finditer(flat[:600]))
    status = status_in(flat[:600])
    if inner is not None:
        words, status = (*words, *inner.words), status or inner.status
    return Said(
        text=flat if inner is None else f"{flat}\n{inner.text}",
        words=words,
        status=status,
        value=None if inner is None else inner.value,
    )


def _is_heard(rule: Rule, stream: str) -> bool:
    if not rule.pattern:
        return False
    # A tail of mixed output, as a person pastes it, holds every channel.
    return stream in (rule.streams or ("stderr", "unknown", "jsonl")) or (
        stream == "unknown" and not rule.anywhere
    )


def _common_line(evidence: Evidence) -> Hit | None:
    listed = _listed_statuses(_both_ends(evidence.text))
    if listed is _EVERY:
        return None
    is_errors = evidence.stream == "stderr"
    output = _Output(
        lines=lines_of(evidence.text, evidence.stream),
        listed=listed,
        is_errors=is_errors,
        # What a program prints on its own stderr and dies of is its own crash.
        is_own=is_errors and bool(evidence.exit_code),
    )
    weak: Hit | None = None
    for at in _last_first(output.lines):
        hit = output.hit_at(at)
        if hit is None:
            continue
        is_vague = hit.rule.reason is Reason.CRASH or hit.rule.id in GENERAL_FAULTS
        if _has_words(hit.rule) and not is_vague:
            return hit
        weak = weak or hit
    return weak


class _Output(Struct, frozen=True, kw_only=True):
    """Lines of one channel, as the common rules read them."""

    lines: tuple[Line, ...]
    listed: re.Pattern[str]
    is_errors: bool
    is_own: bool

    def hit_at(self, at: int) -> Hit | None:
        line = self.lines[at]
        if line.is_quiet or (line.is_deep and not self.is_errors) or is_json(line.text):
            return None  # whole JSON has been read as a structure
        hit, about = self._error(at) if self._is_error(line) else self._report(at)
        if hit is None or is_of_another(line.text) or is_of_another(about):
            return None
        return hit

    def _is_error(self, line: Line) -> bool:
        if opens_error(line) and not self.listed.match(line.text):
            return True
        return self.is_errors and _is_short(line.text)

    def _error(self, at: int) -> tuple[Hit | None, str]:
        """A line that opens like an error, and all of what it states."""
        text = _block(self.lines, at)
        said = _said_in(text)
        rule = first_fit(said)
        if rule is None:
            return None, text
        return Hit(rule=rule, text=text, confidence="text", said=said), said.text

    def _report(self, at: int) -> tuple[Hit | None, str]:
        """A line that may be prose, and what tells whose failure it speaks of."""
        text = self.lines[at].text
        rule = _says(text)
        if rule is None:
            return None, text
        is_foreign = rule.reason is Reason.CRASH and not self.is_own
        said = Said(text=text, words=type_names(text))
        hit = Hit(rule=rule, text=text, confidence="text", said=said)
        return hit, _whole_trace(self.lines, at) if is_foreign else text


def _whole_trace(lines: tuple[Line, ...], at: int) -> str:
    """A traceback, or the exception at its end if that one is of a program's own code."""
    block = _block(lines, at)
    following = lines[at + block.count("\n") + 1 : at + MAX_BLOCK_LINES * 3]
    end = next((one.text for one in following if TYPE_NAME.match(one.text)), "")
    return end if is_of_another(end) else block


def _says(line: str) -> Rule | None:
    """
    Match a line that may be prose: it has to begin with what a rule knows, and to be a report.
    """
    names = type_names(line)
    likely = common().among((line,), names)
    if not likely:
        return None
    lead = LEAD.match(line[:400])
    is_prose = PROSE.search(first_sentence(line)) is not None
    may_lead = not is_prose and (
        lead is not None or not line.isascii() or ADDRESSED.match(line) is not None
    )
    saying = _Saying(
        line=line,
        names=names,
        lead_end=-1 if lead is None else lead.end(),
        is_prose=is_prose,
        may_lead=may_lead,
    )
    return next(filter(saying.fits, likely), None)


class _Saying(Struct, frozen=True, kw_only=True):
    """A line that may be prose, with what all rules ask of it."""

    line: str
    names: tuple[str, ...]
    lead_end: int
    """End of the words before the statement itself; -1: there are none."""
    is_prose: bool
    may_lead: bool
    """The statement may stand behind other words."""

    def fits(self, rule: Rule) -> bool:
        if rule.codes and any(w in rule.codes for w in self.names):
            return True
        if not rule.pattern or rule.statuses:
            return False
        is_anchored = rule.pattern.startswith("^")
        if self.is_prose and not is_anchored:
            return False
        pattern = compiled(rule)
        found = pattern.search(self.line) if self.may_lead else pattern.match(self.line)
        if found is None:
            return False
        return (is_anchored and found.start() == 0) or self._states(found)

    def _states(self, found: Found) -> bool:
        at = found.start()
        # Other scripts have other words for "your".
        begins = at <= max(0, self.lead_end) or (at <= 16 and not found[0].isascii())
        if begins and is_statement(self.line, found, is_bare=at == 0):
            return True
        return is_report(self.line, at)


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


def _may_be_notice(rule: Rule, stream: str) -> bool:
    if not rule.reason.row.may_be_notice or not rule.pattern or rule.opens or rule.statuses:
        return False
    return not rule.streams or stream in rule.streams


def _notice(evidence: Evidence, rules: tuple[Rule, ...]) -> Hit | None:
    """A limit notice as the whole answer of a program."""
    text = strip_escapes(evidence.text).replace("’", "'").strip()
    if evidence.stream not in ("stdout", "unknown") or not text:
        return None
    if len(text) > MAX_NOTICE_CHARS or len(text.splitlines()) > 4:
        return None
    first = text.splitlines()[0]
    for rule in (*rules, *COMMON_RULES):
        found = compiled(rule).match(first) if _may_be_notice(rule, evidence.stream) else None
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
