-- Remove deleted sessions from the index; check the others again once they may have expired.
-- KEYS: all sessions, the listed ones by activity, the ends, those that are not listed; ARGV: 1 for how many microseconds to
-- wait beyond an end, then `key tag-of-owner` and the milliseconds left, negative if it is gone.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for i = 2, #ARGV, 2 do
    local left = tonumber(ARGV[i + 1])
    if left >= 0 then
        redis.call('ZADD', KEYS[3], 'XX', now + left + tonumber(ARGV[1]) / 1000, ARGV[i])
    else
        local key, tag = string.match(ARGV[i], '^(%S+) (%S+)$')
        if key then
            redis.call('ZREM', KEYS[1], key)
            redis.call('ZREM', KEYS[1] .. ':' .. tag, key)
            redis.call('ZREM', KEYS[2], key)
            redis.call('ZREM', KEYS[4], key)
            redis.call('ZREM', KEYS[2] .. ':' .. tag, key)
        end
        redis.call('ZREM', KEYS[3], ARGV[i])
    end
end
return 1
