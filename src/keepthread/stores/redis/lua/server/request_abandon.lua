-- Delete a request in flight; return 0 if another worker has it, or if it was answered. KEYS: the requests,
-- when they began, those that may have bodies; ARGV: 1 the id, 2 the token.
local known = redis.call('HGET', KEYS[1], ARGV[1])
if not known or #known ~= 48 or string.sub(known, 33) ~= ARGV[2] then
    return 0
end
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('SREM', KEYS[3], ARGV[1])
return 1
