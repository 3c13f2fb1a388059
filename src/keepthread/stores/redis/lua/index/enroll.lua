-- Note a name in a sorted set, whose order is by name. KEYS: the set; ARGV: 1 the name.
redis.call('ZADD', KEYS[1], 0, ARGV[1])
return 1
