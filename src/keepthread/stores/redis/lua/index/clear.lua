-- Remove members that were announced but do not exist. They are announced before they are created,
-- so recent ones are kept. KEYS: sorted sets, the first with the times of announcement;
-- ARGV: 1 for how many microseconds to keep them, then members.
local time = redis.call('TIME')
local before = time[1] * 1000000 + time[2] - tonumber(ARGV[1])
for i = 2, #ARGV do
    local since = redis.call('ZSCORE', KEYS[1], ARGV[i])
    if not since or tonumber(since) < before then
        for _, key in ipairs(KEYS) do
            redis.call('ZREM', key, ARGV[i])
        end
    end
end
return 1
