"""
The mirror and the arbiter, on a Valkey or Redis server. See `ports.store.Share`.

The scripts run on the server, one at a time: they fold, and decide nothing else. Windows come from
the core of the machine that reports. Every script takes the hash of a scope, the hash of manual
overrides of it and the stream of changes; the last argument is the name of the scope. Every instant
is one of the server, in milliseconds. Each answers {time, ok, hash, words}, so that the caller
knows what holds now. They use commands of Redis 6.2, which Valkey has too.

A connection is closed after anything but an answer in time, never reused. A hash that cannot be a
record is named and left alone.
"""

import hashlib
import json
import ssl
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import anyio
from msgspec import Struct
from redis import exceptions
from redis.asyncio.connection import (
    AbstractConnection,
    Connection,
    SSLConnection,
    UnixDomainSocketConnection,
    parse_url,
)
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from fallbackd.core.ids import ScopeId
from fallbackd.core.reasons import Reason
from fallbackd.core.share import (
    MAX_AHEAD_S,
    MAX_DETAIL,
    PersonWord,
    SharedLease,
    SharedMark,
    SharedRecord,
    WordAction,
)
from fallbackd.ports.store import Card, Failing, Leased, ShareAway, ShareReading, ShareRefused

_PRELUDE = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local function ms(value) return string.format('%.0f', value) end
local function load(key)
  local found, flat = {}, redis.call('HGETALL', key)
  for i = 1, #flat, 2 do found[flat[i]] = flat[i + 1] end
  return found
end
local h, p = load(KEYS[1]), load(KEYS[2])
local function answer(ok)
  return {ms(now), ok, redis.call('HGETALL', KEYS[1]), redis.call('HGETALL', KEYS[2])}
