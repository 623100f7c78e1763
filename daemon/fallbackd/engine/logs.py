"""
Pieces of an attempt's log, cut at whole characters.

The file keeps what was printed. A piece is given out with secrets masked: the mask is as long as
what it hides, so that offsets into the file stay what they are.
"""

import anyio.to_thread

from fallbackd.backends.spec import BackendKind, Options, Parser
from fallbackd.core.ids import AttemptId
from fallbackd.core.protocol import AgentText, Chunk, GivenUp, Observation, Retrying, ToolStarted
from fallbackd.core.records import Attempt, Delegation
from fallbackd.engine.environment import LogReader, World
from fallbackd.engine.requests import LogPart, Unknown
from fallbackd.lib.secretvalues import SecretValues
from fallbackd_conversations.redact import mask_keys, strip_controls

MAX_CHARACTER_BYTES = 4
"""In UTF-8."""
KEY_BYTES = 4096
"""No key that is known by its shape is longer."""


def no_log(delegation: Delegation, *, offset: int) -> LogPart:
    """Of a delegation that has made no attempt: nothing, for now or for ever."""
    return LogPart(
        attempt=None,
        log_path=None,
        text="",
        offset=offset,
        next_offset=offset,
        size_bytes=0,
        ended=delegation.is_ended,
    )


def find_attempt(delegation: Delegation, attempt: str | int) -> Attempt:
    """
    An attempt by its id or its number.

    Raises:
        Unknown: There is none such.
    """
    name = f"{delegation.delegation}.{attempt}" if str(attempt).isdigit() else str(attempt)
    found = delegation.attempt(AttemptId(name))
    if found is None:
        raise Unknown(f"{delegation.delegation} has no attempt {attempt!r}")
    return found


async def read_part(
    read_log: LogReader,
    attempt: Attempt,
    directory: str,
    *,
    offset: int,
    max_bytes: int,
    values: SecretValues,
    limiter: anyio.CapacityLimiter,
) -> LogPart:
    """
    At most `max_bytes`, but for a character that is longer than that by itself.

    While the attempt runs, what may be the beginning of a secret is held back until its end is
    there.

    Raises:
        Unknown: Something else lies where the log was.
    """
    has_ended = attempt.ended_at is not None
    try:
        data, following, size = await anyio.to_thread.run_sync(
            lambda: _masked(
                read_log,
                directory,
                offset=offset,
                max_bytes=max(MAX_CHARACTER_BYTES, max_bytes),
                values=values,
                has_ended=has_ended,
            ),
            limiter=limiter,
        )
    except OSError as error:
        why = error.strerror or str(error)
        raise Unknown(f"the log of {attempt.attempt} cannot be read: {why}") from error
    is_whole = has_ended and following >= size
    kept = _at_most(data, max_bytes)
    if is_whole and (len(data) <= max_bytes or not kept):
        kept = data  # what is half a character now stays half
    following -= len(data) - len(kept)
    return LogPart(
        attempt=attempt.attempt,
        log_path=f"{directory}/output.log",
        text=kept.decode("utf-8", "replace"),
        offset=offset,
        next_offset=following,
        size_bytes=size,
        ended=has_ended and following >= size,
    )


def _masked(
    read_log: LogReader,
    directory: str,
    *,
    offset: int,
    max_bytes: int,
    values: SecretValues,
    has_ended: bool,
) -> tuple[bytes, int, int]:
    """What `read_log` gives, with secrets masked that begin before or end behind the piece too."""
    data, following, size = read_log(directory, offset=offset, max_bytes=max_bytes)
    around = max(KEY_BYTES, values.longest_bytes)
    start = max(0, offset - around)
    before = read_log(directory, offset=start, max_bytes=offset - start)[0] if offset > 0 else b""
    behind = read_log(directory, offset=following, max_bytes=around)[0] if following < size else b""
    whole = mask_keys(values.mask(before + data + behind))
    shown = whole[len(before) : len(before) + len(data)]
    if not has_ended and following >= size:
        held = min(len(data), values.begun_at_end(data))
        shown, following = shown[: len(data) - held], following - held
    return shown, following, size


