-- Return a secret, which is the new one if there was none. KEYS: the secrets; ARGV: 1 the name, 2 the new.
redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2])
return redis.call('HGET', KEYS[1], ARGV[1])
