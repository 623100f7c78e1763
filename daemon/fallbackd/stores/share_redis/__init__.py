"""
The server that machines share: Valkey or Redis.

Only the connections of the client library are used. Its packages import every command of every
module of the server, 5 MiB that are not needed here, so they are entered without being run. What
it would need to know its own version, 1 MiB more, is loaded when something asks for that.
"""

import importlib
import sys
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

_METADATA = "importlib.metadata"


def _from_metadata(name: str) -> Any:  # whatever that module has
    if sys.modules.get(_METADATA) is _later:
        del sys.modules[_METADATA]
    return getattr(importlib.import_module(_METADATA), name)


_later = ModuleType(_METADATA)
_later.__spec__ = find_spec(_METADATA)
_later.__dict__["__getattr__"] = _from_metadata
sys.modules.setdefault(_METADATA, _later)

for _name in ("redis", "redis.asyncio"):
    if _name not in sys.modules and (_spec := find_spec(_name)) is not None:
        sys.modules[_name] = module_from_spec(_spec)
