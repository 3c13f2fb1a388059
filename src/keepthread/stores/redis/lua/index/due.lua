-- Return sessions whose time to live may be over: `key tag-of-owner` of each. KEYS: the ends;
-- ARGV: 1 how many at most.
local time = redis.call('TIME')
return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', time[1] * 1000 + math.floor(time[2] / 1000), 'LIMIT', 0, ARGV[1])
