"""
The scripts that run on the server, one at a time: they fold, and decide nothing else.

Windows come from the core of the machine that reports. Every script takes the hash of a scope, the
hash of manual overrides of it and the stream of changes; the last argument is the name of the
scope. Every instant is one of the server, in milliseconds. Each answers {time, ok, hash, words}, so
that the caller knows what holds now.

Commands of Redis 6.2, which Valkey has too.
"""

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
