-- Replace the data of an API key; return 0 if it is neither the old nor the new. KEYS: the keys;
-- ARGV: 1 the id, 2 the old data, 3 the new.
local data = redis.call('HGET', KEYS[1], ARGV[1])
if data ~= ARGV[2] and data ~= ARGV[3] then
    return 0
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return 1
