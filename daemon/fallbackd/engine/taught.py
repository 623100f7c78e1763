"""The private weights: `weights.json` in the state directory, 0600, read when a text needs them."""

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import structlog

if TYPE_CHECKING:
    from fallbackd.classify.model import Model

log = structlog.get_logger("lessons")


class Taught:
    """The model with what was learned here, if anything was."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._model: Model | None = None
        self._is_read = False

    def model(self) -> "Model | None":
        if not self._is_read:
            self._is_read = True
            self._model = None if self.path is None else _read(self.path)
        return self._model

    def take(self, model: "Model | None") -> None:
        self._model, self._is_read = model, True


def _read(path: Path) -> "Model | None":
    from fallbackd.classify.model import Additions, Model, usable, weights  # see `get_ready`

    if usable() is None:
        return None
    content = weights()
    try:
        added = msgspec.json.decode(path.read_bytes(), type=Additions, strict=False)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        log.warning("lessons.unreadable", path=str(path), error=str(error))
        return None
    if added.base != Additions.to(content).base:
        log.warning("lessons.outdated", path=str(path), fix="fallbackd-client classify train")
        return None
    return Model(content, added)
