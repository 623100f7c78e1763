"""
Logs: one line each on stderr, for people or as JSON, without secrets and control characters.

Tracebacks come without the values of local variables, which may be prompts.
"""

import datetime
import io
import logging
import os
import re
import sys
from collections.abc import Callable, Mapping, MutableMapping
from functools import partial
from typing import Any, Literal, TextIO, cast

import structlog

from fallbackd_conversations.redact import redact, strip_escapes

MAX_VALUE_CHARS = 4000
SENTENCE = "sentence"
"""A field that says the whole event to people."""
SCOPE = "scope"
"""A field with the name of what an outage is about."""
_CREDENTIAL = re.compile(r"(credential:)([\w.:-]{1,300}/[\w.@+-]{1,64}(?:\+model:\S{1,300})?)")
_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}

# structlog hands on whatever was logged
LogFields = MutableMapping[str, Any]


def set_up(
    *,
    format: Literal["console", "json"],
    level: str,
    conceal: Callable[[str], str] = lambda text: text,
    copy_to: structlog.typing.Processor | None = None,
) -> None:
    """
    Args:
        conceal: Replaces secrets that are known by value.
        copy_to: Sees every line after it was cleaned.
    """
    structlog.configure(
        processors=[
            structlog.processors.format_exc_info,
            lambda _, __, fields: clean(fields, conceal),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *(() if copy_to is None else (copy_to,)),
            *_renderer(format, is_journal=is_journal(os.environ)),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(cast(TextIO, _Stderr())),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(handlers=[_Bridge()], level=logging.WARNING, force=True)


class _Stderr(io.TextIOBase):
    """
    Without a buffer, and never an error: a log on a full disk, or in a pipe without a reader,
    must not end any work.
    """

    _FD = 2

    def write(self, text: str, /) -> int:
        left = text.encode("utf-8", "backslashreplace")
        try:
            while left:
                left = left[os.write(self._FD, left) :]
        except OSError:
            pass
        return len(text)


class _Bridge(logging.Handler):
    """Sends what libraries log through the same processors, so that it is cleaned too."""

    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger(record.name)
        tell = log.error if record.levelno >= logging.ERROR else log.warning
        tell(
            "library.spoke", logger=record.name, words=record.getMessage(), exc_info=record.exc_info
        )


def clean(fields: LogFields, conceal: Callable[[str], str]) -> Mapping[str, Any]:
    """Make every value printable and free of secrets; leave out what is null."""
    return {
        name: _cleaned(value, name, conceal) for name, value in fields.items() if value is not None
    }


def _cleaned(value: Any, name: str, conceal: Callable[[str], str]) -> Any:
    match value:
        case str():
            # Values first and whole: a cut or a pattern may leave a piece that none matches.
            text = strip_escapes(conceal(value)[:MAX_VALUE_CHARS])
            return _printable(_redacted(text, name), lines=name == "exception")
        case bool() | int() | float() | None:
            return value
        case Mapping():
            return {str(key): _cleaned(each, name, conceal) for key, each in value.items()}
        case list() | tuple():
            return [_cleaned(each, name, conceal) for each in value]
        case _:
            return _cleaned(str(value), name, conceal)


def _redacted(text: str, name: str) -> str:
    """
    A credential's scope has the shape of a secret that follows its name (`token: …`), and is a
    name itself. Owner, label and model are looked at like any other text.
    """
    found = _CREDENTIAL.fullmatch(text) if name == SCOPE else None
    return redact(text) if found is None else found[1] + redact(found[2])


def _printable(text: str, *, lines: bool) -> str:
    if text.isprintable():
        return text
    kept = "\n\t" if lines else ""
    return "".join(
        one if one.isprintable() or one in kept else f"\\x{ord(one):02x}" for one in text
    )


def is_journal(environ: Mapping[str, str]) -> bool:
    """Return whether stderr goes to the journal. Source: systemd.exec(5), `$JOURNAL_STREAM`."""
    device, _, inode = environ.get("JOURNAL_STREAM", "").partition(":")
    try:
        seen = os.fstat(_Stderr._FD)
    except OSError:
        return False
    return (device, inode) == (str(seen.st_dev), str(seen.st_ino))


def _renderer(format: str, *, is_journal: bool) -> tuple[structlog.typing.Processor, ...]:
    if format == "json":
        rendered: structlog.typing.Processor = structlog.processors.JSONRenderer()
        return (rendered,)
    if is_journal:  # which has a time and a level of its own for each line
        return _for_people, _prioritised
    if not sys.stderr.isatty():
        return _for_people, _sentence_or_line
    colored = structlog.dev.ConsoleRenderer(colors=True, pad_event_to=_EVENT_CHARS)
    return _for_people, partial(_sentence_or_line, lines=colored)


def _for_people(_: object, level: str, fields: LogFields) -> LogFields:
    """Instants as local times."""
    return {
        name: _local_time(value)
        if name.endswith("_at") and isinstance(value, float) and _EARLIEST < value < _LATEST
        else value
        for name, value in fields.items()
    }


_EARLIEST, _LATEST = 1e8, 1e11
"""Unix seconds; a number outside of them is something else."""


def _local_time(at: float) -> str:
    return datetime.datetime.fromtimestamp(at).astimezone().isoformat(timespec="seconds")


_EVENT_CHARS = 24
_LEVEL_CHARS = len("exception")
_QUOTED = re.compile(r"[ \t=\r\n\"']")


def _line(_: object, level: str, fields: LogFields) -> str:
    """Write a line as structlog does for a terminal, without colors and in a tenth of the time."""
    time, level, event = fields.pop("timestamp"), fields.pop("level"), fields.pop("event")
    return _with(f"{time} [{level:<{_LEVEL_CHARS}}] {event:<{_EVENT_CHARS}}", fields)


def _with(head: str, fields: LogFields) -> str:
    exception = fields.pop("exception", None)
    line = " ".join([head, *[f"{name}={_word(fields[name])}" for name in sorted(fields)]]).rstrip()
    return line if exception is None else f"{line}\n{exception}"


def _word(value: object) -> str:
    return value if isinstance(value, str) and not _QUOTED.search(value) else repr(value)


def _sentence_or_line(
    logger: object, level: str, fields: LogFields, *, lines: structlog.typing.Processor = _line
) -> str:
    """Return the event's own sentence where it has one, else its line."""
    if isinstance(sentence := fields.get(SENTENCE), str):
        return sentence
    return cast(str, lines(logger, level, fields))


_PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "exception": 3, "critical": 2}
"""Source: sd-daemon(3)."""


def _prioritised(_: object, level: str, fields: LogFields) -> str:
    """Prefix each line with its level as the journal reads it; a traceback has many."""
    prefix = f"<{_PRIORITIES.get(level, 6)}>"
    line = fields.get(SENTENCE)
    if not isinstance(line, str):
        del fields["timestamp"], fields["level"]
        line = _with(fields.pop("event"), fields)
    return "\n".join(prefix + one for one in line.split("\n"))
