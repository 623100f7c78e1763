"""
Logs: one line each on stderr, for people or as JSON, without secrets and control characters.

Tracebacks come without the values of local variables, which may be prompts.
"""

import io
import logging
import os
import sys
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Literal, TextIO, cast

import structlog

from fallbackd.classify.redact import redact, strip_escapes

MAX_VALUE_CHARS = 4000
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
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            lambda _, __, fields: clean(fields, conceal),
            *(() if copy_to is None else (copy_to,)),
            _renderer(format),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(cast(TextIO, _Stderr())),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(handlers=[_Bridge()], level=logging.WARNING, force=True)


class _Stderr(io.TextIOBase):
    """
    Without a buffer, and never an error: a log on a full disk, or one that nobody reads any
    more, ends no work.
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
    """What libraries log comes out in the same way, and is cleaned in the same way."""

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
            return _printable(redact(text), lines=name == "exception")
        case Mapping():
            return {str(key): _cleaned(each, name, conceal) for key, each in value.items()}
        case list() | tuple():
            return [_cleaned(each, name, conceal) for each in value]
        case bool() | int() | float() | None:
            return value
        case _:
            return _cleaned(str(value), name, conceal)


def _printable(text: str, *, lines: bool) -> str:
    kept = "\n\t" if lines else ""
    return "".join(
        one if one.isprintable() or one in kept else f"\\x{ord(one):02x}" for one in text
    )


def _renderer(format: str) -> structlog.typing.Processor:
    if format == "json":
        return structlog.processors.JSONRenderer()
    return structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=24)
