-- Claim a request: return nothing if it is the caller's now, else the known request and the body of its
-- answer. A request is the digest of what was asked (32 bytes), the token of its worker (16), and the
-- answer without its body, empty while the request is in flight. KEYS: the requests, when they began,
-- the bodies, those that may have bodies; ARGV: 1 the id, 2 the digest, 3 the token, 4 the time, 5 since when one in flight has lost
-- its worker, 6 up to when one counts as unknown, 7 after how many milliseconds all of them end.
local known = redis.call('HGET', KEYS[1], ARGV[1])
local began = tonumber(redis.call('ZSCORE', KEYS[2], ARGV[1]) or '') or 0
if known and began > tonumber(ARGV[6]) then
    local same = #known == 48 and string.sub(known, 1, 32) == ARGV[2]
    if not same or (began > tonumber(ARGV[5]) and string.sub(known, 33, 48) ~= ARGV[3]) then
        return {known, redis.call('HGET', KEYS[3], ARGV[1])}
    end
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ARGV[3])
redis.call('ZADD', KEYS[2], ARGV[4], ARGV[1])
redis.call('HDEL', KEYS[3], ARGV[1])
redis.call('SADD', KEYS[4], ARGV[1])
for _, key in ipairs(KEYS) do
    redis.call('PEXPIRE', key, ARGV[7])
end
return {}
