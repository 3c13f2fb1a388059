-- Store the answer to a request, unless it has one; return 0 if another worker has it. The body is left out if
-- the tenant forgot something since the request began. KEYS: the requests, the bodies, those that may have
-- bodies; ARGV: 1 the id, 2 the token, 3 the answer without its body, 4 after how many milliseconds the bodies
-- end, 5 the body, if there is one.
local known = redis.call('HGET', KEYS[1], ARGV[1])
if not known or string.sub(known, 33, 48) ~= ARGV[2] then
    return 0
end
if #known > 48 then
    return 1
end
redis.call('HSET', KEYS[1], ARGV[1], known .. ARGV[3])
if redis.call('SREM', KEYS[3], ARGV[1]) == 1 and ARGV[5] then
    redis.call('HSET', KEYS[2], ARGV[1], ARGV[5])
    redis.call('PEXPIRE', KEYS[2], ARGV[4])
end
return 1
