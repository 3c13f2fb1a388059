-- Note that an owner is about to have a record, and when. KEYS: the owners; ARGV: 1 the owner.
local time = redis.call('TIME')
redis.call('ZADD', KEYS[1], time[1] * 1000000 + time[2], ARGV[1])
return 1
