"""The log of opencode sessions in a file of its own: one JSON object a line."""

import json
import os
from collections.abc import Mapping, MutableMapping
from typing import Any

import structlog

from fallbackd.config.fallback_file import LOGS, Fallbacks
from fallbackd.config.tables import Opencode
from fallbackd.lib.privatefile import RotatingFile

DEFAULT = f"{LOGS}/model-fallback.log"
_SUBJECTS = ("server", "session", "fallback", "rescue", "replay", "event", "notice", "fact")
_NAMES = frozenset({"config.imported", "config.kept", "health.moved"})

CopiedFields = MutableMapping[str, Any]  # whatever was logged


class OpencodeLog:
    """
    A structlog processor that copies what is about sessions, after it was cleaned.

    Attributes:
        file: None: nothing is copied.
    """

    def __init__(self) -> None:
        self.file: RotatingFile | None = None

    def __call__(self, _: object, __: str, fields: CopiedFields) -> Mapping[str, Any]:
        event = str(fields.get("event"))
        if self.file is not None and (event.partition(".")[0] in _SUBJECTS or event in _NAMES):
            line = {"ts": fields.get("timestamp"), **fields}
            line.pop("timestamp", None)
            self.file.add(json.dumps(line, ensure_ascii=False, default=str))
        return fields

    def write_to(self, path: str | None) -> None:
        """Another file from now on."""
        if (None if self.file is None else self.file.path) != path:
            self.file = None if path is None else RotatingFile(path, on_trouble=_say)


def log_path(opencode: Opencode, imported: Fallbacks | None, *, home: str) -> str | None:
    """
    Return the path to write to: as the configuration says, else in `LOGS`, under the name of an
    imported file. Always inside the home directory; None: nowhere.
    """
    if opencode.log_path is not None:
        path = opencode.log_path
        path = os.path.join(home, path[2:]) if path.startswith("~/") else path
    elif imported is not None and imported.logging:
        path = imported.log_path or os.path.join(home, DEFAULT)
    else:
        return None
    inside = os.path.realpath(home) + "/"
    if not os.path.realpath(path).startswith(inside):
        _say(f"{path}: must lie inside the home directory")
        return None
    return path


def _say(problem: str) -> None:
    structlog.get_logger("opencode").warning("log.unwritable", problem=problem)
