-- Add an API key; return 0 if its id is taken by other data. KEYS: the keys, all ids, the ids of its
-- tenant; ARGV: 1 the id, 2 the data.
if redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2]) == 0 and redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then
    return 0
end
redis.call('ZADD', KEYS[2], 0, ARGV[1])
redis.call('ZADD', KEYS[3], 0, ARGV[1])
return 1
