"""
Samples of wrong verdicts, learned from: private weights on top of the shipped ones.

Nothing leaves the machine; training without samples takes the private weights away again.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import anyio.to_thread
import msgspec
import structlog
from msgspec import Struct

from fallbackd.core.failures import Failure, Reason
from fallbackd.core.protocol import Evidence
from fallbackd.engine.feedback import write_private
from fallbackd.engine.judging import judge
from fallbackd.engine.requests import Invalid

if TYPE_CHECKING:
    from fallbackd.classify.model import Model
    from fallbackd.classify.weighing import Lesson
    from fallbackd.engine.api import Engine

MAX_SAMPLES, FOLDS = 200, 5
log = structlog.get_logger("lessons")


class TriedSample(Struct, frozen=True, kw_only=True):
    attempt: str
    right: Reason
    before: Reason | None
    after: Reason | None
    unseen: Reason | None
    """By weights that were learned from the other samples: what the next one like it meets."""
    signature: str
    """What decides it now; a rule or a structured error is not changed by weights."""


class Training(Struct, frozen=True, kw_only=True):
    path: Path | None
    """None: nothing was learned, and no private weights are left."""
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
    """Of what `feedback.sample_of` writes."""

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
    """What is found in each sample: before, after, and by a model that has not learned it."""
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
