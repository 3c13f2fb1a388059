-- Delete some requests that began before a time; return how many. KEYS: the requests, when they began, the
-- bodies, those that may have bodies; ARGV: 1 the time, 2 how many at most.
local ids = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', '(' .. ARGV[1], 'LIMIT', 0, ARGV[2])
for _, id in ipairs(ids) do
    redis.call('HDEL', KEYS[1], id)
    redis.call('HDEL', KEYS[3], id)
    redis.call('ZREM', KEYS[2], id)
    redis.call('SREM', KEYS[4], id)
end
return #ids
