"""What the daemon says in `status` of its surroundings, while it lasts."""

from fallbackd.api.host import Trouble
from fallbackd.api.opencode_servers import OpencodeServers
from fallbackd.app.private import Guard
from fallbackd.engine.api import Engine
from fallbackd.fronts.rpc.server import RpcServer
from fallbackd.lib.descriptors import shortage
from fallbackd.transports.http.clients import socks_trouble

LOOK_BELOW = 100
"""To count the descriptors of more connections takes longer than the rest of a `status`."""
NO_TMUX = Trouble(
    kind="tmux",
    message="tmux = true is configured, and tmux is not on the PATH of the daemon",
    fix="sudo apt-get install tmux",
)


def troubles(
    guard: Guard,
    server: RpcServer | None,
    engine: Engine | None,
    opencode: OpencodeServers | None = None,
) -> tuple[Trouble, ...]:
    found = list(guard.troubles)
    few = None if server is None else server.postponed
    if few is None and (server is None or server.connections < LOOK_BELOW):
        few = shortage()
    if few is not None:
        found.append(_short_of(few))
    wants_tmux = engine is not None and engine.settings.policy.defaults.tmux
    if wants_tmux and engine is not None and engine.world.find_program("tmux") is None:
        found.append(NO_TMUX)
    if (socks := socks_trouble()) is not None:
        found.append(Trouble(kind="proxy", message=socks))
    found += _of_sharing(engine)
    found += [] if engine is None else _of_versions(engine)
    found += [] if opencode is None else _of_servers(opencode)
    return tuple(found)


def _of_versions(engine: Engine) -> list[Trouble]:
    """Programs that were asked for their version, or whose package says it."""
    world, settings = engine.world, engine.settings
    found: dict[str, None] = {}
    for backend in settings.policy.backends.values():
        kind = world.kinds.get(backend.kind)
        options = settings.options_of(backend.id)
        program = None if kind is None else kind.program(options)
        path = None if program is None else world.find_program(program)
        version = None if path is None else world.probe.known_version(path)
        if kind is not None and version is not None and (why := kind.unsupported(version, options)):
            found[f"{why}; {path} gets no work, and its sessions are not protected"] = None
    return [Trouble(kind="version", message=one) for one in found]


def _of_servers(opencode: OpencodeServers) -> list[Trouble]:
    return [
        Trouble(
            kind="opencode",
            message=f"the opencode at {one.url} is not protected: {one.problem}",
        )
        for one in opencode.states()
        if one.is_refused
    ]


def _of_sharing(engine: Engine | None) -> list[Trouble]:
    """Work continues without the other machines, but the user should know."""
    if engine is None or engine.peers is None:
        return []
    shown = engine.peers.shown()
    words = []
    if shown.state not in ("connecting", "connected"):
        words.append(f"health is not shared with other machines ({shown.state}): {shown.problem}")
    if shown.warning is not None:
        words.append(shown.warning)
    words += [f"a shared record is ignored: {one}" for one in shown.ignored[:3]]
    found = [Trouble(kind="share", message=one, fix="fallbackd-client share test") for one in words]
    return found + [Trouble(kind="provider", message=one) for one in shown.advice]


def _short_of(few: str) -> Trouble:
    return Trouble(
        kind="shortage",
        message=f"{few}: new callers wait until they are accepted",
        fix="systemctl --user edit fallbackd.service  # [Service] LimitNOFILE=65536",
        stops_work=True,
    )
