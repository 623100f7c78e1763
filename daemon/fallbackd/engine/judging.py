"""Judge an attempt that ended without an answer."""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import anyio.to_thread
import msgspec
import structlog
from msgspec import structs

from fallbackd.backends.spec import BackendKind
from fallbackd.classify.rules import Rule
from fallbackd.core.failures import DAEMON_LOST_DETAIL, Failure, make_failure
from fallbackd.core.ids import BackendId
from fallbackd.core.policy import max_wait_s
from fallbackd.core.protocol import Evidence
from fallbackd.core.reasons import Reason
from fallbackd.engine.environment import Settings, Taught
from fallbackd.lib import foreign_json
from fallbackd.lib.descriptors import is_shortage

if TYPE_CHECKING:
    from fallbackd.classify.model import Model

log = structlog.get_logger("engine")


def judge(
    evidence: Evidence,
    settings: Settings,
    kind: BackendKind | None,
    backend: BackendId | None,
    *,
    now: float,
    timezone: str | None = None,
    kind_name: str | None = None,
    signatures: tuple[Rule, ...] | None = None,
    own_rules: tuple[Rule, ...] = (),
    conceal: Callable[[str], str] = lambda text: text,
    model: "Model | None" = None,
) -> Failure | None:
    """
    Classify with the rules of the user, then of the vendor, then the common ones.

    Args:
        kind_name: Of a kind that can be judged and not started, with its `signatures`.
        own_rules: Before all others, but those that yield.
        conceal: Replaces secrets that are known by value. Done first: patterns and cuts leave
            pieces of a key that no value matches.
        model: None: the shipped weights.
    """
    from fallbackd.classify.classifier import classify  # see `get_ready`

    policy = settings.policy
    reasons = dict(policy.reasons)
    if backend is not None and (found := policy.backends.get(backend)) is not None:
        reasons.update(found.reasons)
    name = (kind_name or "generic") if kind is None else kind.name
    if signatures is None:
        signatures = () if kind is None else kind.rules
    return classify(
        concealed(evidence, conceal),
        own_rules + settings.rules_for(name) + signatures,
        now=now,
        kind=name,
        timezone=timezone,
        max_wait_s=lambda reason: max_wait_s(reasons, reason),
        model=model,
    )


LARGE_CHARS = 16_384
READY_PAUSE_S = 1.0
_T = TypeVar("_T")


async def off_the_loop(evidence: Evidence, judging: Callable[[], _T], *, beside: int = 0) -> _T:
    """
    Judge in a thread what takes long to read: other callers are answered meanwhile.

    Args:
        beside: The length of a request that is read with it.
    """
    is_large = max(len(evidence.text), beside) > LARGE_CHARS or _is_large(evidence.body)
    return await anyio.to_thread.run_sync(judging) if is_large else judging()


def _is_large(body: Any) -> bool:  # any JSON
    """Measure evidence by its texts and values; an ordinary error is judged at once."""
    left, size = [body], 0
    while left and size <= LARGE_CHARS:
        match left.pop():
            case str() | bytes() as text:
                size += len(text)
            case dict() as fields:
                left += fields.values()
                size += 16 * len(fields)
            case list() as items:
                left += items
                size += 16 * len(items)
            case _:
                pass
    return size > LARGE_CHARS


def get_ready() -> bool:
    """
    Load what classifies. Its patterns are a sixth of what a start takes, and nothing is judged
    before something has ended: it is loaded beside the first work.

    Returns:
        False where its weights are damaged, so that the rules alone decide.
    """
    from fallbackd.classify.classifier import classify
    from fallbackd.classify.model import usable

    # What the first verdict builds, and every later one uses.
    classify(Evidence(text="Ошибка: x", stream="stderr", exit_code=1), now=0.0)
    return usable() is not None


async def be_ready(taught: Taught) -> None:
    """Later where the system has nothing left to give: what classifies is then loaded on demand."""
    is_said = False
    while True:
        try:
            taught.is_damaged = not await anyio.to_thread.run_sync(get_ready)
            if taught.is_damaged:
                log.error("weights.damaged", effect="rules alone decide", fix="reinstall fallbackd")
            return
        except Exception as error:
            if not is_shortage(error):
                raise
            if not is_said:
                log.warning("classifier.postponed", error=str(error))
            is_said = True
            await anyio.sleep(READY_PAUSE_S)


_MAX_DEPTH = 40
"""No error is nested deeper; what lies below is left out."""


def concealed(evidence: Evidence, conceal: Callable[[str], str]) -> Evidence:
    return structs.replace(
        evidence,
        text=conceal(evidence.text),
        headers={name: conceal(value) for name, value in evidence.headers.items()},
        body=_concealed_value(evidence.body, conceal, _MAX_DEPTH),
    )


def _concealed_value(value: Any, conceal: Callable[[str], str], depth: int) -> Any:  # any JSON
    if depth == 0:
        return None
    match value:
        case str():
            return conceal(value)
        case Mapping():
            return {
                conceal(name) if isinstance(name, str) else name: _concealed_value(
                    one, conceal, depth - 1
                )
                for name, one in value.items()
            }
        case list() | tuple():
            return [_concealed_value(one, conceal, depth - 1) for one in value]
        case _:
            return value


QUOTED_CHARS = 12
"""Shortest part of a prompt that is a quotation; a shorter one may be the provider's own word."""
LONG_CHARS = 80
"""Length that is a quotation anywhere: no sentence that providers use is as long."""
MAX_ASKED_CHARS = 4 * 1024 * 1024
_APART = re.compile(r"""[:='"`“”‘’«»()\[\]{}<>\\…\n]|\.\.+|[.!?]\s""")
"""Ends what an error quotes."""
_SENTENCE_END = re.compile(r"[.!?\r\n](?:\s+|(?<=[\r\n]))")
_Spans = Iterator[tuple[int, int]]


