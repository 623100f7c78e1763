"""`delegate`: begin the work, then wait as long as asked. It goes on without its caller."""

from typing import TYPE_CHECKING

import anyio

from fallbackd.core.state import Delegation
from fallbackd.engine.requests import NewWork
from fallbackd.fronts.rpc import chains, shapes
from fallbackd.fronts.rpc.errors import RpcError
from fallbackd.fronts.rpc.host import Session
from fallbackd_client.wire import codes
from fallbackd_client.wire.methods.delegate import METHOD as METHOD
from fallbackd_client.wire.methods.delegate import Params
from fallbackd_client.wire.shapes import Delegation as Result

if TYPE_CHECKING:
    from fallbackd.engine.loop import Engine


async def handle(engine: "Engine", params: Params, session: Session) -> Result:
    work = NewWork(
        prompt=params.prompt,
        backend=params.backend,
        role=params.role,
        chain=chains.chain(params.chain),
        session=params.session,
        cwd=params.cwd,
        model=params.model,
        mode=params.mode,
        wait=params.wait,
        wait_s=params.wait_s,
        timeout_s=params.timeout_s,
        request_id=params.request_id,
        failover=params.failover,
        on_partial=params.on_partial,
        permissions=params.permissions or "workspace",
        allow_metered=params.allow_metered,
        differs_from=params.differs_from,
        env=params.env or {},
        parent=params.parent or _parent(session),
        client=session.client,
        metadata=params.metadata or {},
    )
    began_at = anyio.current_time()
    begun = await engine.delegate(work)
    wait_s = params.wait_s
    if wait_s is not None:  # a directory that was in use has taken its part
        wait_s = max(0.0, wait_s - (anyio.current_time() - began_at))
    found = await _wait(engine, begun, params, wait_s=wait_s)
    return shapes.answered(found, await engine.text(found))


def _parent(session: Session) -> str | None:
    """From inside which attempt the caller runs, where it does not say so itself."""
    return None if session.peer_pid is None else session.host.attempt_of(session.peer_pid)


async def _wait(
    engine: "Engine", begun: Delegation, params: Params, *, wait_s: float | None
) -> Delegation:
    match params.wait:
        case "accepted":
            return begun
        case "settled":
            settle_s = params.settle_s
            if settle_s is None:
                settle_s = engine.settings.policy.defaults.settle_s
            is_bounded = wait_s is not None and wait_s < settle_s
            found, is_over = await engine.wait(
                begun.delegation,
                until="settled",
                timeout_s=wait_s if is_bounded else settle_s,
            )
            # Without an end after `settle_s` the work is as settled as it gets.
            is_over = is_over or not is_bounded
        case "finished":
            found, is_over = await engine.wait(begun.delegation, until="finished", timeout_s=wait_s)
    if not is_over:
        raise wait_is_over(found)
    return found


def wait_is_over(found: Delegation) -> RpcError:
    return RpcError(
        codes.WAIT_OVER,
        f"The wait is over, the work goes on. Ask `delegation.wait` for {found.delegation} to wait"
        " again, or `delegation.cancel` to stop it.",
        data={"delegation": found.delegation, "state": found.state},
    )
