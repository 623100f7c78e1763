"""
Pieces of an attempt's log, cut at whole characters, or what its agent said and did there.

The file keeps what was printed. A piece is given out with secrets masked: the mask is as long as
what it hides, so that offsets into the file stay what they are.
"""

import anyio.to_thread

from fallbackd.backends.spec import Parser
from fallbackd.core.ids import AttemptId, BackendId
from fallbackd.core.protocol import AgentText, Chunk, GivenUp, Observation, Retrying, ToolStarted
from fallbackd.core.records import Attempt, Delegation
from fallbackd.core.scopes import find_backend
from fallbackd.engine.environment import Settings, World
from fallbackd.engine.requests import LogPart, Unknown
from fallbackd.engine.runs import Runs
from fallbackd_conversations.redact import mask_keys, strip_controls

MAX_CHARACTER_BYTES = 4
"""Longest character in UTF-8."""
KEY_BYTES = 4096
"""No key that is known by its shape is longer."""
BEFORE_BYTES = 1024 * 1024
MAX_ARGUMENT_CHARS = 200
MAX_EVIDENCE_CHARS = 500


def no_log(delegation: Delegation, *, offset: int) -> LogPart:
    """Empty log of a delegation that has made no attempt, for now or for ever."""
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


def parser_of(settings: Settings, world: World, backend: BackendId) -> Parser | None:
    """The parser that shows what an agent said and did; None: its output is text for people."""
    found = find_backend(settings.policy, backend)
    kind = None if found is None else world.kinds.get(found.kind)
    options = settings.options_of(backend)
    return None if kind is None or kind.is_plain(options) else kind.parser(options)


async def read_part(
    world: World,
    runs: Runs,
    attempt: Attempt,
    parser: Parser | None,
    *,
    offset: int,
    max_bytes: int,
) -> LogPart:
    """
    Read what an attempt printed, or what its parser shows of about as many bytes.

    While the attempt runs, what may be the beginning of a secret is held back until its end is
    there.

    Args:
        max_bytes: At most, but for a character that is longer than that by itself.

    Raises:
        Unknown: Something else lies where the log was.
    """
    directory = runs.attempt_path(attempt.attempt)
    has_ended = attempt.ended_at is not None

    def read() -> tuple[str, int, int]:
        if parser is None:
            return _printed(world, directory, offset, max_bytes, has_ended=has_ended)
        return _said(world, directory, parser, offset, max_bytes, has_ended=has_ended)

    try:
        text, following, size = await anyio.to_thread.run_sync(read, limiter=runs.readers)
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


def _printed(
    world: World, directory: str, offset: int, max_bytes: int, *, has_ended: bool
) -> tuple[str, int, int]:
    """The text of a piece of the file, the offset behind it, and the size of the file."""
    data, following, size = _masked(
        world, directory, offset, max(MAX_CHARACTER_BYTES, max_bytes), has_ended=has_ended
    )
    is_whole = has_ended and following >= size
    kept = _at_most(data, max_bytes)
    if is_whole and (len(data) <= max_bytes or not kept):
        kept = data  # what is half a character now stays half
    return kept.decode("utf-8", "replace"), following - (len(data) - len(kept)), size


def _masked(
    world: World, directory: str, offset: int, max_bytes: int, *, has_ended: bool
) -> tuple[bytes, int, int]:
    """A piece of the file, with secrets masked that begin before or end behind it too."""
    read_log, values = world.read_log, world.secret_values
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


def _said(
    world: World, directory: str, parser: Parser, offset: int, max_bytes: int, *, has_ended: bool
) -> tuple[str, int, int]:
    """
    Read what the agent said and did. The parser gets some of what came before the piece, so
    that it knows what the piece is in the middle of.
    """
    _, _, size = world.read_log(directory, offset=offset, max_bytes=1)
    if not has_ended and offset >= size:
        return "", offset, size
    following = offset
    before: list[Chunk] = []
    chunks: list[Chunk] = []
    for chunk, end in world.read_chunks(directory, offset=max(0, offset - BEFORE_BYTES)):
        if end <= offset:
            before.append(chunk)
            continue
        chunks.append(chunk)
        following = end
        if following - offset >= max_bytes:
            break
    seen = _observed(parser, before, chunks, is_end=has_ended and following >= size)
    masked = mask_keys(
        world.secret_values.mask(strip_controls(_written(seen)).encode("utf-8", "replace"))
    )
    return masked.decode("utf-8", "replace"), following, size


def _at_most(data: bytes, max_bytes: int) -> bytes:
    """Whole characters of at most `max_bytes`; one that is longer than that by itself."""
    for size in range(min(max_bytes, len(data)), len(data) + 1):
        if kept := _whole(data[:size]):
            return kept
    return b""


def _whole(data: bytes) -> bytes:
    """Cut off the beginning of a character that has not come whole."""
    for back in range(1, min(MAX_CHARACTER_BYTES, len(data)) + 1):
        byte = data[-back]
        if byte < 0x80:
            return data
        if byte >= 0xC0:
            needs = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data if back >= needs else data[:-back]
    return data


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