def without_quotations(failure: Failure | None, asked: str) -> Failure | None:
    """
    Remove what a provider repeats of the prompt in its error: whole sentences and lines of the
    prompt, parts of it that the error sets apart, and long parts anywhere. A few words that are in
    both may be the provider's own.

    The time grows with the length of the prompt: it is searched for a bounded number of pieces,
    since evidence is short.
    """
    if failure is None or not asked:
        return failure
    if len(asked) > MAX_ASKED_CHARS:
        return structs.replace(failure, evidence="")
    sentences = list(_sentences_of(asked))
    pairs = map(" ".join, pairwise(sentences))  # one alone can be too short to be a quotation
    text, flat = failure.evidence, " ".join(sentences)
    plain = "".join(" " if one.isspace() else one for one in text)
    spans = (
        *_set_apart(text, plain, flat),
        *_whole(plain, {flat, *sentences, *pairs}),
        *_long(plain, flat),
    )
    kept: list[str] = []
    at = 0
    for start, end in sorted(spans):
        if end > at and (not kept or plain[at:start].strip()):
            kept += [text[at:start], "[…]"]
        at = max(at, end)
    return structs.replace(failure, evidence="".join((*kept, text[at:])))


def _set_apart(text: str, plain: str, flat: str) -> _Spans:
    ends = [(0, 0), *(one.span() for one in _APART.finditer(text)), (len(text), len(text))]
    for (_, before), (after, _) in pairwise(ends):
        piece = plain[before:after].strip(" ,;.!?")
        if len(piece) >= QUOTED_CHARS and piece in flat:
            start = plain.index(piece, before)
            yield start, start + len(piece)


def _whole(plain: str, sentences: set[str]) -> _Spans:
    for sentence in sentences:
        for one in (sentence, sentence.rstrip(".!?")):
            start = plain.find(one) if len(one) >= QUOTED_CHARS else -1
            while start >= 0:
                yield start, start + len(one)
                start = plain.find(one, start + len(one))


def _sentences_of(asked: str) -> Iterator[str]:
    """Sentences and lines, each without the blanks in it."""
    at = 0
    # One by one, since no other thread runs while a long text is split as a whole.
    for end in chain((one.end() for one in _SENTENCE_END.finditer(asked)), (len(asked),)):
        if sentence := " ".join(asked[at:end].split()):
            yield sentence
        at = end


def _long(plain: str, flat: str) -> _Spans:
    """Each has a whole block of half the length in it, wherever it begins."""
    block, end = LONG_CHARS // 2, 0
    for at in range(0, len(plain) - block + 1, block):
        if at + block > end and plain[at : at + block] in flat:
            start, end = _grown(plain, at, flat)
            if end - start >= LONG_CHARS:
                yield start, end


def _grown(plain: str, at: int, flat: str) -> tuple[int, int]:
    """The longest part from there on that is in the prompt, then with what is before it."""
    ends = range(at + 1, len(plain) + 1)
    end = at + bisect_left(ends, True, key=lambda end: plain[at:end] not in flat)
    return bisect_left(range(at), True, key=lambda start: plain[start:end] in flat), end


def texts_in(body: bytes | None) -> str:
    """Words of a request to an API, without the names in it."""
    try:
        value = foreign_json.decode(body or b"null")
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return (body or b"").decode("utf-8", "replace")
    return texts_of(value)


def texts_of(value: Any) -> str:  # any JSON
    """Its words, without names."""
    return "\n".join(_texts(value, _MAX_DEPTH))


_NAMES = frozenset({"model", "type", "role", "id", "name", "effort", "object", "format"})


def _texts(value: Any, depth: int) -> Iterator[str]:  # any JSON
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict) and depth:
        for name, one in value.items():
            if name not in _NAMES:
                yield from _texts(one, depth - 1)
    elif isinstance(value, list) and depth:
        for one in value:
            yield from _texts(one, depth - 1)


def unexplained(*, now: float) -> Failure:
    return make_failure(
        Reason.UNKNOWN,
        now=now,
        confidence="exit_code",
        signature="fallbackd/unexplained",
        evidence="exited without an answer or an error message",
    )


def no_ones_fault(detail: str, what: str, why: str | None, *, now: float) -> Failure:
    """Trouble of this machine: it marks no backend, and no other backend would do better."""
    failure = make_failure(
        Reason.CRASH,
        now=now,
        detail=detail,
        confidence="structured",
        signature=f"fallbackd/{detail}",
        evidence=f"{what}: {why or 'unknown error'}",
    )
    return structs.replace(failure, marks_health=False, hop=False)


def foreign_listener(text: str, *, now: float) -> Failure:
    """The address of a backend is held by another user."""
    return make_failure(
        Reason.NOT_CONFIGURED,
        now=now,
        detail="foreign_listener",
        confidence="structured",
        signature="fallbackd/foreign_listener",
        evidence=text,
    )


def rebooted(*, now: float) -> Failure:
    return no_ones_fault(
        "reboot",
        "the machine was restarted while it ran",
        "ask again if it still matters",
        now=now,
    )


def daemon_lost(*, now: float) -> Failure:
    failure = make_failure(
        Reason.CRASH,
        now=now,
        detail=DAEMON_LOST_DETAIL,
        confidence="structured",
        signature=f"fallbackd/{DAEMON_LOST_DETAIL}",
        evidence="the daemon that made the request ended before the answer had come",
        retry=True,
    )
    return structs.replace(failure, marks_health=False)
