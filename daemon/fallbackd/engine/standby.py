"""Work on standby: what a person, or the attempt that asked for it, changes about its wait."""

from typing import TYPE_CHECKING

from fallbackd.core.events import StandbyAsked
from fallbackd.core.ids import DelegationId
from fallbackd.core.records import Delegation
from fallbackd.engine.requests import Draining, Refused
from fallbackd.ports.store import StoreUnwritable

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine


async def change(engine: "Engine", delegation: str, **terms: float | bool | None) -> Delegation:
    """
    Start it now, or give it other terms: the fields of `StandbyAsked`.

    Raises:
        Unknown: There is no such delegation.
        Refused: It is not on standby, or the terms cannot be.
        Draining: The change cannot be kept.
    """
    await engine.delegation(delegation)
    event = StandbyAsked(delegation=DelegationId(delegation), **terms)  # type: ignore[arg-type]
    try:
        decision = await engine.handle(event)
    except StoreUnwritable as error:
        raise Draining(f"nothing is changed: {error}", kind="store_unwritable") from error
    if decision.rejection is not None:
        raise Refused(decision.rejection)
    return await engine.delegation(delegation)
