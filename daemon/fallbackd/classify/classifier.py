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
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from msgspec import structs

from fallbackd.classify.common_rules import COMMON_RULES, GENERAL_THROTTLES
from fallbackd.classify.error_json import Said, is_json, is_page, read_body, read_lines
from fallbackd.classify.error_lines import unwrapped
from fallbackd.classify.exit_status import exit_alone, is_limit_exit, is_plain_end, special_exit
from fallbackd.classify.limit_scopes import named_scope
from fallbackd.classify.lines import Hit, first_fit, text_hit
from fallbackd.classify.model import Model
from fallbackd.classify.other_programs import is_side_call
from fallbackd.classify.reset_time import seconds_until_midnight, seconds_until_reset
from fallbackd.classify.rules import Rule
from fallbackd.classify.shortage import shortage_hit
from fallbackd.classify.stack_frames import has_frames
from fallbackd.classify.version_trouble import RULE as VERSION
from fallbackd.classify.version_trouble import version_trouble
from fallbackd.classify.weighing import weighed
from fallbackd.core.failures import Failure, LimitScope, Reason, make_failure
from fallbackd.core.protocol import Evidence
from fallbackd_conversations.redact import excerpt, strip_escapes

__all__ = ["COMMON_RULES", "Rule", "classify"]


MaxWait = Callable[[Reason], float | None]


def classify(
    evidence: Evidence,
    rules: tuple[Rule, ...] = (),
    *,
    now: float,
    kind: str | None = None,
    timezone: str | None = None,
    max_wait_s: MaxWait | None = None,
    model: Model | None = None,
) -> Failure | None:
    """
    Judge what a backend printed, answered or raised.

    Args:
        rules: Of the user and of the vendor; the common ones follow behind them.
        kind: Of the backend, where it is known.
        timezone: IANA name for stated clock times without a zone; None: the machine's.
        max_wait_s: Bound on what is believed of a stated time, by reason.
        model: None: the shipped one.

    Returns:
        None where nothing failed, or nothing says so yet.
    """
    if _has_failed(evidence):
        evidence = structs.replace(evidence, text=unwrapped(evidence.text))
    said = _statements(evidence)
    hit = _by_rules(rules, partial(_found, evidence, said))
    if not is_limit_exit(evidence) and not (hit is None and is_plain_end(evidence)):
        hit = weighed(hit, evidence, rules, kind, model)
    if hit is not None and is_limit_exit(evidence) and not hit.rule.reason.row.is_limit:
        hit = None
    hit = shortage_hit(hit, evidence) or hit or exit_alone(evidence, rules)
    if hit is None:
        return None
    return _failure(hit, evidence, said, now=now, timezone=timezone, max_wait_s=max_wait_s)


def rule_of(evidence: Evidence, rules: tuple[Rule, ...] = ()) -> Hit | None:
    """What the rules find by themselves, without the model and without an exit status."""
    said = _statements(evidence)
    return _by_rules(
        rules, lambda some: _structured(evidence, said, some) or text_hit(evidence, some)
    )


def _by_rules(
    rules: tuple[Rule, ...], find: Callable[[tuple[Rule, ...]], Hit | None]
) -> Hit | None:
    """What the rules find; those that yield are asked only where the others name no reason."""
    firm = tuple(one for one in rules if not one.yields)
    hit = find(firm)
    if len(firm) == len(rules) or (hit is not None and hit.rule not in (_UNKNOWN, _TRACE)):
        return hit
    return find(tuple(one for one in rules if one.yields)) or hit


def _found(evidence: Evidence, said: tuple[Said, ...], rules: tuple[Rule, ...]) -> Hit | None:
    return (
        _structured(evidence, said, rules)
        or special_exit(evidence)
        or _version(evidence)
        or text_hit(evidence, rules)
    )


# --- structured statements ---------------------------------------------------------------------


def _statements(evidence: Evidence) -> tuple[Said, ...]:
    """Everything in the evidence that says of itself, as data, that it is an error."""
    status, text = evidence.http_status, evidence.text
    found = [] if evidence.body is None else read_body(evidence.body, status=status)
    if found:
        return _as_one(evidence, found)
    if is_page(text):
        return tuple(read_body(text, status=status))
    is_body = evidence.stream in ("http", "exception") or _has_error_status(evidence)
    said = read_lines(text, is_body=is_body)
    found = [one for one in said if is_body or not is_side_call(one.text)]
    if found and status is None and not _own_words(evidence):
        return tuple(found)
    return _as_one(evidence, found)


