"""What the daemon says in `status` of its surroundings, while it lasts."""

from fallbackd.app.private import Guard
from fallbackd.fronts.rpc.host import Trouble
from fallbackd.fronts.rpc.server import Server
from fallbackd.lib.descriptors import shortage

LOOK_BELOW = 100
"""To count the descriptors of more connections takes longer than the rest of a `status`."""


def troubles(guard: Guard, server: Server | None) -> tuple[Trouble, ...]:
    few = None if server is None else server.postponed
    if few is None and (server is None or server.connections < LOOK_BELOW):
        few = shortage()
    return guard.troubles if few is None else (*guard.troubles, _short_of(few))


def _short_of(few: str) -> Trouble:
    return Trouble(
        kind="shortage",
        message=f"{few}: new callers wait until they are accepted",
        mend="systemctl --user edit fallbackd.service  # [Service] LimitNOFILE=65536",
        stops_work=True,
    )
