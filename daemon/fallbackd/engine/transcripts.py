"""
What an agent said and did, as text for people: its recorded output, read by the parser of its kind.

A piece of a recording is read with some of what came before it, so that a parser which was not
there at the beginning knows what it is in the middle of.
"""

from fallbackd.backends.spec import BackendKind, Options, Parser
from fallbackd.core.protocol import (
    AgentText,
    Chunk,
    GivenUp,
    Observation,
    Retrying,
    ToolStarted,
)
from fallbackd.core.records import Attempt
from fallbackd.engine.environment import World
from fallbackd.engine.requests import LogPart, Unknown
from fallbackd.lib.secretvalues import SecretValues
from fallbackd_conversations.redact import mask_keys, strip_controls

BEFORE_BYTES = 1024 * 1024
MAX_ARGUMENT_CHARS = 200
MAX_EVIDENCE_CHARS = 500


def is_readable(kind: BackendKind, options: Options) -> bool:
    """False: its output is text for people as it is."""
    return not kind.is_plain(options)


def read_part(
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
            text = _masked(strip_controls(_written(seen)), world.secret_values)
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


def _masked(text: str, values: SecretValues) -> str:
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
