-- Announce that something is about to change at a place, and return the period to write it in, and how
-- many milliseconds are left of it. KEYS: the feed of the tenant, that of the owner, the state of the
-- feeds. ARGV: 1 the place, 2 the earliest period, 3 for how many seconds changes are kept, 4 the tag
-- of the owner. Periods that were read as complete are never given again, even if the clock goes back.
local time = redis.call('TIME')
local now = tonumber(time[1])
local closed = tonumber(redis.call('HGET', KEYS[3], 'closed') or '') or 0
local period = math.max(now, tonumber(ARGV[2]), closed + 1)
local member = string.format('%010.0f:', period) .. ARGV[1]
local before = string.format('(%010.0f', now - tonumber(ARGV[3]))
redis.call('HSETNX', KEYS[3], 'owner:' .. ARGV[4], '')
for i = 1, 2 do
    redis.call('ZADD', KEYS[i], 0, member)
    local old = redis.call('ZRANGEBYLEX', KEYS[i], '-', before, 'LIMIT', 0, 20)
    if #old > 0 then
        redis.call('ZREM', KEYS[i], unpack(old))
        redis.call('HSET', KEYS[3], i == 1 and 'trimmed' or 'trimmed:' .. ARGV[4], old[#old])
    end
end
return { period, (period + 1 - now) * 1000 - math.floor(time[2] / 1000) }
