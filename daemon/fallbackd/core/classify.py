"""
Evidence to `Failure`: an ordered list of rules; the first that fits a statement decides.

What counts, in this order of trust:

    structured   a JSON value that says of itself that it is an error; HTTP status, headers, body
    text         a line that *is* an error, in a channel where errors are printed
    exit_code    the status of the program alone

Prose that mentions an error is no error: outside of structured statements a common rule must
begin its line, or the line must open like an error (`Error: …`, `HTTP 429`), and lines that
belong to the output of an agent's tools are left out.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

from msgspec import Struct

from fallbackd.core.common_rules import COMMON_RULES, GENERAL_THROTTLES
from fallbackd.core.error_json import Said, is_json, read_body, read_lines
from fallbackd.core.error_lines import candidate_lines
from fallbackd.core.exchange import Evidence
from fallbackd.core.failures import Confidence, Failure, Reason, make_failure
from fallbackd.core.redact import excerpt, strip_escapes
from fallbackd.core.reset_time import seconds_until_reset
from fallbackd.core.rules import Rule

__all__ = ["COMMON_RULES", "Rule", "classify"]


class _Hit(Struct, frozen=True, kw_only=True):
    rule: Rule
    text: str
    confidence: Confidence
    said: Said | None = None


MaxWait = Callable[[Reason], float | None]

_LIMITS = (Reason.RATE_LIMIT, Reason.USAGE_LIMIT, Reason.OVERLOADED, Reason.BILLING)
_NOTICES = (Reason.RATE_LIMIT, Reason.USAGE_LIMIT, Reason.BILLING, Reason.AUTH)
MAX_NOTICE_CHARS = 500
"""An answer that is a limit notice is short; whatever is longer is an answer."""

_EXITS: dict[int, Reason] = {
    75: Reason.RATE_LIMIT,
    76: Reason.AUTH,
    78: Reason.NOT_CONFIGURED,
    126: Reason.PERMISSION,
    127: Reason.NOT_INSTALLED,
}
# Statuses that a shell makes of a signal (128 + n), for those that end programs. 145 and above
# are left out: a CLI may fold an HTTP status into them.
_SIGNAL_EXITS = frozenset(128 + n for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15))


def classify(
    evidence: Evidence,
    rules: tuple[Rule, ...] = (),
    *,
    now: float,
    timezone: str | None = None,
    max_wait_s: MaxWait | None = None,
) -> Failure | None:
    """
    Judge what a backend printed, answered or raised.

    Args:
        rules: Of the user and of the vendor; the common ones follow behind them.
        timezone: IANA name for stated clock times without a zone; None: the machine's.
        max_wait_s: Bound on what is believed of a stated time, by reason.

    Returns:
        None where nothing failed, or nothing says so yet.
    """
    said = _statements(evidence)
    hit = _structured(evidence, said, rules) or _special_exit(evidence) or _text(evidence, rules)
    if hit is not None and _is_limit_exit(evidence) and hit.rule.reason not in _LIMITS:
        hit = None
    hit = hit or _exit_alone(evidence, rules)
    if hit is None:
        return None
    return _failure(hit, evidence, said, now=now, timezone=timezone, max_wait_s=max_wait_s)


# --- structured statements ---------------------------------------------------------------------


def _statements(evidence: Evidence) -> tuple[Said, ...]:
    """Everything in the evidence that says of itself, as data, that it is an error."""
    status, text = evidence.http_status, evidence.text
    words = tuple(w.lower() for w in (evidence.code, evidence.exception) if w)
    found: list[Said] = []
    if evidence.body is not None:
        found.extend(read_body(evidence.body, status=status))
    if not found:
        found.extend(read_lines(text, is_body=evidence.stream in ("http", "exception")))
        if found and not words and status is None:
            return tuple(found)
    # What was cut out of events comes as plain text: a vendor's statement, not its log. What
    # was cut off in the middle is no JSON any more and counts by its words.
    is_plain = (not found and not is_json(text)) or text[:1] not in ("{", "[")
    is_stated = evidence.stream == "jsonl" and is_plain and text != "" and _states_error(text)
    is_error = words or (status or 0) >= 400 or evidence.stream == "exception"
    if not (found or is_stated or is_error):
        return ()
    # One evidence with fields of its own is one statement, however its parts are wrapped.
    texts = [text, *(s.text for s in found)] if is_plain else [s.text for s in found]
    whole = Said(
        text="\n".join(dict.fromkeys(t for t in texts if t)),
        words=tuple(dict.fromkeys((*words, *(w for s in found for w in s.words)))),
        status=status or next((s.status for s in found if s.status), None),
        value=[s.value for s in found if s.value is not None] or None,
    )
    return (whole,)


_JSON_BEGIN = ('{"', "[{", "{\n", "[\n", "{ ")


def _states_error(text: str) -> bool:
    """Prose of a parser; or an event that was cut off, if its beginning names an error."""
    return not text.startswith(_JSON_BEGIN) or bool(
        re.match(r'.{0,200}"(?:error|retryMessage)"', text, re.S)
    )


def _structured(evidence: Evidence, said: tuple[Said, ...], rules: tuple[Rule, ...]) -> _Hit | None:
    """The last statement that a rule knows; among them one with words before one with a status."""
    if evidence.exit_code == 0 and not _is_given_up(evidence):
        return None
    spent = _has_spent_window(evidence.headers)
    best: _Hit | None = None
    by_status: _Hit | None = None
    for statement in reversed(said):
        rule = _first_fit(statement, (*rules, *COMMON_RULES))
        if rule is None:
            continue
        hit = _Hit(rule=rule, text=statement.text, confidence="structured", said=statement)
        if rule.pattern or rule.codes:
            best = hit
            break
        by_status = by_status or hit
    best = best or by_status
    if best is not None and spent and best.rule.reason is Reason.RATE_LIMIT:
        return _Hit(rule=_SPENT_WINDOW, text=best.text, confidence="structured", said=best.said)
    if best is not None:
        return best
    if said and _is_failure_of_provider(evidence):
        text = next((s.text for s in reversed(said) if s.text), "")
        return _Hit(rule=_UNKNOWN, text=text, confidence="structured", said=said[-1])
    return None


def _is_given_up(evidence: Evidence) -> bool:
    """A program may end well and still say, in its structured output, that it failed."""
    return evidence.body is not None or evidence.code is not None or evidence.stream == "jsonl"


def _is_failure_of_provider(evidence: Evidence) -> bool:
    status = evidence.http_status
    if status is not None and status < 400 and evidence.body is None:
        return False
    return not (evidence.stream in ("stdout", "stderr", "unknown") and evidence.body is None)


def _has_spent_window(headers: Mapping[str, str]) -> bool:
    """Anthropic says on each answer whether a plan's window is used up; for plans only."""
    return any(
        "ratelimit-unified" in k.lower() and k.lower().endswith("status") and v == "rejected"
        for k, v in headers.items()
    )


