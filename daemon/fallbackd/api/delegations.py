"""Delegations: begin one, look at it, wait, stop it, read its log, explain it."""

from typing import TYPE_CHECKING, Any

from msgspec import structs

from fallbackd.api import chains, listing, shapes
from fallbackd.api.errors import ApiError
from fallbackd.api.handler import Handler
from fallbackd.api.host import Caller
from fallbackd.core import records
from fallbackd.core.authority import by_default
from fallbackd.core.ids import DelegationId
from fallbackd.engine.requests import NewWork
from fallbackd.lib.alike import alike
from fallbackd_client.wire.methods.delegations import (
    DELEGATE,
    DELEGATION_CANCEL,
    DELEGATION_GET,
    DELEGATION_KEEP,
    DELEGATION_LIST,
    DELEGATION_REPLY,
    DELEGATION_RETRY,
    DELEGATION_WAIT,
    DelegateParams,
    DelegationCancelParams,
    DelegationGetParams,
    DelegationKeepParams,
    DelegationListParams,
    DelegationListResult,
    DelegationReplyParams,
    DelegationRetryParams,
    DelegationWaitParams,
)
from fallbackd_client.wire.shapes import Delegation

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine


async def delegate(engine: "Engine", params: DelegateParams, caller: Caller) -> Delegation:
    work = alike(
        NewWork,
        params,
        chain=chains.chain(params.chain),
        permissions=params.permissions or by_default(caller.authority),
        env=params.env or {},
        parent=None,
        client=caller.client,
        metadata=params.metadata or {},
    )
    begun = await engine.delegate(
        work, authority=caller.authority, is_wanted=lambda: not caller.has_hung_up
    )
    _follow(engine, begun, caller)
    found, is_over = await _waited(engine, begun, params)
    return await answer(engine, found, caller, is_over=is_over, strict=params.strict_wait)


def _follow(engine: "Engine", one: records.Delegation, caller: Caller) -> None:
    """Count the connection as a caller until it closes, where that matters."""
    if one.is_ended or one.orphan_s is None:
        return
    name, number = one.delegation, caller.number
    if not caller.is_open:
        engine.attendance.watch(name)
    elif engine.attendance.join(name, number):
        caller.on_close(lambda: engine.attendance.leave(name, number))


async def _waited(
    engine: "Engine", begun: records.Delegation, params: DelegateParams
) -> tuple[records.Delegation, bool]:
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
    engine: "Engine",
    found: records.Delegation,
    caller: Caller,
    *,
    is_over: bool,
    strict: bool = False,
) -> Delegation:
    """
    What the caller gets: the delegation as it is, also where its own wait is over.

    Raises:
        ApiError: The wait is over and the caller wants an error then.
    """
    if not is_over and strict:
        raise ApiError(
            "wait_over",
            f"The wait is over; {found.delegation} is still {found.state}. Wait again with"
            " `delegation.wait`, or stop it with `delegation.cancel`.",
            data={"delegation": found.delegation, "state": found.state},
        )
    result = await _shown(engine, found, caller)
    return result if is_over else structs.replace(result, wait_over=True)


async def _shown(engine: "Engine", found: records.Delegation, caller: Caller) -> Delegation:
    shown = shapes.answered(found, await engine.kept_answer(found), path=caller.host.path)
    if (why := await engine.why_not_kept(found)) is not None:
        return structs.replace(shown, warnings=(*shown.warnings, why))
    return shown


async def delegation_get(
    engine: "Engine", params: DelegationGetParams, caller: Caller
) -> Delegation:
    found = await engine.delegation(params.delegation)
    shown = await _shown(engine, found, caller)
    return structs.replace(shown, prompt=(await listing.prompts(engine, (found,)))[0])


async def delegation_list(
    engine: "Engine", params: DelegationListParams, caller: Caller
) -> DelegationListResult:
    return await listing.page(engine, params, caller.authority)


async def delegation_retry(
    engine: "Engine", params: DelegationRetryParams, caller: Caller
) -> Delegation:
    again = await engine.request_of(params.delegation)
    return await _begun(engine, again, params.request_id, caller)


async def delegation_reply(
    engine: "Engine", params: DelegationReplyParams, caller: Caller
) -> Delegation:
    next_one = await engine.reply_to(params.delegation, params.prompt)
    return await _begun(engine, next_one, params.request_id, caller)


async def _begun(
    engine: "Engine", work: NewWork, request_id: str | None, caller: Caller
) -> Delegation:
    """Work that repeats what an earlier request says, as it was accepted."""
    work = structs.replace(
        work,
        wait="accepted",
        request_id=request_id,
        client=caller.client,
    )
    begun = await engine.delegate(
        work, authority=caller.authority, is_wanted=lambda: not caller.has_hung_up
    )
    return await _shown(engine, begun, caller)


async def delegation_wait(
    engine: "Engine", params: DelegationWaitParams, caller: Caller
) -> Delegation:
    _follow(engine, await engine.delegation(params.delegation), caller)
    found, is_over = await engine.wait(
        DelegationId(params.delegation), until="finished", timeout_s=params.timeout_s
    )
    return await answer(engine, found, caller, is_over=is_over, strict=params.strict_wait)


async def delegation_cancel(
    engine: "Engine", params: DelegationCancelParams, caller: Caller
) -> Delegation:
    if params.request_id is not None:
        found = await engine.cancel_request(params.request_id, caller.authority)
    elif params.session is not None:
        found = await engine.cancel_session(params.session, caller.authority)
    else:
        name = DelegationId(params.delegation or "")  # `normalised` has seen that there is one
        found = await engine.cancel(name, by=caller.authority.attempt)
    return await _shown(engine, found, caller)


async def delegation_keep(
    engine: "Engine", params: DelegationKeepParams, caller: Caller
) -> Delegation:
    found = await engine.delegation(params.delegation)
    if found.orphan_s is not None and not found.is_ended:
        await engine.keep(found.delegation)
        found = await engine.delegation(params.delegation)
    return await _shown(engine, found, caller)


HANDLERS: tuple[Handler[Any, Any], ...] = (
    Handler(DELEGATE, delegate, waits=True),
    Handler(DELEGATION_GET, delegation_get),
    Handler(DELEGATION_RETRY, delegation_retry),
    Handler(DELEGATION_REPLY, delegation_reply),
    Handler(DELEGATION_LIST, delegation_list),
    Handler(DELEGATION_WAIT, delegation_wait, waits=True),
    Handler(DELEGATION_CANCEL, delegation_cancel),
    Handler(DELEGATION_KEEP, delegation_keep),
)
