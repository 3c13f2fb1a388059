-- Remove a name from a sorted set. KEYS: the set; ARGV: 1 the name.
redis.call('ZREM', KEYS[1], ARGV[1])
return 1
