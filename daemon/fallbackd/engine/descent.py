"""Who asks: from the attempts above a calling process to what it may ask, and ask for."""

import os

from msgspec import structs

from fallbackd.backends.spec import Options
from fallbackd.core.authority import (
    PERSON,
    Authority,
    Request,
    authority_in,
    meet,
    narrowed,
    nothing,
)
from fallbackd.core.ids import AttemptId, DelegationId
from fallbackd.engine.admission import directory_of
from fallbackd.engine.carrying import place_of
from fallbackd.engine.environment import Settings, World
from fallbackd.engine.live import Held
from fallbackd.engine.requests import NewWork, NotPermitted
from fallbackd.engine.runs import Runs
from fallbackd.lib.directories import places
from fallbackd.ports.store import Store


def authority_of(
    attempts: tuple[str, ...] | None, store: Store, runs: Runs, held: dict[DelegationId, Held]
) -> Authority:
    """
    Args:
        attempts: Those for which the calling process works; None: it works for none, and asks for a
            person.
    """
    if attempts is None:
        return PERSON
    if not attempts:
        return nothing(
            "no delegation runs on the helper server that the calling process is part of"
        )
    return meet([_of_one(AttemptId(one), store, runs, held) for one in attempts])


def _of_one(
    attempt: AttemptId, store: Store, runs: Runs, held: dict[DelegationId, Held]
) -> Authority:
    name = DelegationId(attempt.rpartition(".")[0])
    one = store.peek().active.get(name)
    if one is None:
        return nothing(f"the delegation of attempt {attempt} has ended")
    given = held.get(name)
    return authority_in(
        one,
        attempt,
        # The recorded one is real already; its name may lead elsewhere by now.
        directory=one.cwd or os.path.realpath(place_of(runs, one)),
        env={} if given is None else given.env,
    )


def require_within(
    work: NewWork, cwd: str, authority: Authority, settings: Settings, world: World
) -> None:
    """
    Args:
        cwd: The real path of its directory.

    Raises:
        NotPermitted: It asks for more than it may.
    """
    asked = Request(
        permissions=work.permissions, cwd=cwd, env=work.env, allow_metered=work.allow_metered
    )
    _require(asked, authority, settings, world)


def require_readable(root: str, authority: Authority, settings: Settings, world: World) -> None:
    """
    A directory that the daemon reads for its caller is one that its work could be given.

    Raises:
        NotPermitted: It is not.
        Invalid: It cannot be used.
    """
    if not authority.is_person:
        cwd = directory_of(root, settings.policy, world).path
        _require(Request(permissions="read", cwd=cwd), authority, settings, world)


def _require(asked: Request, authority: Authority, settings: Settings, world: World) -> None:
    if authority.is_person:
        return
    found = narrowed(structs.replace(authority, withheld=_withheld(settings, world)), asked)
    if isinstance(found, str):
        raise NotPermitted(found)


def _withheld(settings: Settings, world: World) -> tuple[str, ...]:
    """Where the daemon and the agents keep what is theirs: state, settings, logins."""
    found = list(world.private)
    used = [(one.kind, settings.options_of(id)) for id, one in settings.policy.backends.items()]
    for name, options in (*((kind, Options()) for kind in world.kinds), *used):
        given = [ref.name for ref in options.credentials if ref.source == "file"]
        if name in world.kinds:
            footprint = world.kinds[name].footprint(options)
            given += (*footprint.keys, *footprint.writes)
        found += places(given, {**world.environ, **options.env}, home=world.home)
    return tuple(dict.fromkeys(os.path.realpath(one) for one in found))
