"""
Places to which the program of an attempt is confined.

The `footprint` of a kind and the table of tools that any agent runs (`backends/toolchains`) say
which places an attempt may use; the runner makes rules of Landlock from them, which the child
enters between fork and exec. The kernel allows and has no exceptions: to hide one file, everything
beside it on the way from `/` is allowed by name. A start costs some 6 ms of processor time more
(190 entries), and 10 µs for each further entry. Rules are for good, so a confined helper server
belongs to one directory. codex is left out: its bubblewrap mounts, which no sandbox of Landlock
allows.
"""

import hashlib
import os
import re
from collections.abc import Iterator

from msgspec import structs

from fallbackd.backends.spec import Footprint
from fallbackd.backends.toolchains import TOOLCHAINS, own_caches
from fallbackd.core.failures import Failure
from fallbackd.core.ids import BackendId
from fallbackd.core.protocol import (
    Call,
    CommandLine,
    Confinement,
    OwnCopy,
    Permissions,
    Residency,
    ServedPrompt,
    Work,
)
from fallbackd.core.scopes import find_backend
from fallbackd.engine.credentials import environ_of
from fallbackd.engine.environment import Settings, World
from fallbackd.lib.directories import places

_REFUSED = ("permission denied", "eacces", "exdev", "cross-device link")
_PLACE = re.compile(r"(?:^|[\s'\"`\u2018])(/[^\s'\"`\u2019:]+)")
_HINT = ' (it is confined: `writable = ["{place}/"]` in its table lets it write there too)'


def footprint_of(
    settings: Settings, world: World, id: BackendId, permissions: Permissions, *, inside: bool
) -> Footprint | None:
    """
    Places of its own where the kernel is to confine it; None: it may do what its user may.

    Args:
        inside: The work is part of other work, whose limits no configuration of a backend lifts.
    """
    found = _held(settings, world, id, permissions, inside=inside)
    is_able = settings.policy.kernel_confines != "no"
    return None if found is None or found.confines_itself or not is_able else found


def is_looser(
    settings: Settings,
    world: World,
    id: BackendId,
    permissions: Permissions,
    *,
    asker: tuple[BackendId, Permissions] | None,
) -> bool:
    """
    Test whether nothing holds its program to permissions to which the program that delegates to it
    is held: it confines itself, and the kernel confines none.

    Args:
        asker: The latter; None: it is not known.
    """

    def is_held(id: BackendId, permissions: Permissions) -> bool:
        found = _held(settings, world, id, permissions, inside=True)
        return found is not None and found.confines_itself

    if settings.policy.kernel_confines != "no" or permissions == "full":
        return False
    return not is_held(id, permissions) and (asker is None or is_held(*asker))


def _held(
    settings: Settings, world: World, id: BackendId, permissions: Permissions, *, inside: bool
) -> Footprint | None:
    """Places of its own where it is to be confined, by the kernel or by itself."""
    backend = find_backend(settings.policy, id)
    if backend is None or backend.kind not in world.kinds or permissions == "full":
        return None
    if not (inside or settings.policy.wants_confined(backend)):
        return None
    options = settings.options_of(id)
    footprint = world.kinds[backend.kind].footprint(options)
    if inside and options.command:  # which may leave out what would have it confine itself
        return structs.replace(footprint, confines_itself=False)
    return footprint


def with_own_roots(
    settings: Settings, world: World, id: BackendId, work: Work, *, inside: bool
) -> Work:
    """
    The work of a program that confines its commands itself, with the places that the kernel would
    let another one write to.
    """
    held = _held(settings, world, id, work.permissions, inside=inside)
    if held is None or not held.confines_itself or work.permissions != "workspace":
        return work
    options = settings.options_of(id)
    places = Confinement(cwd=work.cwd, writable=options.writable, toolchains=TOOLCHAINS)
    environ = {**environ_of(settings, world, id), **work.env}
    writable, repositories = world.open_places(places, environ)
    return structs.replace(work, writable=writable, repositories=repositories)


