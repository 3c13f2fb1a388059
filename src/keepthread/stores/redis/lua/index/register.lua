-- Give a new session its number and announce it. KEYS: the last number, all sessions, the listed
-- ones by activity, and those of its owner. ARGV: 1 the tag of its id, 2 whether it is listed,
-- 3 its activity.
-- Numbers count on from the last one, and where that was lost with its server, from the time.
local time = redis.call('TIME')
local last = tonumber(redis.call('GET', KEYS[1]) or '') or 0
local number = string.format('%.0f', math.max(last + 1, time[1] * 1000000 + time[2]))
local key = number .. '-' .. ARGV[1]
redis.call('SET', KEYS[1], number)
redis.call('ZADD', KEYS[2], number, key)
if ARGV[2] == '1' then
    redis.call('ZADD', KEYS[3], ARGV[3], key)
    redis.call('ZADD', KEYS[4], ARGV[3], key)
end
return key