def _at_most(data: bytes, max_bytes: int) -> bytes:
    """Whole characters of at most `max_bytes`; one that is longer than that by itself."""
    for size in range(min(max_bytes, len(data)), len(data) + 1):
        if kept := _whole(data[:size]):
            return kept
    return b""


def _whole(data: bytes) -> bytes:
    """Without the beginning of a character that has not come whole."""
    for back in range(1, min(MAX_CHARACTER_BYTES, len(data)) + 1):
        byte = data[-back]
        if byte < 0x80:
            return data
        if byte >= 0xC0:
            needs = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data if back >= needs else data[:-back]
    return data


BEFORE_BYTES = 1024 * 1024
MAX_ARGUMENT_CHARS = 200
MAX_EVIDENCE_CHARS = 500


def is_readable(kind: BackendKind, options: Options) -> bool:
    """False: its output is text for people as it is."""
    return not kind.is_plain(options)


def read_text(
    world: World,
    attempt: Attempt,
    directory: str,
    kind: BackendKind,
    options: Options,
    *,
    offset: int,
    max_bytes: int,
) -> LogPart:
    """
    What the bytes from `offset` on tell, about `max_bytes` of them.

    Raises:
        Unknown: Something else lies where the log was.
    """
    has_ended = attempt.ended_at is not None
    try:
        _, _, size = world.read_log(directory, offset=offset, max_bytes=1)
        following, text = offset, ""
        if has_ended or offset < size:
            start = max(0, offset - BEFORE_BYTES)
            before: list[Chunk] = []
            chunks: list[Chunk] = []
            for chunk, end in world.read_chunks(directory, offset=start):
                if end <= offset:
                    before.append(chunk)
                    continue
                chunks.append(chunk)
                following = end
                if following - offset >= max_bytes:
                    break
            is_end = has_ended and following >= size
            seen = _observed(kind.parser(options), before, chunks, is_end=is_end)
            text = _masked_text(strip_controls(_written(seen)), world.secret_values)
    except OSError as error:
        why = error.strerror or str(error)
        raise Unknown(f"the log of {attempt.attempt} cannot be read: {why}") from error
    return LogPart(
        attempt=attempt.attempt,
        log_path=f"{directory}/output.log",
        text=text,
        offset=offset,
        next_offset=following,
        size_bytes=size,
        ended=has_ended and following >= size,
    )


def _observed(
    parser: Parser, before: list[Chunk], chunks: list[Chunk], *, is_end: bool
) -> list[Observation]:
    """
    Args:
        is_end: Nothing follows: the last line of each stream is whole, whatever it ends with.
    """
    for chunk in before:
        parser.feed(chunk)
    if is_end:
        streams = sorted({one.stream for one in (*before, *chunks)})
        chunks = [*chunks, *(Chunk(stream, b"\n", 0.0) for stream in streams)]
    return [one for chunk in chunks for one in parser.feed(chunk)]


def _masked_text(text: str, values: SecretValues) -> str:
    data = mask_keys(values.mask(text.encode("utf-8", "replace")))
    return data.decode("utf-8", "replace")


def _written(seen: list[Observation]) -> str:
    written = ""
    for one in seen:
        if isinstance(one, AgentText):
            written += one.text
        elif line := _line(one):
            written += f"{'' if written.endswith(chr(10)) or not written else chr(10)}{line}\n"
    return written


def _line(one: Observation) -> str:
    match one:
        case ToolStarted():
            arguments = one.key.removeprefix(one.name).strip()
            return f"> {one.name} {_short(arguments, MAX_ARGUMENT_CHARS)}".rstrip()
        case Retrying():
            return f"! trying again: {_short(one.evidence.text, MAX_EVIDENCE_CHARS)}".rstrip(": ")
        case GivenUp():
            return f"! failed: {_short(one.evidence.text, MAX_EVIDENCE_CHARS)}".rstrip(": ")
        case _:
            return ""


def _short(text: str, most: int) -> str:
    line = " ".join(strip_controls(text).split())
    return line if len(line) <= most else f"{line[: most - 1]}…"