def _as_one(evidence: Evidence, found: list[Said]) -> tuple[Said, ...]:
    """An evidence with fields of its own is one statement, however its parts are wrapped."""
    text = evidence.text
    # What was cut out of events comes as plain text: a vendor's statement, not its log. What
    # was cut off in the middle is no JSON any more and counts by its words.
    is_plain = (not found and not is_json(text)) or text[:1] not in ("{", "[")
    if not (found or _is_error(evidence, is_plain=is_plain)):
        return ()
    own = Said(
        text=text if is_plain else "", words=_own_words(evidence), status=evidence.http_status
    )
    return (_merged((own, *found)),)


def _merged(said: Sequence[Said]) -> Said:
    values = [one.value for one in said if one.value is not None]
    return Said(
        text="\n".join(dict.fromkeys(one.text for one in said if one.text)),
        words=tuple(dict.fromkeys(word for one in said for word in one.words)),
        status=next((one.status for one in said if one.status), None),
        value=values or None,
    )


def _is_error(evidence: Evidence, *, is_plain: bool) -> bool:
    """By what stands beside the text, or for a channel in which errors alone are given."""
    if _own_words(evidence) or _has_error_status(evidence) or evidence.stream == "exception":
        return True
    is_event = evidence.stream == "jsonl" and is_plain and evidence.text != ""
    return is_event and _states_error(evidence.text)


def _own_words(evidence: Evidence) -> tuple[str, ...]:
    return tuple(word.lower() for word in (evidence.code, evidence.exception) if word)


def _has_failed(evidence: Evidence) -> bool:
    """Known without the text: what it quotes as a whole is its statement then."""
    return bool(evidence.exit_code) or _has_error_status(evidence) or _own_words(evidence) != ()


def _has_error_status(evidence: Evidence) -> bool:
    return (evidence.http_status or 0) >= 400


_JSON_BEGIN = ('{"', "[{", "{\n", "[\n", "{ ")


def _states_error(text: str) -> bool:
    """Prose of a parser; or an event that was cut off, if its beginning names an error."""
    return not text.startswith(_JSON_BEGIN) or bool(
        re.match(r'.{0,200}"(?:error|retryMessage)"', text, re.S)
    )


def _structured(evidence: Evidence, said: tuple[Said, ...], rules: tuple[Rule, ...]) -> Hit | None:
    if evidence.exit_code == 0 and not _is_given_up(evidence):
        return None
    best = _known_statement(said, rules)
    if best is None:
        return _unknown_statement(evidence, said)
    if best.rule.reason is Reason.RATE_LIMIT and _has_spent_window(evidence.headers):
        return structs.replace(best, rule=_SPENT_WINDOW)
    return best


def _known_statement(said: tuple[Said, ...], rules: tuple[Rule, ...]) -> Hit | None:
    """The last statement that a rule knows; among them one with words before one with a status."""
    by_status: Hit | None = None
    for statement in reversed(said):
        rule = first_fit(statement, (*rules, *COMMON_RULES))
        if rule is None:
            continue
        hit = Hit(rule=rule, text=statement.text, confidence="structured", said=statement)
        if rule.pattern or rule.codes:
            return hit
        by_status = by_status or hit
    return by_status


def _unknown_statement(evidence: Evidence, said: tuple[Said, ...]) -> Hit | None:
    if not (said and _is_failure_of_provider(evidence)):
        return None
    text = next((s.text for s in reversed(said) if s.text), "")
    is_own = evidence.stream in ("jsonl", "exception") and has_frames(text)
    rule = _TRACE if is_own else _UNKNOWN
    return Hit(rule=rule, text=text, confidence="structured", said=said[-1])


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


def _version(evidence: Evidence) -> Hit | None:
    line = version_trouble(evidence)
    return None if line is None else Hit(rule=VERSION, text=line, confidence="text")


# --- the failure -------------------------------------------------------------------------------

# A throttle on tokens per minute stays one, however long its stated time is.
_PER_MINUTE = re.compile(r"tokens? per min|\bTPM\b|per.minute|token rate limit|\bRPM\b", re.I)
_LONG_S = 3600.0
_SHORT_QUOTA = re.compile(r"quota will reset (?:after|in)\b", re.I)
_SHORT_S = 120.0