def _first_fit(said: Said, rules: Iterable[Rule]) -> Rule | None:
    """Wording before status: statuses that stand alone are at the end of the common rules."""
    lines = said.lines
    for rule in rules:
        if rule.exits or rule.opens:
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


# --- lines of text -----------------------------------------------------------------------------


def _text(evidence: Evidence, rules: tuple[Rule, ...]) -> _Hit | None:
    if evidence.exit_code == 0 or not evidence.text:
        return _notice(evidence, rules) or _despite_success(evidence, rules)
    signalled = evidence.signal is not None or evidence.exit_code in _SIGNAL_EXITS
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
) -> _Hit | None:
    """The last line that a rule of this vendor (or user) knows in a channel named by the rule."""
    streams = {evidence.stream}
    openers = [r for r in rules if r.opens and _is_heard(r, streams)]
    heard = [
        r
        for r in rules
        if r.pattern and not r.opens and _is_heard(r, streams)
        and not (only_despite_success and r.requires_exit)
    ]  # fmt: skip
    weak: _Hit | None = None
    for line in reversed(_lines(evidence.text, evidence.stream)):
        opener = next((r for r in openers if _compiled(r.pattern).match(line)), None)
        if opener is not None and not (only_despite_success and opener.requires_exit):
            statement = line[_end_of_match(opener.pattern, line) :].strip() or line
            status = _status_in(statement)
            said = Said(text=statement, words=(), status=status)
            rule = _first_fit(said, (*rules, *COMMON_RULES))
            if rule is not None and (rule.pattern or weak is None):
                hit = _Hit(rule=rule, text=line, confidence="text")
                if rule.pattern:
                    return hit
                weak = hit
            elif weak is None and opener.reason is not Reason.UNKNOWN:
                weak = _Hit(rule=opener, text=line, confidence="text")
            continue
        for rule in heard:
            found = _compiled(rule.pattern).search(line)
            if found and (rule.anywhere or found.start() == 0 or _opens_like_error(line)):
                return _Hit(rule=rule, text=line, confidence="text")
    return weak