end
if (h.v or '1') ~= '1' or (p.v or '1') ~= '1' then return answer(0) end
local gen = tonumber(h.gen) or 0
local function changed(kind, by)
  gen = gen + 1
  redis.call('HSET', KEYS[1], 'gen', ms(gen), 'v', '1')
  redis.call('XADD', KEYS[3], 'MAXLEN', '~', '10000', '*', 'scope', ARGV[#ARGV], 'kind', kind,
    'gen', ms(gen), 'by', by)
end
local function keep(key, at) redis.call('PEXPIREAT', key, ms(at + 86400000)) end
local function final(value)
  if value == '' then return math.huge end
  return tonumber(value)
end
local since, ends = tonumber(h.since), final(h['until'])
local marked = h.state ~= nil and h.state ~= '' and since ~= nil and ends ~= nil
local proven = tonumber(h.proven)
local word_ends = final(p['until'])
local held_by_person = (p.action == 'mark' or p.action == 'pause')
  and word_ends ~= nil and word_ends > now
local function unlease() redis.call('HDEL', KEYS[1], 'lease_owner', 'lease_until') end
local function unmark()
  redis.call('HDEL', KEYS[1], 'state', 'reason', 'detail', 'since', 'until', 'cooldown_until',
    'count', 'stated', 'source')
end
"""

REPORT_FAILURE = (
    _PRELUDE
    + """
-- age, age of the attempt, window or '', cooldown, state, reason, detail, count, stated, source
local at, began = now - tonumber(ARGV[1]), now - tonumber(ARGV[2])
local stop = ARGV[3] == '' and math.huge or at + tonumber(ARGV[3])
local rest = stop == math.huge and 0 or stop + tonumber(ARGV[4])
local stated = ARGV[9] == '1'
local function ranks(one, other)
  for i = 1, #one do
    if one[i] ~= other[i] then return other[i] == nil or one[i] > other[i] end
  end
  return false
end
if held_by_person or (proven and proven >= at) then return answer(0) end
if marked then
  local was_stated = h.stated == '1'
  if began < since and (was_stated or not stated) then return answer(0) end
  local runs, ran = stop > now, ends > now
  local better
  if runs ~= ran then better = runs
  elseif not runs and stop ~= ends then better = stop > ends
  elseif stated ~= was_stated then better = stated
  elseif stated and at ~= since then better = at > since
  elseif stop ~= ends then better = stop > ends
  elseif at ~= since then better = at > since
  else better = ranks({ARGV[5], ARGV[6], ARGV[10], tonumber(ARGV[8]), rest, ARGV[7]},
    {h.state, h.reason, h.source, tonumber(h.count), tonumber(h.cooldown_until) or 0, h.detail}) end
  if not better then return answer(0) end
end
local last = stop == math.huge and '' or ms(stop)
local rests = stop == math.huge and '' or ms(rest)
redis.call('HSET', KEYS[1], 'state', ARGV[5], 'reason', ARGV[6], 'detail', ARGV[7],
  'since', ms(at), 'until', last, 'cooldown_until', rests, 'count', ARGV[8],
  'stated', ARGV[9], 'source', ARGV[10])
unlease()
changed('out', ARGV[10])
keep(KEYS[1], stop == math.huge and now + 90 * 86400000 or math.max(now, rest))
return answer(1)
"""
)

REPORT_SUCCESS = (
    _PRELUDE
    + """
-- age of the attempt, source
local began = now - tonumber(ARGV[1])
if next(h) == nil or (marked and began < since) then return answer(0) end
if not marked and h.lease_owner == nil and (proven or 0) >= began then return answer(0) end
unmark()
unlease()
redis.call('HSET', KEYS[1], 'proven', ms(math.max(proven or 0, began)))
changed('ok', ARGV[2])
keep(KEYS[1], now)
return answer(1)
"""
)

LEASE = (
    _PRELUDE
    + """
-- owner, ttl, early
local lives = h.lease_owner ~= nil and (tonumber(h.lease_until) or 0) > now
if held_by_person or (lives and h.lease_owner ~= ARGV[1]) then return answer(0) end
if marked and ends > now and ARGV[3] ~= '1' then return answer(0) end
local stop = now + tonumber(ARGV[2])
redis.call('HSET', KEYS[1], 'lease_owner', ARGV[1], 'lease_until', ms(stop))
changed('lease', ARGV[1])
keep(KEYS[1], math.max(stop, tonumber(h.cooldown_until) or 0))
return answer(1)
"""
)

RENEW = (
    _PRELUDE
    + """
-- owner, generation, ttl
if h.lease_owner ~= ARGV[1] or ms(gen) ~= ARGV[2] then return answer(0) end
redis.call('HSET', KEYS[1], 'lease_until', ms(now + tonumber(ARGV[3])))
return answer(1)
"""
)

RELEASE = (
    _PRELUDE
    + """
-- owner, generation
if h.lease_owner ~= ARGV[1] or ms(gen) ~= ARGV[2] then return answer(0) end
unlease()
changed('lease', ARGV[1])
return answer(1)
"""
)

SAY = (
    _PRELUDE
    + """
-- action, window or '', state, reason, note, source
local stop = ARGV[2] == '' and '' or ms(now + tonumber(ARGV[2]))
if ARGV[1] == 'clear' then
  unmark()
  unlease()
  redis.call('HSET', KEYS[1], 'proven', ms(now))
end
changed('person', ARGV[6])
redis.call('HSET', KEYS[2], 'id', ms(now) .. '-' .. ms(gen), 'action', ARGV[1], 'at', ms(now),
  'until', stop, 'state', ARGV[3], 'reason', ARGV[4], 'note', ARGV[5], 'source', ARGV[6], 'v', '1')
keep(KEYS[1], now)
keep(KEYS[2], now + 3650 * 86400000)
return answer(1)
"""
)

READ = _PRELUDE + "return answer(1)\n"

PRESENT = """
-- name, card; a machine that was silent for a week is forgotten. The last one is the card that
-- stood under this name: of another instance, where two machines have one name
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local before = ''
local flat = redis.call('HGETALL', KEYS[1])
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', now) .. ' ' .. ARGV[2])
for i = 1, #flat, 2 do
  if flat[i] == ARGV[1] then before = flat[i + 1] end
  local at = tonumber(string.match(flat[i + 1], '^(%d+) ')) or 0
  local is_old = now - at > 7 * 86400000 and flat[i] ~= ARGV[1]
  if is_old then redis.call('HDEL', KEYS[1], flat[i]) end
end
return {string.format('%.0f', now), redis.call('HGETALL', KEYS[1]), before}
"""


CONNECT_S = 5.0
CLIENT_NAME = "fallbackd"


class ServerError(Exception):
    """The server's answer to one command is an error: says which."""


class ShareAddress(Struct, frozen=True, kw_only=True):
    url: str
    """Holds a password: never shown."""
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    def __repr__(self) -> str:
        return "ShareAddress(...)"


class ShareLink:
    """Commands one after the other, each bounded in time."""

    def __init__(self, address: ShareAddress) -> None:
        self._address = address
        self._connection: AbstractConnection | None = None
        self._lock = anyio.Lock()

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    async def call(
        self, commands: Sequence[Sequence[str | int]], *, limit_s: float
    ) -> list[Any]:  # answers of the server; an error is a `ServerError` in its place
        """
        Send commands at once and take their answers.

        Raises:
            ShareAway, ShareRefused
        """
        try:
            with anyio.fail_after(limit_s):
                async with self._lock:
                    return await self._exchange(commands)
        except TimeoutError:
            raise ShareAway(f"no answer within {limit_s * 1000:.0f} ms") from None

    async def _exchange(self, commands: Sequence[Sequence[str | int]]) -> list[Any]:
        is_whole = False
        try:
            connection = await self._connected()
            await connection.send_packed_command(connection.pack_commands(commands))
            answers = [await self._answer(connection) for _ in commands]
            is_whole = True
            return answers
        except (exceptions.AuthenticationError, exceptions.NoPermissionError) as error:
            raise ShareRefused(_words(error)) from None
        except exceptions.RedisError as error:
            raise ShareAway(_words(error)) from None
        except (OSError, ssl.SSLError) as error:
            raise ShareAway(_words(error)) from None
        finally:
            if not is_whole:
                await self.aclose()

    async def _answer(self, connection: AbstractConnection) -> Any:
        try:
            return await connection.read_response(timeout=None)
        except (exceptions.AuthenticationError, exceptions.NoPermissionError):
            raise
        except exceptions.ConnectionError:
            raise  # also "loading" and "max clients": it serves no client now
        except exceptions.ResponseError as error:
            return ServerError(_words(error))

    async def _connected(self) -> AbstractConnection:
        if self._connection is None:
            found = connection_to(self._address)
            self._connection = found
            await found.connect()  # type: ignore[no-untyped-call]
        return self._connection

    async def aclose(self) -> None:
        """Whatever is on its way on this connection belongs to nothing that is still asked."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with anyio.CancelScope(shield=True):
                await connection.disconnect(nowait=True)


def connection_to(address: ShareAddress) -> AbstractConnection:
    """
    Raises:
        ValueError: No address of a server.
    """
    found: dict[str, Any] = dict(parse_url(address.url))
    found.pop("connection_class", None)
    known: dict[str, Any] = {
        key: found[key]
        for key in ("host", "port", "db", "username", "password", "path")
        if key in found
    }
    plain: dict[str, Any] = {
        "retry": Retry(NoBackoff(), 0),
        "socket_connect_timeout": CONNECT_S,
        "socket_timeout": None,
        "protocol": 2,
        "client_name": CLIENT_NAME,
        "driver_info": None,
        **known,
    }
    if address.url.startswith("unix:"):
        return UnixDomainSocketConnection(**plain)
    if address.url.startswith("rediss:"):
        return SSLConnection(
            ssl_ca_certs=address.ca_file,
            ssl_certfile=address.cert_file,
            ssl_keyfile=address.key_file,
            ssl_min_version=ssl.TLSVersion.TLSv1_2,
            **plain,
        )
    return Connection(**plain)


def _words(error: BaseException) -> str:
    """Describe a failed connection: libraries name the address, and never passwords."""
    text = " ".join(str(error).split())[:200]
    return text or type(error).__name__


VERSION = "1"
MAX_COUNT = 1000
MAX_CARDS = 200
MAX_MISSED = 20
_STATES = ("rate_limited", "broken")
_ACTIONS = ("mark", "clear", "pause", "resume")
_DAY_S = 86_400.0


class BadRecord(Exception):
    """Raised for a record that another program, or a newer version, wrote: says what is wrong."""


def pairs(flat: Any) -> dict[str, str]:  # as the server gives it
    """An answer of HGETALL. Bytes that are no text become replacement characters."""
    words = [one.decode(errors="replace") if isinstance(one, bytes) else str(one) for one in flat]
    return dict(zip(words[::2], words[1::2], strict=False))


def record_of(
    scope: ScopeId, fields: Mapping[str, str], words: Mapping[str, str], *, now: float
) -> SharedRecord:
    """
    Raises:
        BadRecord: Not as a whole by this version's rules.
    """
    for found in (fields, words):
        if (version := found.get("v", VERSION)) != VERSION:
            raise BadRecord(f"version {_shown(version)} is newer than this fallbackd")
    try:
        return SharedRecord(
            scope=scope,
            marks=_marks(fields, now=now),
            proven_at=_instant(fields.get("proven"), now=now),
            word=_word(words, now=now),
            lease=_lease(fields, now=now),
            gen=int(fields.get("gen", "0")),
        )
    except (ValueError, OverflowError) as error:
        raise BadRecord(str(error)) from None


def _marks(fields: Mapping[str, str], *, now: float) -> frozenset[SharedMark]:
    state = fields.get("state", "")
    if not state:
        return frozenset()
    if state not in _STATES:
        raise ValueError(f"state {_shown(state)}")
    since_at = _instant(fields.get("since"), now=now)
    if since_at is None:
        raise ValueError("a mark without a beginning")
    until_at = _instant(fields.get("until"), now=now)
    rests_at = _instant(fields.get("cooldown_until"), now=now)
    cooldown_s = 0.0
    if until_at is not None and rests_at is not None:
        cooldown_s = min(max(0.0, rests_at - until_at), _DAY_S)
    return frozenset(
        {
            SharedMark(
                state=cast(Literal["rate_limited", "broken"], state),
                reason=Reason(fields.get("reason", "")),
                detail=_text(fields.get("detail")) or None,
                since_at=since_at,
                until_at=until_at,
                cooldown_s=cooldown_s,
                count=min(max(1, int(fields.get("count", "1"))), MAX_COUNT),
                stated=fields.get("stated") == "1",
                source=_text(fields.get("source")),
            )
        }
    )


def _word(words: Mapping[str, str], *, now: float) -> PersonWord | None:
    if not words:
        return None
    action, state = words.get("action", ""), words.get("state") or "broken"
    at = _instant(words.get("at"), now=now)
    if action not in _ACTIONS or state not in _STATES or at is None:
        raise ValueError(f"a manual override {_shown(action)}")
    return PersonWord(
        id=_text(words.get("id")),
        action=cast(WordAction, action),
        at=at,
        until_at=_instant(words.get("until"), now=now, bounded=False),
        state=cast(Literal["rate_limited", "broken"], state),
        reason=Reason(words.get("reason") or Reason.MANUAL.value),
        note=_text(words.get("note")),
        source=_text(words.get("source")),
    )


def _lease(fields: Mapping[str, str], *, now: float) -> SharedLease | None:
    owner, until_at = fields.get("lease_owner"), _instant(fields.get("lease_until"), now=now)
    if not owner or until_at is None:
        return None
    return SharedLease(owner=_text(owner), until_at=until_at)


def _instant(text: str | None, *, now: float, bounded: bool = True) -> float | None:
    """Seconds of the server's clock. A time beyond every policy is not believed."""
    if not text:
        return None
    at = float(int(text)) / 1000
    if at < 0 or (bounded and at > now + MAX_AHEAD_S + _DAY_S):
        raise ValueError(f"a time {_shown(text)}")
    return at


def _text(value: str | None) -> str:
    """Words of another machine: short, and nothing that moves a cursor."""
    text = (value or "")[:MAX_DETAIL]
    return "".join(one if one.isprintable() else "?" for one in text)


def _shown(value: str) -> str:
    return json.dumps(_text(value)[:40])


def card_text(card: Card) -> str:
    return json.dumps(
        {
            "instance": card.instance,
            "version": card.version,
            "pid": card.pid,
            "boot": card.boot,
            "missed": card.missed[:MAX_MISSED],
        }
    )


def cards_of(found: Mapping[str, str], *, now: float) -> tuple[Card, ...]:
    """Last seen first. Whatever is no card is left out."""
    cards: list[Card] = []
    for name, text in found.items():
        at, _, rest = text.partition(" ")
        try:
            told = json.loads(rest)
            cards.append(
                Card(
                    name=_text(name),
                    instance=_text(str(told["instance"])),
                    version=_text(str(told.get("version", ""))),
                    pid=int(told.get("pid", 0)),
                    boot=_text(str(told.get("boot", ""))),
                    missed=tuple(_text(str(one)) for one in told.get("missed", ())[:MAX_MISSED]),
                    seen_ago_s=max(0.0, now - int(at) / 1000),
                )
            )
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            continue
    return tuple(sorted(cards, key=lambda one: (one.seen_ago_s, one.name))[:MAX_CARDS])


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

    # Records.

    async def read(self, scopes: Sequence[ScopeId], *, limit_s: float) -> ShareReading:
        if not scopes:
            return ShareReading(at=await self._now(limit_s=limit_s))
        calls = [(self._keys(scope), (scope,)) for scope in scopes]
        answers = await self._run(READ, calls, limit_s=limit_s)
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
            REPORT_FAILURE,
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
        return await self._changed(REPORT_SUCCESS, scope, arguments, limit_s=limit_s)

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
        return await self._changed(SAY, scope, arguments, limit_s=limit_s)

    async def _changed(
        self, script: str, scope: ScopeId, arguments: tuple[str, ...], *, limit_s: float
    ) -> ShareReading:
        answer = await self._one(script, scope, arguments, limit_s=limit_s)
        return _seen(scope, answer)

    # Leases.

    async def lease(
        self, scope: ScopeId, *, owner: str, ttl_s: float, early: bool, limit_s: float
    ) -> Leased:
        arguments = (owner, _ms(ttl_s), "1" if early else "0")
        answer = await self._one(LEASE, scope, arguments, limit_s=limit_s)
        seen = _seen(scope, answer)
        gen = seen.records[0].gen if seen.records else 0
        return Leased(granted=int(answer[1]) == 1, gen=gen, seen=seen)

    async def renew(
        self, scope: ScopeId, *, owner: str, gen: int, ttl_s: float, limit_s: float
    ) -> bool:
        arguments = (owner, str(gen), _ms(ttl_s))
        answer = await self._one(RENEW, scope, arguments, limit_s=limit_s)
        return int(answer[1]) == 1

    async def release(self, scope: ScopeId, *, owner: str, gen: int, limit_s: float) -> bool:
        arguments = (owner, str(gen))
        answer = await self._one(RELEASE, scope, arguments, limit_s=limit_s)
        return int(answer[1]) == 1

    # The group.

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
        (answer,) = await self._run(PRESENT, [call], limit_s=limit_s)
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

    # Calls.

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
        """
        Run a script by its digest; a server that lacks it, as after a restart, is given the text.
        """
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
