"""
Words of people: answers to questions, manual overrides of health, wrong verdicts kept as samples,
and private weights learned from these on top of the shipped ones.

Nothing leaves the machine; training without samples removes the private weights again.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import msgspec
import structlog
from msgspec import Struct

from fallbackd.classify.common_rules import COMMON_RULES
from fallbackd.classify.rules import Rule, linear
from fallbackd.core.decision import Decision
from fallbackd.core.events import (
    HealthCleared,
    HealthMarked,
    HealthPaused,
    HealthResumed,
    QuestionAnswered,
)
from fallbackd.core.failures import Failure
from fallbackd.core.ids import AttemptId, BackendId, SessionId
from fallbackd.core.protocol import Evidence
from fallbackd.core.reasons import Reason
from fallbackd.core.records import Delegation, Question, delegation_asking
from fallbackd.core.scopes import find_backend
from fallbackd.engine.environment import Settings
from fallbackd.engine.judging import concealed, judge
from fallbackd.engine.requests import Draining, Invalid, Refused, Unknown
from fallbackd.ports.store import Selection, StoreUnwritable
from fallbackd_conversations.redact import redact, strip_escapes

if TYPE_CHECKING:
    from fallbackd.classify.explaining import Explanation
    from fallbackd.classify.model import Model
    from fallbackd.classify.weighing import Lesson
    from fallbackd.engine.api import Engine


MAX_SEARCHED = 1000
"""Number of the newest delegations in which closed questions are looked for."""


async def answer(
    engine: "Engine", question: str, *, choice: str, note: str | None, **by: Any
) -> Question:
    """
    Take what a person has chosen. Returns the question as it is on record now.

    Args:
        by: `uid`, `pid` and `attempt` of `QuestionAnswered`.

    Raises:
        Unknown, Refused: There is no such question, no such choice, or it is closed.
        Draining: The answer cannot be kept.
    """
    note = None if note is None else engine.world.redact(note)
    await engine.follow_workspaces()
    delegation = delegation_asking(question)
    if delegation is None:
        raise Unknown(f"no question {question!r}; see `fallbackd-client questions`")
    event = QuestionAnswered(
        question=question, delegation=delegation, choice=choice, note=note, **by
    )
    try:
        decision = await engine.handle(event)
    except StoreUnwritable as error:
        raise Draining(f"the answer was not recorded: {error}", kind="store_unwritable") from error
    if decision.rejection is not None:
        raise Refused(decision.rejection)
    assert isinstance(decision.answer, Question)
    return decision.answer


async def questions(
    engine: "Engine", *, session: str | None = None, only_open: bool = True, limit: int = 100
) -> Sequence[Question]:
    """Newest first."""
    name = None if session is None else SessionId(session)
    found: Sequence[Delegation] = tuple(engine.store.peek().active.values())
    if not only_open:
        found = await engine.store.delegations(Selection(session=name), limit=MAX_SEARCHED)
    listed = [
        one
        for delegation in found
        if name in (None, delegation.session)
        for one in delegation.questions
        if one.is_open or not only_open
    ]
    return sorted(listed, key=lambda one: (-one.opened_at, one.question))[:limit]


async def mark(
    engine: "Engine", target: str, *, reason: str | None, ttl_s: float | None, note: str | None
) -> None:
    event = HealthMarked(
        target=target,
        reason=_redacted(engine, reason),
        ttl_s=ttl_s,
        note=_redacted(engine, note),
    )
    _require_known(engine, await engine.handle(event), target)


async def import_mark(
    engine: "Engine", target: str, *, reason: str, since_at: float, ttl_s: float
) -> None:
    """A mark of another program's file, with its own age."""
    await engine.handle(
        HealthMarked(
            target=target,
            reason=_redacted(engine, reason),
            ttl_s=ttl_s,
            since_at=since_at,
            source="import",
        )
    )


async def clear(engine: "Engine", target: str | None) -> list[str]:
    """Clear a backend, a scope or, for None, everything. Returns the scopes cleared."""
    decision = await engine.handle(HealthCleared(target=target))
    if decision.answer is None:
        raise Unknown(_no_target(engine, target))
    await engine.readiness.look(engine.settings.policy.backends)  # what costs nothing to see
    return list(decision.answer)


async def pause(engine: "Engine", target: str, *, note: str | None) -> None:
    event = HealthPaused(target=target, note=_redacted(engine, note))
    _require_known(engine, await engine.handle(event), target)


async def resume(engine: "Engine", target: str) -> None:
    _require_known(engine, await engine.handle(HealthResumed(target=target)), target)


