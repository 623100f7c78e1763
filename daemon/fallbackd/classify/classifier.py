"""
Evidence to `Failure`: an ordered list of rules; the first that fits a statement decides.

What counts, in this order of trust:

    structured   a JSON value that says of itself that it is an error; HTTP status, headers, body
    text         a line that *is* an error, in a channel where errors are printed
    exit_code    the status of the program alone

Prose that mentions an error is no error: outside of structured statements a common rule must
begin its line, or the line must open like an error (`Error: …`, `HTTP 429`), and lines that
belong to the output of an agent's tools are left out.

A limit is that of the plan, unless it names one model or one key:

| says so | names |
| --- | --- |
| claude: `Opus limit`, `rateLimitType` or representative claim `seven_day_opus` | the model |
| codex: `usage limit for GPT-5.3-Codex-Spark`, an active limit other than `codex` | the model |
| gemini, Antigravity: `capacity on this model`, `quota limit for this model` | the model |
| Google: a quota id with `PerModel`, `limit: 90, model: …` | the model |
| Google: a quota id with `PerProject` alone | the key |
| OpenAI, Groq: `Rate limit reached for gpt-5 in organization …` | the model |
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import structs

from fallbackd.classify.common_rules import COMMON_RULES, GENERAL_THROTTLES
from fallbackd.classify.error_json import Said, is_json, is_page, read_body, read_lines
from fallbackd.classify.error_lines import has_frames, is_side_call, opens_error, unwrapped
from fallbackd.classify.lines import SIGNAL_EXITS, Hit, first_fit, lines_of, text_hit
from fallbackd.classify.model import Model
from fallbackd.classify.reset_fields import is_spent
from fallbackd.classify.reset_time import seconds_until_midnight, seconds_until_reset
from fallbackd.classify.rules import Rule
from fallbackd.classify.weighing import weighed
from fallbackd.core.failures import Failure, LimitScope, make_failure
from fallbackd.core.protocol import Evidence
from fallbackd.core.reasons import Reason
from fallbackd_conversations.redact import excerpt, strip_escapes

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
    return structs.replace(_exit_hit(Reason.UNKNOWN, "exit", evidence), text=_unnamed(evidence))


def _unnamed(evidence: Evidence) -> str:
    """The line that no rule knows and the model cannot name: the last error, else the last one."""
    lines = lines_of(evidence.text, evidence.stream)
    errors = [one for one in lines if opens_error(one)]
    return next((one.text for one in reversed(errors or lines)), evidence.text)


def _silent_end(evidence: Evidence) -> Hit | None:
    """A program that ended well, or of which no end is known, fails where it has said nothing."""
    is_mute = evidence.stream == "stdout" and not evidence.text.strip() and not evidence.answered
    if evidence.empty or (evidence.exit_code == 0 and is_mute):
        return _exit_hit(Reason.EMPTY_RESULT, "empty", evidence)
    return None


MAX_TRACE_CHARS = 4_096


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
    return Hit(rule=Rule(name, reason), text=evidence.text, confidence="exit_code")


_IS_OF_MODEL = re.compile(r"(?:five_?hour|seven_?day|5h|7d)_(?!oauth)\w|codex[_-]\w", re.I)
"""A window that counts one model: those of the whole plan have no further word."""
_CLAIM_KEYS = ("rateLimitType", "representativeClaim", "representative_claim", "limit_id")
_CLAIM_HEADER = "anthropic-ratelimit-unified-representative-claim"
_WINDOW = re.compile(r"anthropic-ratelimit-unified-((?:5h|7d)\w*)-status")
_ACTIVE_HEADER = "x-codex-active-limit"
_QUOTA_ID = re.compile(r"\b(\w{0,80}per-?(?:project|model)\w{0,80}(?:-\w{1,40})?)", re.I)
_MODEL = re.compile(
    r"\b(?:opus|sonnet|haiku|fable|mythos)\b[- .\d]{0,8}"
    r"(?:(?:weekly|daily|session|usage|hourly|5-hour)[- ]){0,2}(?:limit|quota)\b"
    r"|\b(?:capacity|quota|limit) (?:on|for|of) this model\b|\bmodel quota (?:is )?reached"
    r"|\busage limit for (?!your |the |this )[a-z]\w*[-.][\w.-]+"
    r"|\blimit: \d+, model: \S"
    r"|\brate limit reached for (?:model )?[`\"']?[\w./:@-]*[-.\d][\w./:@-]*[`\"']? (?:in|on)\b"
    r"|\bUserByModelBy",
    re.I,
)


def named_scope(
    texts: Iterable[str], *, headers: Mapping[str, str], bodies: Iterable[Any]
) -> LimitScope | None:
    """The subject that a limit names; None: nothing, so it is that of the plan."""
    texts = list(texts)
    spent = [*_of_headers(headers), *(one for body in bodies for one in _of_body(body))]
    if spent:  # one window of the whole plan closes all of it
        return "model" if all(_IS_OF_MODEL.match(one) for one in spent) else None
    ids = {one.lower().replace("-", "") for text in texts for one in _QUOTA_ID.findall(text)}
    if ids:
        return "model" if all("permodel" in one for one in ids) else "credential"
    return "model" if any(_MODEL.search(text) for text in texts) else None


def _of_headers(headers: Mapping[str, str]) -> Iterator[str]:
    """Names of the windows that an answer calls spent."""
    for name, value in headers.items():
        name = name.lower()
        if name == _CLAIM_HEADER or (name == _ACTIVE_HEADER and value):
            yield value
        elif (window := _WINDOW.fullmatch(name)) and value == "rejected":
            yield window[1]


def _of_body(body: Any) -> Iterator[str]:
    if isinstance(body, list):
        for one in body[:20]:
            yield from _of_body(one)
    if not isinstance(body, Mapping):
        return
    yield from (claim for key in _CLAIM_KEYS if isinstance(claim := body.get(key), str))
    windows = body.get("unifiedWindows")
    for name, one in windows.items() if isinstance(windows, Mapping) else ():
        if isinstance(one, Mapping) and is_spent(one):
            yield str(name)


SHORTAGE = "shortage"
_SHORTAGE_CODES = frozenset({"EMFILE", "ENFILE", "ENOMEM", "ENOSPC", "EDQUOT"})
_SHORTAGE = re.compile(
    r"\b(?:EMFILE|ENFILE|ENOMEM|ENOSPC|EDQUOT)\b|too many open files|no space left on device"
    r"|disk quota exceeded|cannot allocate memory|can't start new thread"
    r"|unable to create (?:new )?native thread"
    r"|(?:fork|thread|spawn)\b.{0,80}resource temporarily unavailable",
    re.I,
)
_LAST_LINES, _MAX_SHORTAGE_CHARS = 4, 2_000
_SHORTAGE_RULE = Rule(SHORTAGE, Reason.CRASH, detail=SHORTAGE, marks=False, retry=False)


def shortage_hit(hit: Hit | None, evidence: Evidence) -> Hit | None:
    """
    The shortage that a program on this machine failed of; None: it failed of something else, or
    another machine says so.

    Args:
        hit: What the evidence was found to say; None: nothing that is known.
    """
    if evidence.http_status is not None or evidence.stream == "http" or evidence.exit_code == 0:
        return None
    if evidence.code in _SHORTAGE_CODES:
        return Hit(rule=_SHORTAGE_RULE, text=evidence.text, confidence="structured")
    is_guess = hit is None or hit.rule.id.startswith("model/")
    text = _end_of(evidence.text) if is_guess or hit is None else hit.text[:_MAX_SHORTAGE_CHARS]
    stated = _SHORTAGE.search(text)
    if stated is None:
        return None
    return Hit(rule=_SHORTAGE_RULE, text=text, confidence="text" if hit is None else hit.confidence)


def _end_of(text: str) -> str:
    return "\n".join(text.rstrip()[-_MAX_SHORTAGE_CHARS:].split("\n")[-_LAST_LINES:])


VERSION = Rule("version", Reason.NOT_CONFIGURED, detail="version")

_MAX_VERSION_CHARS = 4_096
_REFUSES = re.compile(
    # opencode prints its help alone; version 2 an error
    r"\A\s{0,80}opencode (?:run|serve) \["
    r"|^[ \t]{0,80}(?:Unrecognized flag: -|Unknown subcommand \")"
    r"|^(?:[\w./-]{1,60}: )?(?:fatal |usage )?(?:error: )?(?:"
    # clap, commander, yargs, argparse, getopt, cobra, Go's own flags
    r"unexpected argument '.{1,200}' found"
    r"|unrecognized (?:subcommand|arguments?:?|option)\b"
    r"|unknown (?:option|flag|argument|command|shorthand flag)s?:? ['\"`-]?\S"
    r"|invalid value '.{0,200}' for '--?\S.{0,120}'"
    r"|option '--?\S.{0,120}' argument '.{0,200}' is invalid"
    r"|invalid values:$"
    r"|argument --?\S{1,60}: invalid choice: "
    r"|flag provided but not defined: -"
    r"|no such option: -"
    r"|(?:[\w.-]{1,40} ){0,4}requires (?:an? )?(?:node(?:\.js)?|python|bun)\b.{0,60}\d"
    r"|(?:node(?:\.js)?|python|bun) (?:version )?v?\d[\d.]{0,20}(?: or \w{1,10})? is required"
    r"|unsupported (?:node(?:\.js)?|python|bun) version"
    r"|.{0,200}: version `\w{1,20}_[\d.]{1,20}' not found"
    r")",
    re.I | re.M,
)
_UNREADABLE = re.compile(r"^(?:\w{1,40} )?SyntaxError: (?!.{0,300}\bJSON\b)", re.M)
_LOADER = re.compile(
    r"\((?:node:)?internal/modules/|at (?:async )?Module(?:Job|Loader)\b"
    r'|^[ \t]{0,80}File "[^"\n]{1,400}", line \d+$',
    re.M,
)


def version_trouble(evidence: Evidence) -> str | None:
    """The line by which a program says that it cannot be started like this; None: it says none."""
    if evidence.exit_code in (None, 0) or evidence.signal is not None or evidence.answered:
        return None
    if evidence.stream not in ("stderr", "stdout", "unknown") or not evidence.text:
        return None
    text = strip_escapes(evidence.text[:_MAX_VERSION_CHARS]).replace("\r\n", "\n")
    found = _REFUSES.search(text)
    if found is None and _LOADER.search(text):
        found = _UNREADABLE.search(text)
    if found is None:
        return None
    return text[text.rfind("\n", 0, found.start()) + 1 :].partition("\n")[0]


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
    """The finding of the rules by themselves, without the model and without an exit status."""
    said = _statements(evidence)
    return _by_rules(
        rules, lambda some: _structured(evidence, said, some) or text_hit(evidence, some)
    )


def _by_rules(
    rules: tuple[Rule, ...], find: Callable[[tuple[Rule, ...]], Hit | None]
) -> Hit | None:
    """The finding of the rules; those that yield are asked only where the others name no reason."""
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


# Structured statements.


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
    # was cut off in the middle is not JSON any more and counts by its words.
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
    """Decides by the fields beside the text, or by a channel that carries errors alone."""
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
        rule = first_fit(statement, rules)
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


# The failure.

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
    """Name a limit by its length, where its words leave open which one it is."""
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
    """Texts that belong to the statement that was found."""
    texts = [hit.text]
    if hit.confidence == "text":
        texts.append(_around(evidence.text, hit.text))
    elif evidence.stream in ("http", "exception", "jsonl"):
        texts.extend(s.text for s in said)
    size, few = 0, []
    for text in dict.fromkeys(texts):
        few.append(text[:_SHORT_CHARS])
        size += len(few[-1])
        if size > _SHORT_CHARS:
            break
    return few


def _around(text: str, line: str) -> str:
    """The line and the few after it: terminals wrap sentences, JSON spreads over lines."""
    plain = strip_escapes(text).replace("’", "'")
    at = plain.rfind(line)
    return "" if at < 0 else plain[at : at + len(line) + 400]


# Verdicts without a rule.

_SPENT_WINDOW = Rule("window-rejected", Reason.USAGE_LIMIT)
_UNKNOWN = Rule("error", Reason.UNKNOWN)
_TRACE = Rule("trace", Reason.CRASH)
