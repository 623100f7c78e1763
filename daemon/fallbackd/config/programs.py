"""The programs of agents that are known: those of the kinds, and of the built-in profiles."""

from typing import Any

import msgspec

from fallbackd.backends import KINDS
from fallbackd.backends.spec import Options
from fallbackd.config.profiles import BACKENDS, OPTIONS


def known_programs() -> list[dict[str, Any]]:  # name, and the fields of `Setup`
    """What `doctor` looks for, in the order of the kinds."""
    found = {
        name: msgspec.to_builtins(kind.setup)
        for kind in KINDS.values()
        if (name := kind.program(Options())) is not None
    }
    for backend in BACKENDS.values():
        kind = KINDS.get(backend.kind)
        name = None if kind is None else kind.program(OPTIONS[backend.id])
        if name is not None:
            found.setdefault(name, {})
    return [{"name": name, **known} for name, known in found.items()]