def _redacted(engine: "Engine", words: str | None) -> str | None:
    return None if words is None else engine.world.redact(words)


def _require_known(engine: "Engine", decision: Decision, target: str) -> None:
    if decision.answer is False:
        raise Unknown(_no_target(engine, target))


def _no_target(engine: "Engine", target: str | None) -> str:
    known = ", ".join(engine.settings.policy.backends)
    return f"no backend or scope {target!r}; known are {known}"


MAX_SAMPLE_BYTES = 16_384
MAX_PATTERN_CHARS = 120

YOURS, VENDOR, COMMON = "yours", "vendor", "common"


class KnownAttempt(Struct, frozen=True, kw_only=True):
    """A signature and where it comes from."""

    kind: str | None
    """Kind of backend; None: every one."""
    source: str
    rule: Rule


class Sample(Struct, frozen=True, kw_only=True):
    path: Path
    row: Path | None
    """Output and right reason alone, as a line that can be sent."""
    signature: str
    """TOML, ready to be pasted into the configuration."""


def known(
    settings: Settings, built_in: Mapping[str, tuple[Rule, ...]], kind: str | None
) -> tuple[KnownAttempt, ...]:
    """List signatures in the order in which they are tried; for one kind, or for all."""
    kinds = sorted(built_in) if kind is None else [kind]
    found: dict[tuple[str | None, str], KnownAttempt] = {}
    for one in kinds:
        for rule in settings.rules_for(one):
            found.setdefault((None, rule.id), KnownAttempt(kind=kind, source=YOURS, rule=rule))
    for one in kinds:
        for rule in built_in.get(one, ()):
            found[one, rule.id] = KnownAttempt(kind=one, source=VENDOR, rule=rule)
    common = (KnownAttempt(kind=None, source=COMMON, rule=rule) for rule in COMMON_RULES)
    return (*found.values(), *common)


def judged(
    engine: "Engine",
    evidence: Evidence,
    *,
    backend: str | None = None,
    kind: str | None = None,
    now_at: float | None = None,
    timezone: str | None = None,
) -> Failure | None:
    """Judge this evidence as the daemon would, without changing anything."""
    kind = kind or _kind_of(engine, backend)
    return judge(
        evidence,
        engine.settings,
        None if kind is None else engine.world.kinds.get(kind),
        None if backend is None else BackendId(backend),
        now=engine.clock.now() if now_at is None else now_at,
        timezone=timezone,
        kind_name=kind,
        signatures=engine.world.signatures.get(kind or ""),
        conceal=engine.world.conceal,
        model=engine.world.taught.model(),
    )


def explained(
    engine: "Engine",
    evidence: Evidence,
    *,
    backend: str | None = None,
    kind: str | None = None,
    now_at: float | None = None,
    timezone: str | None = None,
) -> "tuple[Failure | None, Explanation]":
    """The verdict and what it rests on. Nothing that is redacted elsewhere is shown."""
    from fallbackd.classify.explaining import explain  # see `judging.get_ready`

    failure = judged(engine, evidence, backend=backend, kind=kind, now_at=now_at, timezone=timezone)
    name = kind or _kind_of(engine, backend) or "generic"
    rules = (*engine.settings.rules_for(name), *engine.world.signatures.get(name, ()))
    shown = concealed(evidence, lambda text: redact(engine.world.conceal(text)))
    return failure, explain(shown, rules, name, failure, engine.world.taught.model())


def _kind_of(engine: "Engine", backend: str | None) -> str | None:
    if backend is None:
        return None
    found = find_backend(engine.settings.policy, BackendId(backend))
    return None if found is None else found.kind


def suggestion(*, kind: str | None, reason: str, evidence: str, output: str, name: str) -> str:
    """
    A signature for the line that the verdict was about, else for the last line of the output.

    Numbers are left open, so that the same words with another time fit too.
    """
    line = _line_of(evidence, output)
    pattern = re.sub(r"\d+", r"\\d+", re.sub(r"([\\.+*?()|\[\]{}^$])", r"\\\1", line))
    linear(pattern)  # what is offered has to work
    lines = [
        "[[signatures]]",
        f"id = {_toml(name)}",
        f"pattern = {_toml(pattern)}",
        f"reason = {_toml(reason)}",
    ]
    if kind is not None:
        lines.insert(2, f"kind = {_toml(kind)}")
    return "\n".join(lines) + "\n"


