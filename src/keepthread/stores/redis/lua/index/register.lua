-- Give a new session its number and announce it. KEYS: the last number, all sessions, the listed
-- ones by activity, those of its owner, when sessions may end, those that are not listed,
-- and all of its owner. ARGV: 1 the tag of its id,
-- 2 whether it is listed, 3 its activity, 4 its time to live in milliseconds, or 0, 5 for how many
-- microseconds to wait beyond its end, 6 the tag of its owner.
-- Numbers count on from the last one, and where that was lost with its server, from the time.
local time = redis.call('TIME')
local last = tonumber(redis.call('GET', KEYS[1]) or '') or 0
local number = string.format('%.0f', math.max(last + 1, time[1] * 1000000 + time[2]))
local key = number .. '-' .. ARGV[1]
redis.call('SET', KEYS[1], number)
redis.call('ZADD', KEYS[2], number, key)
redis.call('ZADD', KEYS[7], number, key)
if ARGV[4] ~= '0' then
    local now = time[1] * 1000 + math.floor(time[2] / 1000)
    redis.call('ZADD', KEYS[5], now + ARGV[4] + ARGV[5] / 1000, key .. ' ' .. ARGV[6])
end
if ARGV[2] == '1' then
    redis.call('ZADD', KEYS[3], ARGV[3], key)
    redis.call('ZADD', KEYS[4], ARGV[3], key)
else
    redis.call('ZADD', KEYS[6], ARGV[3], key)
end
return key