def _is_heard(rule: Rule, streams: set[str]) -> bool:
    return bool(streams & set(rule.streams or ("stderr", "unknown", "jsonl"))) or (
        # A tail of mixed output, as a person pastes it, holds every channel.
        "unknown" in streams and not rule.anywhere
    )


def _common_line(evidence: Evidence, rules: tuple[Rule, ...]) -> _Hit | None:
    weak: _Hit | None = None
    may_be_short = evidence.stream == "stderr"
    for line in reversed(_lines(evidence.text, evidence.stream)):
        status = _status_in(line) if _STATUS_LINE.match(line) or _opens_like_error(line) else None
        said = Said(text=line, words=_type_names(line), status=status)
        opens = _opens_like_error(line) or status is not None
        rule = _line_fit(said, COMMON_RULES, opens=opens or (may_be_short and _is_short(line)))
        if rule is None:
            continue
        hit = _Hit(rule=rule, text=line, confidence="text")
        if (rule.pattern or rule.codes) and rule.reason is not Reason.CRASH:
            return hit
        weak = weak or hit
    return weak or _wrapped(_lines(evidence.text, evidence.stream))


def _wrapped(lines: tuple[str, ...]) -> _Hit | None:
    """A statement that a terminal, or pretty JSON, has spread over lines."""
    begin = next((i for i, line in enumerate(lines) if _opens_like_error(line)), None)
    if begin is None:
        return None
    text = " ".join(lines[begin : begin + 12])[:3000].replace('\\"', '"')
    rule = _line_fit(Said(text=text, status=_status_in(text)), COMMON_RULES, opens=True)
    return None if rule is None else _Hit(rule=rule, text=text, confidence="text")


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
    if re.match(r"\w{0,12}\s*(?:[.:·,;!(\[{\-–—]|$)", rest):
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


def _notice(evidence: Evidence, rules: tuple[Rule, ...]) -> _Hit | None:
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
            return _Hit(rule=rule, text=text, confidence="text")
    return None


def _despite_success(evidence: Evidence, rules: tuple[Rule, ...]) -> _Hit | None:
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


# --- the exit status alone ---------------------------------------------------------------------


def _is_limit_exit(evidence: Evidence) -> bool:
    return evidence.exit_code == 75 and evidence.signal is None


def _special_exit(evidence: Evidence) -> _Hit | None:
    """Statuses with a meaning; after an answer 126 and 127 belong to a tool of the agent."""
    code = evidence.exit_code
    if code is None or evidence.signal is not None or code not in _EXITS:
        return None
    if code == 75 or (evidence.answered and code in (126, 127)):
        return None  # 75 lets the text say which limit
    return _exit_hit(_EXITS[code], f"exit-{code}", evidence)