def _line_of(evidence: str, output: str) -> str:
    lines = [" ".join(redact(strip_escapes(line)).split()) for line in output.split("\n")]
    lines = [line for line in lines if line]
    known_by = " ".join(evidence.split())[:60]
    fitting = [line for line in lines if known_by and known_by in line]
    line = fitting[-1] if fitting else (known_by or (lines[-1] if lines else ""))
    line = re.sub(r"(?:\[(?:key|token|redacted|secret|email|hex|login)\]|\*{6}).*", "", line)
    return line[:MAX_PATTERN_CHARS].strip() or "what the program printed"


def _toml(text: str) -> str:
    """A literal string where that is possible: patterns are full of backslashes."""
    return f"'{text}'" if "'" not in text and text.isprintable() else json.dumps(text)


def keep(directory: Path, name: str, sample: Mapping[str, Any]) -> Path:  # JSON of any shape
    """Write the sample, readable for its owner only. Raises `OSError`."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = directory / f"{name}.json"
    text = json.dumps(sample, indent=2, ensure_ascii=False) + "\n"
    write_private(path, text.encode("utf-8", "replace"))
    return path


def write_private(path: Path, content: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        file.write(content)


def sample_of(
    *,
    at: float,
    delegation: str,
    attempt: str,
    backend: str,
    kind: str | None,
    exit_code: int | None,
    failure: Failure | None,
    reason: str | None,
    note: str | None,
    output: str,
) -> dict[str, Any]:
    said = None
    if failure is not None:
        said = {
            "reason": failure.reason.value,
            "signature": failure.signature,
            "confidence": failure.confidence,
            "evidence": failure.evidence,
        }
    return {
        "at": at,
        "delegation": delegation,
        "attempt": attempt,
        "backend": backend,
        "kind": kind,
        "exit_code": exit_code,
        "verdict": said,
        "right_reason": reason,
        "note": note,
        "output": redact(strip_escapes(output)),
    }


def row_of(sample: Mapping[str, Any]) -> bytes:
    """A line as training reads it: the redacted output and its right reason, nothing private."""
    row = {
        "text": sample["output"],
        "platform": sample["kind"] or "generic",
        "http_status": None,
        "reason": sample["right_reason"],
        "also_ok": [],
        "thread": sample["attempt"],
    }
    return (json.dumps(row, ensure_ascii=False) + "\n").encode("utf-8", "replace")


async def note_wrong(
    engine: "Engine",
    delegation: str,
    *,
    attempt: str | int | None,
    reason: str | None,
    note: str | None,
) -> tuple[str, Sample]:
    """
    Keep what an attempt printed as a sample of a wrong verdict, and offer a signature.

    Raises:
        Unknown: No such delegation or attempt.
        Invalid: No such reason, or the sample cannot be written.
    """
    if reason is not None and reason not in set(Reason):
        raise Invalid(f"{reason!r} is not a failure reason")
    last = await engine.log(delegation, attempt=attempt, offset=0, max_bytes=1)
    found = await engine.delegation(delegation)
    one = None if last.attempt is None else found.attempt(AttemptId(last.attempt))
    if one is None:
        raise Unknown(f"{delegation} has no attempt that could be judged")
    part = await engine.log(
        delegation,
        attempt=one.attempt,
        offset=max(0, last.size_bytes - MAX_SAMPLE_BYTES),
        max_bytes=MAX_SAMPLE_BYTES,
    )
    backend = find_backend(engine.settings.policy, one.backend)
    kind, verdict = None if backend is None else backend.kind, one.failure
    sample = sample_of(
        at=engine.clock.now(),
        delegation=delegation,
        attempt=one.attempt,
        backend=one.backend,
        kind=kind,
        exit_code=one.exit_code,
        failure=verdict,
        reason=reason,
        note=engine.world.redact(note) if note else None,
        output=engine.world.redact(part.text),
    )
    row = None
    try:
        path = await anyio.to_thread.run_sync(
            keep, engine.world.runs_root.parent / "samples", one.attempt, sample
        )
        if reason is not None:
            row = path.with_suffix(".jsonl")
            await anyio.to_thread.run_sync(write_private, row, row_of(sample))
    except OSError as error:
        raise Invalid(f"the sample cannot be kept: {error.strerror}") from None
    signature = suggestion(
        kind=kind,
        reason=reason or (Reason.UNKNOWN if verdict is None else verdict.reason).value,
        evidence="" if verdict is None else verdict.evidence,
        output=part.text,
        name=f"mine-{one.attempt}",
    )
    return one.attempt, Sample(path=path, row=row, signature=signature)


MAX_SAMPLES, FOLDS = 200, 5
log = structlog.get_logger("lessons")


class TriedSample(Struct, frozen=True, kw_only=True):
    attempt: str
    right: Reason
    before: Reason | None
    after: Reason | None
    unseen: Reason | None
    """Verdict by weights learned from the other samples: what the next one like it meets."""
    signature: str
    """Signature that decides it now; a rule or a structured error is not changed by weights."""


class Training(Struct, frozen=True, kw_only=True):
    path: Path | None
    """File of the weights; None: nothing was learned, and no private weights are left."""
    tried: tuple[TriedSample, ...]
    passed_over: int
    """Samples without a right reason, or with one that the model does not know."""


async def train(engine: "Engine") -> Training:
    """
    Learn from the samples, and take it into use at once.

    Raises:
        Invalid: The private weights cannot be written, or the shipped ones are damaged.
    """
    place = engine.world.taught.path
    if place is None:
        raise Invalid("this daemon keeps no private state to learn in")
    try:
        return await anyio.to_thread.run_sync(_train, engine, place)
    except OSError as error:
        raise Invalid(f"the private weights cannot be written: {error.strerror}") from None


def _train(engine: "Engine", place: Path) -> Training:
    from fallbackd.classify.explaining import WITHOUT_MODEL
    from fallbackd.classify.model import usable
    from fallbackd.classify.weighing import learn  # see `judging.get_ready`

    if usable() is None:
        raise Invalid(f"nothing can be learned: {WITHOUT_MODEL}")
    samples = _samples(place.parent / "samples")
    known = [one for one in samples if _can_learn(one)]
    lessons = [_lesson(one) for one in known]
    model = learn(lessons) if lessons else None
    tried = _tried(engine, known, lessons, model)
    if model is None or model.added is None:
        place.unlink(missing_ok=True)
    else:
        write_private(place, msgspec.json.encode(model.added))
    engine.world.taught.take(model)
    return Training(
        path=None if model is None else place,
        tried=tuple(sorted(tried, key=lambda one: one.attempt)),
        passed_over=len(samples) - len(known),
    )


class _Sample(Struct, frozen=True, kw_only=True):
    """Fields of what `sample_of` writes."""

    attempt: str
    backend: str | None = None
    kind: str | None = None
    exit_code: int | None = None
    right_reason: str | None = None
    output: str = ""


def _samples(directory: Path) -> list[_Sample]:
    """The newest; a file that is no sample is passed over."""
    found = []
    paths = sorted(directory.glob("*.json"), key=lambda path: path.stat().st_mtime)
    for path in paths[-MAX_SAMPLES:]:
        try:
            found.append(msgspec.json.decode(path.read_bytes(), type=_Sample))
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            log.warning("sample.unreadable", path=str(path), error=str(error))
    return found


def _tried(
    engine: "Engine", known: list[_Sample], lessons: list["Lesson"], model: "Model | None"
) -> list[TriedSample]:
    """Verdicts about each sample: before, after, and by a model that has not learned it."""
    from fallbackd.classify.weighing import learn  # see `judging.get_ready`

    tried: list[TriedSample] = []
    for fold in range(FOLDS):
        others = [one for at, one in enumerate(lessons) if at % FOLDS != fold]
        unseen = learn(others) if others else None
        for one in known[fold::FOLDS]:
            after = _judged(engine, one, model)
            tried.append(
                TriedSample(
                    attempt=one.attempt,
                    right=Reason(one.right_reason or ""),
                    before=_reason(_judged(engine, one, None)),
                    after=_reason(after),
                    unseen=_reason(_judged(engine, one, unseen)),
                    signature="" if after is None else after.signature,
                )
            )
    return tried


def _can_learn(sample: _Sample) -> bool:
    from fallbackd.classify.weighing import can_learn  # see `judging.get_ready`

    reason = sample.right_reason
    return (
        reason is not None
        and reason in set(Reason)
        and sample.output.strip() != ""
        and can_learn(Reason(reason))
    )


def _lesson(sample: _Sample) -> "Lesson":
    from fallbackd.classify.weighing import Lesson  # see `judging.get_ready`

    reason = Reason(sample.right_reason or "")
    return Lesson(text=sample.output, reason=reason, kind=sample.kind or "generic")


def _judged(engine: "Engine", sample: _Sample, model: "Model | None") -> Failure | None:
    return judge(
        Evidence(text=sample.output, exit_code=sample.exit_code),
        engine.settings,
        None if sample.kind is None else engine.world.kinds.get(sample.kind),
        None,
        now=engine.clock.now(),
        kind_name=sample.kind,
        signatures=engine.world.signatures.get(sample.kind or ""),
        model=model,
    )


def _reason(failure: Failure | None) -> Reason | None:
    return None if failure is None else failure.reason
