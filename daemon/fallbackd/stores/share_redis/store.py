"""The mirror and the arbiter, on a Valkey or Redis server. See `ports.share.Share`."""

import hashlib
from collections.abc import Sequence
from typing import Any

from fallbackd.core.ids import ScopeId
from fallbackd.core.share.records import MAX_DETAIL, PersonWord, SharedRecord
from fallbackd.ports.share import Card, Failing, Leased, ShareAway, ShareReading
from fallbackd.stores.share_redis import scripts
from fallbackd.stores.share_redis.codec import BadRecord, card_text, cards_of, pairs, record_of
from fallbackd.stores.share_redis.link import ServerError, ShareAddress, ShareLink

TWIN_S = 120.0
"""A machine presents itself every 30 s; an older card is of one that was called so before."""
STREAM_GRACE_S = 2.0
LOOK_BACK_MS = 3_600_000
MAX_CHANGES = 500
MAX_SCOPE = 300


class RedisShare:
    def __init__(self, address: ShareAddress, *, group: str) -> None:
        self._prefix = f"fbd:{{{group}}}:"
        self._commands = ShareLink(address)
        self._stream = ShareLink(address)
        self._loaded: set[str] = set()

    # --- records -----------------------------------------------------------------------------

    async def read(self, scopes: Sequence[ScopeId], *, limit_s: float) -> ShareReading:
        if not scopes:
            return ShareReading(at=await self._now(limit_s=limit_s))
        calls = [(self._keys(scope), (scope,)) for scope in scopes]
        answers = await self._run(scripts.READ, calls, limit_s=limit_s)
        records: list[SharedRecord] = []
        ignored: list[str] = []
        at = 0.0
        for scope, answer in zip(scopes, answers, strict=True):
            if isinstance(answer, ServerError):
                ignored.append(f"{scope}: {answer}")
                continue
            at = int(answer[0]) / 1000
            try:
                records.append(_record(scope, answer))
            except BadRecord as error:
                ignored.append(f"{scope}: {error}")
        if not at:
            at = await self._now(limit_s=limit_s)
        return ShareReading(at=at, records=tuple(records), ignored=tuple(ignored))

    async def report_failure(
        self, scope: ScopeId, failing: Failing, *, limit_s: float
    ) -> ShareReading:
        mark = failing.mark
        return await self._changed(
            scripts.REPORT_FAILURE,
            scope,
            (
                _ms(failing.age_s),
                _ms(failing.began_ago_s),
                "" if failing.window_s is None else _ms(failing.window_s),
                _ms(mark.cooldown_s),
                mark.state,
                mark.reason.value,
                (mark.detail or "")[:MAX_DETAIL],
                str(mark.count),
                "1" if mark.stated else "0",
                mark.source[:MAX_DETAIL],
            ),
            limit_s=limit_s,
        )

    async def report_success(
        self, scope: ScopeId, *, began_ago_s: float, source: str, limit_s: float
    ) -> ShareReading:
        arguments = (_ms(began_ago_s), source)
        return await self._changed(scripts.REPORT_SUCCESS, scope, arguments, limit_s=limit_s)

    async def say(
        self, scope: ScopeId, word: PersonWord, *, window_s: float | None, limit_s: float
    ) -> ShareReading:
        arguments = (
            word.action,
            "" if window_s is None else _ms(window_s),
            word.state,
            word.reason.value,
            word.note[:MAX_DETAIL],
            word.source,
        )
        return await self._changed(scripts.SAY, scope, arguments, limit_s=limit_s)

    async def _changed(
        self, script: str, scope: ScopeId, arguments: tuple[str, ...], *, limit_s: float
    ) -> ShareReading:
        answer = await self._one(script, scope, arguments, limit_s=limit_s)
        return _seen(scope, answer)

    # --- leases ------------------------------------------------------------------------------

    async def lease(
        self, scope: ScopeId, *, owner: str, ttl_s: float, early: bool, limit_s: float
    ) -> Leased:
        arguments = (owner, _ms(ttl_s), "1" if early else "0")
        answer = await self._one(scripts.LEASE, scope, arguments, limit_s=limit_s)
        seen = _seen(scope, answer)
        gen = seen.records[0].gen if seen.records else 0
        return Leased(granted=int(answer[1]) == 1, gen=gen, seen=seen)

    async def renew(
        self, scope: ScopeId, *, owner: str, gen: int, ttl_s: float, limit_s: float
    ) -> bool:
        arguments = (owner, str(gen), _ms(ttl_s))
        answer = await self._one(scripts.RENEW, scope, arguments, limit_s=limit_s)
        return int(answer[1]) == 1

    async def release(self, scope: ScopeId, *, owner: str, gen: int, limit_s: float) -> bool:
        arguments = (owner, str(gen))
        answer = await self._one(scripts.RELEASE, scope, arguments, limit_s=limit_s)
        return int(answer[1]) == 1

    # --- the group ---------------------------------------------------------------------------

    async def changes(self, after: str | None, *, wait_s: float) -> tuple[str, tuple[ScopeId, ...]]:
        if after is None:
            now = await self._now(limit_s=STREAM_GRACE_S)
            after = f"{max(0, int(now * 1000) - LOOK_BACK_MS)}-0"
        wait = max(1, int(wait_s * 1000))
        command = ("XREAD", "COUNT", MAX_CHANGES, "BLOCK", wait, "STREAMS",
                   f"{self._prefix}ev", after)  # fmt: skip
        answers = await self._stream.call([command], limit_s=wait_s + STREAM_GRACE_S)
        answer = answers[0]
        if isinstance(answer, ServerError):
            raise ShareAway(str(answer))
        scopes: dict[ScopeId, None] = {}
        for _, entries in answer or ():
            for entry, flat in entries:
                after = entry.decode()
                scope = pairs(flat or ()).get("scope", "")
                if 0 < len(scope) <= MAX_SCOPE and scope.isprintable():
                    scopes[ScopeId(scope)] = None
        return after, tuple(scopes)

    async def present(self, card: Card, *, limit_s: float) -> tuple[float, tuple[Card, ...]]:
        call = ([f"{self._prefix}m"], (card.name, card_text(card)))
        (answer,) = await self._run(scripts.PRESENT, [call], limit_s=limit_s)
        if isinstance(answer, ServerError):
            raise ShareAway(str(answer))
        now = int(answer[0]) / 1000
        before = cards_of(pairs([card.name, answer[2]]), now=now)
        twins = [one for one in before if one.instance != card.instance]
        # Each of the two writes its card where the other one's stood.
        seen = (one for one in twins if one.seen_ago_s <= TWIN_S)
        return now, (*cards_of(pairs(answer[1]), now=now), *seen)

    async def aclose(self) -> None:
        await self._commands.aclose()
        await self._stream.aclose()

    # --- calls -------------------------------------------------------------------------------

    def _keys(self, scope: ScopeId) -> list[str]:
        return [f"{self._prefix}h:{scope}", f"{self._prefix}p:{scope}", f"{self._prefix}ev"]

    async def _now(self, *, limit_s: float) -> float:
        (answer,) = await self._commands.call([("TIME",)], limit_s=limit_s)
        if isinstance(answer, ServerError):
            raise ShareAway(str(answer))
        return int(answer[0]) + int(answer[1]) / 1_000_000

    async def _one(
        self, script: str, scope: ScopeId, arguments: tuple[str, ...], *, limit_s: float
    ) -> Any:
        call = (self._keys(scope), (*arguments, scope))
        (answer,) = await self._run(script, [call], limit_s=limit_s)
        if isinstance(answer, ServerError):
            raise ShareAway(str(answer))
        return answer

    async def _run(
        self,
        script: str,
        calls: Sequence[tuple[Sequence[str], Sequence[str]]],
        *,
        limit_s: float,
    ) -> list[Any]:
        """By its digest; a server that does not have it, as after a restart, is given the text."""
        sha = hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()
        answers = await self._commands.call(
            [("EVALSHA", sha, len(keys), *keys, *arguments) for keys, arguments in calls],
            limit_s=limit_s,
        )
        missing = [
            number
            for number, one in enumerate(answers)
            if isinstance(one, ServerError) and "No matching script" in str(one)
        ]
        if missing:
            again = [calls[number] for number in missing]
            found = await self._commands.call(
                [("EVAL", script, len(keys), *keys, *arguments) for keys, arguments in again],
                limit_s=limit_s,
            )
            for number, one in zip(missing, found, strict=True):
                answers[number] = one
        return answers


def _seen(scope: ScopeId, answer: Any) -> ShareReading:
    at = int(answer[0]) / 1000
    try:
        return ShareReading(at=at, records=(_record(scope, answer),))
    except BadRecord as error:
        return ShareReading(at=at, ignored=(f"{scope}: {error}",))


def _record(scope: ScopeId, answer: Any) -> SharedRecord:
    return record_of(scope, pairs(answer[2]), pairs(answer[3]), now=int(answer[0]) / 1000)


def _ms(seconds: float) -> str:
    return str(round(seconds * 1000))
