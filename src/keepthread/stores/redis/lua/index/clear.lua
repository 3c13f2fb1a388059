-- Clear away what was announced and is not there. It is announced before it is made, so that what
-- was announced a moment ago may be about to be. KEYS: sorted sets, of which the first tells when;
-- ARGV: 1 for how many microseconds to wait, then members.
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
