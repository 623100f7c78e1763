"""
The server that machines share: Valkey or Redis.

Only the connections of the client library are used. Its packages import every command of every
module of the server, 5 MiB that nobody here asks for, so they are entered without being run.
"""

import sys
from importlib.util import find_spec, module_from_spec

for _name in ("redis", "redis.asyncio"):
    if _name not in sys.modules and (_spec := find_spec(_name)) is not None:
        sys.modules[_name] = module_from_spec(_spec)
