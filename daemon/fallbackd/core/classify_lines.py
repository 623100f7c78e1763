"""
Lines of a program's output to the rule that fits one of them.

A line counts that *is* an error: it begins with a rule's pattern, opens like an error, or stands
behind a vendor's own mark of one, in a channel where that vendor prints errors.
"""

import re
from collections.abc import Iterable
from functools import lru_cache

from msgspec import Struct

from fallbackd.core.common_rules import COMMON_RULES
from fallbackd.core.error_json import Said
from fallbackd.core.error_lines import candidate_lines
from fallbackd.core.exchange import Evidence
from fallbackd.core.failures import Confidence, Reason
from fallbackd.core.redact import strip_escapes
from fallbackd.core.rules import Rule


class Hit(Struct, frozen=True, kw_only=True):
    rule: Rule
    text: str
    confidence: Confidence
    said: Said | None = None


_NOTICES = (Reason.RATE_LIMIT, Reason.USAGE_LIMIT, Reason.BILLING, Reason.AUTH)
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
            if status_fits and any(_compiled(rule.pattern).search(line) for line in lines):
                return rule
        elif rule.statuses and said.status in rule.statuses:
            return rule
    return None


def text_hit(evidence: Evidence, rules: tuple[Rule, ...]) -> Hit | None:
    if evidence.exit_code == 0 or not evidence.text:
        return _notice(evidence, rules) or _despite_success(evidence, rules)
    signalled = evidence.signal is not None or evidence.exit_code in SIGNAL_EXITS
    hit = _vendor_line(evidence, rules)
    if hit is None and not signalled and evidence.stream in ("stderr", "unknown", "jsonl"):
        hit = _common_line(evidence, rules)
    if hit is None and evidence.exit_code is not None and not signalled:
        hit = _notice(evidence, rules)
    return hit


@lru_cache(maxsize=8)
def _lines(text: str, stream: str) -> tuple[str, ...]:
    plain = strip_escapes(text).replace("’", "'").replace("\r\n", "\n").replace("\r", "\n")
    return candidate_lines(plain, mixed=stream == "unknown")


def _vendor_line(
    evidence: Evidence, rules: tuple[Rule, ...], *, only_despite_success: bool = False
) -> Hit | None:
    """The last line that a rule of this vendor (or user) knows in a channel named by the rule."""
    streams = {evidence.stream}
    openers = [r for r in rules if r.opens and _is_heard(r, streams)]
    heard = [
        r
        for r in rules
        if r.pattern and not r.opens and _is_heard(r, streams)
        and not (only_despite_success and r.requires_exit)
    ]  # fmt: skip
    weak: Hit | None = None
    for line in reversed(_lines(evidence.text, evidence.stream)):
        opener = next((r for r in openers if _compiled(r.pattern).match(line)), None)
        if opener is not None and not (only_despite_success and opener.requires_exit):
            statement = line[_end_of_match(opener.pattern, line) :].strip() or line
            status = _status_in(statement)
            said = Said(text=statement, words=(), status=status)
            rule = first_fit(said, (*rules, *COMMON_RULES))
            if rule is not None and (rule.pattern or weak is None):
                hit = Hit(rule=rule, text=line, confidence="text")
                if rule.pattern:
                    return hit
                weak = hit
            elif weak is None and opener.reason is not Reason.UNKNOWN:
                weak = Hit(rule=opener, text=line, confidence="text")
            continue
        for rule in heard:
            found = _compiled(rule.pattern).search(line)
            if found and (rule.anywhere or found.start() == 0 or _opens_like_error(line)):
                return Hit(rule=rule, text=line, confidence="text")
    return weak


def _is_heard(rule: Rule, streams: set[str]) -> bool:
    return bool(streams & set(rule.streams or ("stderr", "unknown", "jsonl"))) or (
        # A tail of mixed output, as a person pastes it, holds every channel.
        "unknown" in streams and not rule.anywhere
    )


def _common_line(evidence: Evidence, rules: tuple[Rule, ...]) -> Hit | None:
    weak: Hit | None = None
    may_be_short = evidence.stream == "stderr"
    for line in reversed(_lines(evidence.text, evidence.stream)):
        status = _status_in(line) if _STATUS_LINE.match(line) or _opens_like_error(line) else None
        said = Said(text=line, words=_type_names(line), status=status)
        opens = _opens_like_error(line) or status is not None
        rule = _line_fit(said, COMMON_RULES, opens=opens or (may_be_short and _is_short(line)))
        if rule is None:
            continue
        hit = Hit(rule=rule, text=line, confidence="text")
        if (rule.pattern or rule.codes) and rule.reason is not Reason.CRASH:
            return hit
        weak = weak or hit
    return weak or _wrapped(_lines(evidence.text, evidence.stream))


def _wrapped(lines: tuple[str, ...]) -> Hit | None:
    """A statement that a terminal, or pretty JSON, has spread over lines."""
    begin = next((i for i, line in enumerate(lines) if _opens_like_error(line)), None)
    if begin is None:
        return None
    text = " ".join(lines[begin : begin + 12])[:3000].replace('\\"', '"')
    rule = _line_fit(Said(text=text, status=_status_in(text)), COMMON_RULES, opens=True)
    return None if rule is None else Hit(rule=rule, text=text, confidence="text")


