"""`delegate`: begin the work, then wait as long as asked. It goes on without its caller."""

from typing import TYPE_CHECKING

from msgspec import structs

from fallbackd.core.records import Delegation
from fallbackd.engine.requests import Draining, NewWork
from fallbackd.fronts.rpc import chains, shapes
from fallbackd.fronts.rpc.errors import RpcError
from fallbackd.fronts.rpc.host import Session
from fallbackd_client.wire import codes
from fallbackd_client.wire.methods.delegate import METHOD as METHOD
from fallbackd_client.wire.methods.delegate import Params
from fallbackd_client.wire.shapes import Delegation as Result

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine


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
        queue=params.queue,
        timeout_s=params.timeout_s,
        request_id=params.request_id,
        failover=params.failover,
        on_partial=params.on_partial,
        permissions=params.permissions or "workspace",
        allow_metered=params.allow_metered,
        differs_from=params.differs_from,
        env=params.env or {},
        parent=_parent(engine, session),
        client=session.client,
        metadata=params.metadata or {},
    )
    begun = await engine.delegate(work)
    found, is_over = await _waited(engine, begun, params)
    return await answer(engine, found, is_over=is_over, strict=params.strict_wait)


def _parent(engine: "Engine", session: Session) -> str | None:
    """
    From inside which attempt the caller runs, by the processes above it. What it says itself
    (`parent`) is no evidence: variables are inherited, copied, and outlive their attempt.

    Raises:
        Draining: The processes cannot be looked at, for want of file descriptors.
    """
    if session.peer_pid is None:
        return None
    try:
        return session.host.attempt_of(session.peer_pid)
    except OSError as error:
        engine.require_room()
        why = error.strerror or str(error)
        raise Draining(
            f"no new work: the calling process cannot be looked at ({why}); ask again",
            kind="shortage",
        ) from error


async def _waited(engine: "Engine", begun: Delegation, params: Params) -> tuple[Delegation, bool]:
    """The delegation, and False where `wait_s` was over before what was waited for came."""
    if params.wait == "accepted":
        return begun, True
    if params.wait == "finished":
        return await engine.wait(begun.delegation, until="finished", timeout_s=params.wait_s)
    settle_s = params.settle_s
    if settle_s is None:
        settle_s = engine.settings.policy.defaults.settle_s
    if params.wait_s is not None and params.wait_s < settle_s:
        return await engine.wait(begun.delegation, until="settled", timeout_s=params.wait_s)
    found, _ = await engine.wait(begun.delegation, until="settled", timeout_s=settle_s)
    return found, True  # without an end after `settle_s` the work is as settled as it gets


async def answer(
    engine: "Engine", found: Delegation, *, is_over: bool, strict: bool = False
) -> Result:
    """
    What the caller gets: the delegation as it is, also where its own wait is over.

    Raises:
        RpcError: The wait is over and the caller wants an error then.
    """
    if not is_over and strict:
        raise RpcError(
            codes.WAIT_OVER,
            f"The wait is over; {found.delegation} is still {found.state}. Wait again with"
            " `delegation.wait`, or stop it with `delegation.cancel`.",
            data={"delegation": found.delegation, "state": found.state},
        )
    result = shapes.answered(found, await engine.kept_answer(found))
    return result if is_over else structs.replace(result, wait_over=True)
