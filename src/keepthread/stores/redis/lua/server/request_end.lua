-- Store the answer to a request; return 0 if another worker has it. KEYS: the requests, the bodies;
-- ARGV: 1 the id, 2 the token, 3 the answer without its body, 4 after how many milliseconds the bodies end,
-- 5 the body, if there is one.
local known = redis.call('HGET', KEYS[1], ARGV[1])
if not known or string.sub(known, 33, 48) ~= ARGV[2] then
    return 0
end
redis.call('HSET', KEYS[1], ARGV[1], string.sub(known, 1, 48) .. ARGV[3])
if ARGV[5] then
    redis.call('HSET', KEYS[2], ARGV[1], ARGV[5])
    redis.call('PEXPIRE', KEYS[2], ARGV[4])
end
return 1