def _line_fit(said: Said, rules: Iterable[Rule], *, opens: bool) -> Rule | None:
    lead = _LEAD.match(said.text)
    for rule in rules:
        if rule.codes and any(w in rule.codes for w in said.words):
            return rule
        if rule.pattern:
            if rule.statuses and said.status not in rule.statuses:
                continue
            found = _compiled(rule.pattern).search(said.text)
            if found is None:
                continue
            if opens or (found.start() == 0 and rule.pattern.startswith("^")):
                return rule
            begins = found.start() == 0 or (lead is not None and found.start() <= lead.end())
            if begins and _is_statement(said.text, found, is_bare=found.start() == 0):
                return rule
        elif rule.statuses and said.status in rule.statuses:
            return rule
    return None


_LEAD = re.compile(
    r"(?:sorry, |oops[,!] )?(?:you(?:'re|'ve| are| have)?|the|your|our|this)\s(?:\w+ ){0,3}", re.I
)
"""Words before the statement itself: `Our servers are currently overloaded.`"""


def _is_statement(line: str, found: re.Match[str], *, is_bare: bool) -> bool:
    """The line says this and little else: `Too many requests`, not `Timeouts are now set to …`."""
    rest = line[found.end() :]
    if re.match(r"\w{0,12}\s*(?:[.:·,;!。，(\[{\-–—]|$)", rest):
        return True
    return is_bare and len(rest.split()) <= 6


_TYPE_NAME = re.compile(r"(?:[\w.]+\.)?(\w+(?:Error|Exception|Timeout|Exceeded))\b(?=\s*[:(\[]|$)")


def _type_names(line: str) -> tuple[str, ...]:
    """Names of exceptions at the beginning of a line."""
    found = _TYPE_NAME.match(line)
    return (found[1].lower(),) if found else ()


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
        if rule.reason not in _NOTICES or not rule.pattern or rule.opens or rule.statuses:
            continue
        if rule.streams and evidence.stream not in rule.streams:
            continue
        found = _compiled(rule.pattern).match(first)
        if found and (rule in rules or _is_statement(first, found, is_bare=True)):
            return Hit(rule=rule, text=text, confidence="text")
    return None


def _despite_success(evidence: Evidence, rules: tuple[Rule, ...]) -> Hit | None:
    if not evidence.text or evidence.exit_code != 0:
        return None
    return _vendor_line(evidence, rules, only_despite_success=True)


_STATUS = re.compile(
    r"\b(?:HTTP(?:/\d(?:\.\d)?)?[ :]*(?:error |status |code )*"
    r"|status(?:[ _-]?code)?[\"']?\s*[:= ]\s*"
    r"|(?:error|api error|code)[: (\"'=]+(?:code: )?|last status: )(?P<a>[1-5]\d\d)\b(?!\s*(?:ms"
    r"|s\b|MB|tokens))"
    r"|^\W*(?P<b>[45]\d\d)(?=\s+[A-Z{\"\[<a-z]|:|$|\s*status code)",
    re.I,
)
_STATUS_LINE = re.compile(
    r"(?:HTTP[/ ]?[\d.]*[ :]*[45]\d\d\b|HTTP error|status(?:[ _-]?code)?[:= ]+[45]\d\d\b"
    r"|[45]\d\d\s+"
    r"(?:[A-Z_]{6,}\b|[A-Z][\w']+(?:\s+[A-Z]\w+)*\s*[.:]?$|\{|\"|<|[A-Z][\w']+.*[.!]$"
    r"|Insufficient|status code))",
    re.I,
)
_ERROR_OPENING = re.compile(
    r"\[?(?:fatal|error|err|critical)\]?\s*[:\]!]|\[?(?:fatal|error|critical)\]?\s+(?=[\[({]"
    r"|\w+ error)"
    r"|error[: (]|(?:[\w.]+\.)?\w*(?:error|exception|timeout)(?:\s*[\[(][^\])]*[\])])?\s*[:(]"
    # `OAuth error: …`, `sub-agent error: …`; side calls of a program are not its failure.
    r"|(?!tracing|telemetry|\w+ logging)(?:[\w/.-]+ ){1,3}error ?[:(]|\S+ +(?:error|fatal) +\S"
    r"|[\w-]+ : "
    r"|api error\b|api call failed|api request failed|request failed|ran into this error|reason: "
    r"|error (?:when|while|from|code|msg|running|reading)|unexpected status|execution failed"
    r"|model call failed|exceeded retry limit|agent terminated|llm (?:provider|request)"
    r"|failed to (?:authenticate|refresh|sign in|login|log in|run prompt)"
    r"|stream (?:disconnected|error)|reconnecting\.\.\.|attempt \d+ failed|internal error"
    r"|provider (?:api )?error|upstream ",
    re.I,
)


def _opens_like_error(line: str) -> bool:
    return bool(_ERROR_OPENING.match(line))


def _status_in(line: str) -> int | None:
    found = _STATUS.search(line)
    if found is None:
        return None
    status = int(found["a"] or found["b"])
    return status if status >= 400 else None


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


def _end_of_match(pattern: str, line: str) -> int:
    found = _compiled(pattern).match(line)
    return found.end() if found else 0
