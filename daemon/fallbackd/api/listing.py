"""Delegations that are on record: a page of them, by what callers look for."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from fallbackd.api import shapes
from fallbackd.api.errors import ApiError
from fallbackd.core.authority import Authority
from fallbackd.core.ids import DelegationId, SessionId
from fallbackd.core.records import Delegation
from fallbackd.ports.store import Selection
from fallbackd_client.wire import shapes as wire
from fallbackd_client.wire.methods.delegations import DelegationListParams, DelegationListResult

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine

DEFAULT_LIMIT = 100
MAX_BYTES = 8 * 1024 * 1024
"""Of all delegations in one answer."""
MAX_LOOKED_AT = 1000
"""Records that one call reads where most are none of those wanted: the next call continues."""
PROMPT_BYTES = 400
PROMPT_CHARS = 200


async def page(
    engine: "Engine", params: DelegationListParams, authority: Authority
) -> DelegationListResult:
    """
    Raises:
        ApiError: The cursor is none that an answer gave.
    """
    limit = params.limit or DEFAULT_LIMIT
    wanted = _wanted(params)
    is_picky = params.backend is not None or params.cwd is not None or not authority.is_person
    reach = max(limit, MAX_LOOKED_AT) if is_picky else limit
    found = await engine.delegations(wanted, limit=reach + 1)
    listed = [one for one in found[:reach] if authority.has_begun(one) and _fits(one, params)][
        :limit
    ]
    # Everything up to the last one that is shown has been looked at, or else up to `reach`.
    last = listed[-1] if len(listed) == limit else found[reach - 1] if len(found) > reach else None
    if params.brief:
        return DelegationListResult(
            lines=await _lines(engine, listed), next_cursor=_cursor(wanted, last, found)
        )
    shown, is_whole = _whole(listed)
    if not is_whole:
        last = listed[len(shown) - 1]
    return DelegationListResult(
        delegations=shown, truncated=not is_whole, next_cursor=_cursor(wanted, last, found)
    )


def _wanted(params: DelegationListParams) -> Selection:
    return Selection(
        session=None if params.session is None else SessionId(params.session),
        state=params.state,
        is_ended=params.ended,
        since_at=params.since_at,
        prefix=params.prefix or "",
        before=None if params.cursor is None else _place(params.cursor),
    )


async def _lines(engine: "Engine", listed: Sequence[Delegation]) -> tuple[wire.DelegationLine, ...]:
    said = zip(listed, await prompts(engine, listed), strict=True)
    return tuple(shapes.delegation_line(one, prompt=prompt) for one, prompt in said)


async def prompts(engine: "Engine", listed: Sequence[Delegation]) -> list[str | None]:
    """How the prompt of each begins, with secrets masked; None: it is gone."""
    starts = await engine.prompt_starts(listed, max_bytes=PROMPT_BYTES)
    return [_start(starts.get(one.delegation)) for one in listed]


def _fits(one: Delegation, params: DelegationListParams) -> bool:
    if params.backend is not None and params.backend not in (one.active, one.served_by):
        return False
    if params.cwd is None:
        return True
    directory = params.cwd.rstrip("/")
    return f"{one.cwd}/".startswith(f"{directory}/")


def _whole(listed: list[Delegation]) -> tuple[tuple[wire.Delegation, ...], bool]:
    """As many as one answer takes, and whether that is all of them."""
    shown: list[wire.Delegation] = []
    size_bytes = 0
    for one in listed:
        shown.append(shapes.delegation(one))
        size_bytes += len(msgspec.json.encode(shown[-1]))
        if size_bytes > MAX_BYTES:
            break
    return tuple(shown), len(shown) == len(listed)


def _start(text: str | None) -> str | None:
    return None if text is None else " ".join(text.split())[:PROMPT_CHARS]


def _cursor(wanted: Selection, last: Delegation | None, found: Sequence[Delegation]) -> str | None:
    """Null where nothing was found behind the last one."""
    if last is None or found[-1].delegation == last.delegation:
        return None
    at, name = wanted.place(last)
    return f"{at!r}:{name}"


def _place(cursor: str) -> tuple[float, DelegationId]:
    """
    Raises:
        ApiError: It is none that an answer gave.
    """
    at, _, name = cursor.partition(":")
    try:
        return float(at), DelegationId(name)
    except ValueError:
        raise ApiError(
            "invalid_params",
            f"unknown cursor {cursor[:100]!r}: use `next_cursor` of the answer before",
        ) from None