def _exit_alone(evidence: Evidence, rules: tuple[Rule, ...]) -> _Hit | None:
    code = evidence.exit_code
    if evidence.signal is not None:
        return _exit_hit(Reason.CRASH, "signal", evidence)
    if code is None:
        return _exit_hit(Reason.EMPTY_RESULT, "empty", evidence) if evidence.empty else None
    if code == 0:
        silent = evidence.stream == "stdout" and not evidence.text.strip()
        if evidence.empty or (silent and not evidence.answered):
            return _exit_hit(Reason.EMPTY_RESULT, "empty", evidence)
        return None
    vendor = next((r for r in rules if code in r.exits), None)
    if vendor is not None:
        return _Hit(rule=vendor, text=evidence.text, confidence="exit_code")
    if code == 75:
        return _exit_hit(Reason.RATE_LIMIT, "exit-75", evidence)
    if code in _SIGNAL_EXITS or code < 0:
        return _exit_hit(Reason.CRASH, "signal", evidence)
    if evidence.answered:
        return _exit_hit(Reason.TASK_FAILED, "exit-after-answer", evidence)
    return _exit_hit(Reason.UNKNOWN, "exit", evidence)


def _exit_hit(reason: Reason, name: str, evidence: Evidence) -> _Hit:
    return _Hit(rule=Rule(id=name, reason=reason), text=evidence.text, confidence="exit_code")


# --- the failure -------------------------------------------------------------------------------

# A throttle on tokens per minute stays one, however long its stated time is.
_PER_MINUTE = re.compile(r"tokens? per min|\bTPM\b|per.minute|token rate limit|\bRPM\b", re.I)
_LONG_S = 3600.0


def _failure(
    hit: _Hit,
    evidence: Evidence,
    said: tuple[Said, ...],
    *,
    now: float,
    timezone: str | None,
    max_wait_s: MaxWait | None,
) -> Failure:
    rule, reason = hit.rule, hit.rule.reason
    reset_s = None
    if reason in _LIMITS or hit.confidence != "exit_code" or evidence.exit_code == 75:
        reset_s = _reset(hit, evidence, said, now=now, timezone=timezone)
    if (
        reason is Reason.RATE_LIMIT
        and rule.id in GENERAL_THROTTLES
        and not evidence.headers
        and reset_s is not None
        and reset_s >= _LONG_S
        and not _PER_MINUTE.search(" ".join((hit.text, *(s.text for s in said))))
    ):
        reason = Reason.USAGE_LIMIT
    return make_failure(
        reason,
        now=now,
        max_wait_s=None if max_wait_s is None else max_wait_s(reason),
        detail=rule.detail,
        scope=rule.scope,
        reset_s=reset_s,
        confidence=hit.confidence,
        signature=rule.id,
        evidence=excerpt(hit.text or _shown(evidence)),
        rotate=rule.rotate,
    )


def _shown(evidence: Evidence) -> str:
    if isinstance(evidence.body, str):
        return evidence.body
    parts = [evidence.exception or evidence.code or "", evidence.text[-2000:]]
    if evidence.http_status is not None:
        parts.insert(0, f"HTTP {evidence.http_status}")
    return " ".join(p for p in parts if p)


def _reset(
    hit: _Hit, evidence: Evidence, said: tuple[Said, ...], *, now: float, timezone: str | None
) -> float | None:
    texts = [hit.text]
    if hit.confidence == "text":
        texts.append(_around(evidence.text, hit.text))
    elif evidence.stream in ("http", "exception", "jsonl"):
        texts.extend(s.text for s in said)
    return seconds_until_reset(
        texts=[t.replace("’", "'") for t in texts],
        headers=evidence.headers,
        bodies=[s.value for s in said if s.value is not None],
        now=now,
        timezone=timezone,
    )


def _around(text: str, line: str) -> str:
    """The line and the few after it: terminals wrap sentences, JSON spreads over lines."""
    plain = strip_escapes(text).replace("’", "'")
    at = plain.rfind(line)
    return "" if at < 0 else plain[at : at + len(line) + 400]


# --- verdicts without a rule -----------------------------------------------------------------

_SPENT_WINDOW = Rule(id="window-rejected", reason=Reason.USAGE_LIMIT)
_UNKNOWN = Rule(id="error", reason=Reason.UNKNOWN)