def _failure(
    hit: Hit,
    evidence: Evidence,
    said: tuple[Said, ...],
    *,
    now: float,
    timezone: str | None,
    max_wait_s: MaxWait | None,
) -> Failure:
    rule = hit.rule
    reset_s = None
    if rule.reason.row.is_limit or evidence.exit_code == 75:
        reset_s = _reset(hit, evidence, said, now=now, timezone=timezone)
    reason = rule.reason if reset_s is None else _limit_by_time(hit, evidence, said, reset_s)
    return make_failure(
        reason,
        now=now,
        max_wait_s=None if max_wait_s is None else max_wait_s(reason),
        detail=rule.detail,
        scope=rule.scope or _named_scope(reason, hit, evidence, said),
        reset_s=reset_s,
        at_least_s=(
            seconds_until_midnight(rule.until_midnight_in, now=now)
            if rule.until_midnight_in
            else None
        ),
        confidence=hit.confidence,
        confidence_score=hit.score,
        signature=rule.id,
        evidence=excerpt(hit.text or _shown(evidence)),
        rotate=rule.rotate,
        hop=rule.hop,
        retry=rule.retry,
        retry_same=rule.retry_same,
        marks=rule.marks,
    )


def _named_scope(
    reason: Reason, hit: Hit, evidence: Evidence, said: tuple[Said, ...]
) -> LimitScope | None:
    if reason not in _LIMITS:
        return None
    stated = () if hit.said is None else hit.said.lines
    values = () if hit.said is None or hit.said.value is None else (hit.said.value,)
    texts = (*_texts(hit, evidence, said), *stated)
    return named_scope(texts, headers=evidence.headers, bodies=values)


_LIMITS = (Reason.RATE_LIMIT, Reason.USAGE_LIMIT, Reason.BILLING)


def _limit_by_time(hit: Hit, evidence: Evidence, said: tuple[Said, ...], reset_s: float) -> Reason:
    """How long a limit lasts tells which one it is, where its words leave that open."""
    reason = hit.rule.reason
    if reason is Reason.RATE_LIMIT and hit.rule.id in GENERAL_THROTTLES and not evidence.headers:
        is_plan = reset_s >= _LONG_S and not _PER_MINUTE.search(
            " ".join((hit.text, *(s.text for s in said)))
        )
        return Reason.USAGE_LIMIT if is_plan else reason
    # A window of a plan does not end in seconds, whatever the quota is called.
    if reason is Reason.USAGE_LIMIT and 0 <= reset_s < _SHORT_S and _SHORT_QUOTA.search(hit.text):
        return Reason.RATE_LIMIT
    return reason


def _shown(evidence: Evidence) -> str:
    if isinstance(evidence.body, str):
        return evidence.body
    parts = [evidence.exception or evidence.code or "", evidence.text[-2000:]]
    if evidence.http_status is not None:
        parts.insert(0, f"HTTP {evidence.http_status}")
    return " ".join(p for p in parts if p)


def _reset(
    hit: Hit, evidence: Evidence, said: tuple[Said, ...], *, now: float, timezone: str | None
) -> float | None:
    texts = _texts(hit, evidence, said)
    read = partial(
        seconds_until_reset,
        headers=evidence.headers,
        bodies=[s.value for s in said if s.value is not None],
        now=now,
        timezone=timezone,
    )
    seconds = read(texts=[t.replace("’", "'") for t in texts])
    if seconds is None and hit.confidence == "text" and len(evidence.text) <= _SHORT_CHARS:
        # Little is said, so what states a time speaks of this failure.
        seconds = read(texts=[strip_escapes(evidence.text).replace("’", "'")])
    return seconds


_SHORT_CHARS = 1_500


def _texts(hit: Hit, evidence: Evidence, said: tuple[Said, ...]) -> list[str]:
    """What belongs to the statement that was found."""
    texts = [hit.text]
    if hit.confidence == "text":
        texts.append(_around(evidence.text, hit.text))
    elif evidence.stream in ("http", "exception", "jsonl"):
        texts.extend(s.text for s in said)
    return texts


def _around(text: str, line: str) -> str:
    """The line and the few after it: terminals wrap sentences, JSON spreads over lines."""
    plain = strip_escapes(text).replace("’", "'")
    at = plain.rfind(line)
    return "" if at < 0 else plain[at : at + len(line) + 400]


# --- verdicts without a rule -----------------------------------------------------------------

_SPENT_WINDOW = Rule(id="window-rejected", reason=Reason.USAGE_LIMIT)
_UNKNOWN = Rule(id="error", reason=Reason.UNKNOWN)
_TRACE = Rule(id="trace", reason=Reason.CRASH)