def explained(failure: Failure) -> Failure:
    """Failure of a confined program, with a word about what may have refused it something."""
    if not any(word in failure.evidence.lower() for word in _REFUSED):
        return failure
    named = _PLACE.search(failure.evidence)
    hint = _HINT.format(
        place="DIRECTORY" if named is None else os.path.dirname(named[1]).rstrip("/")
    )
    return structs.replace(failure, evidence=failure.evidence + hint)


def confinement_of(
    settings: Settings, world: World, id: BackendId, work: Work, *, inside: bool
) -> Confinement | None:
    """Rules for a program; None: it may do what its user may."""
    footprint = footprint_of(settings, world, id, work.permissions, inside=inside)
    if footprint is None:
        return None
    options = settings.options_of(id)
    is_ours = work.cwd.startswith(f"{world.runs_root}/")
    given = [work.cwd] if is_ours else []
    if work.history is not None:
        given.append(work.history)
    return Confinement(
        cwd=work.cwd if work.permissions == "workspace" else "",
        writable=(*footprint.writes, *options.writable),
        folders=footprint.folders,
        toolchains=TOOLCHAINS if work.permissions == "workspace" else (),
        # The prompt first: what takes several is not given one as a file.
        readable=(work.prompt_path, *given),
        hidden=(*world.private, *dict.fromkeys(_keys_of_others(settings, world, id))),
    )


def _keys_of_others(settings: Settings, world: World, id: BackendId) -> Iterator[str]:
    """Places of other backends' secrets: logins of programs, files of credentials."""
    for other, backend in settings.policy.backends.items():
        if other == id:
            continue
        options = settings.options_of(other)
        given = [ref.name for ref in options.credentials if ref.source == "file"]
        given += [path for path in (options.tls_client_key,) if path is not None]
        if backend.kind in world.kinds:
            given += world.kinds[backend.kind].footprint(options).keys
        yield from places(given, environ_of(settings, world, other), home=world.home)


def copies_of(
    settings: Settings, world: World, id: BackendId, permissions: Permissions, *, inside: bool
) -> tuple[OwnCopy, ...]:
    """The directories of which its program has its own."""
    caches = own_caches(shared=permissions == "workspace")
    footprint = footprint_of(settings, world, id, permissions, inside=inside)
    if footprint is not None:
        return (*caches, *footprint.copies)
    held = _held(settings, world, id, permissions, inside=inside)
    return caches if held is not None and held.confines_itself else ()


def confined(
    call: Call,
    confinement: Confinement | None,
    copies: tuple[OwnCopy, ...] = (),
    *,
    cwd_id: str = "",
) -> Call:
    """
    The call with a confinement of its program, which has a private place for temporary files.

    Args:
        cwd_id: Of its directory, see `CommandLine`.
    """
    match call:
        case CommandLine() if confinement is None:
            return structs.replace(call, copies=copies, cwd_id=cwd_id)
        case CommandLine(residency=Residency(may_stay=True)) if confinement is not None:
            of_resident = structs.replace(confinement, readable=confinement.readable[1:])
            return structs.replace(
                call, confinement=of_resident, copies=copies, own_tmp=True, cwd_id=cwd_id
            )
        case CommandLine():
            return structs.replace(
                call, confinement=confinement, copies=copies, own_tmp=True, cwd_id=cwd_id
            )
        case ServedPrompt() if confinement is not None:
            # The kernel's rules are for good: other rules, or another directory, another server.
            of_server = structs.replace(confinement, readable=confinement.readable[1:])
            run = call.otherwise
            return structs.replace(
                call,
                key=f"{call.key}/{_digest(call.cwd, cwd_id, of_server)}",
                family=f"{call.key}/",
                server=structs.replace(
                    call.server, confinement=of_server, copies=copies, cwd_id=cwd_id
                ),
                otherwise=None
                if run is None
                else structs.replace(run, confinement=confinement, copies=copies, cwd_id=cwd_id),
            )
        case _:
            return call


def _digest(cwd: str, cwd_id: str, confinement: Confinement) -> str:
    """Digest that is the same in every run of the daemon, since servers outlive it."""
    said = repr((cwd, cwd_id, confinement.writable, confinement.readable, confinement.hidden))
    return hashlib.sha256(said.encode(errors="surrogateescape")).hexdigest()[:8]
