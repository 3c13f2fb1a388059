-- Note that a request in flight is still worked on; return 0 if another worker has it, or if it was answered.
-- KEYS: all that `request_begin` takes; ARGV: 1 the id, 2 the token, 3 the time, 4 after how many milliseconds
-- all of them end.
local known = redis.call('HGET', KEYS[1], ARGV[1])
if not known or #known ~= 48 or string.sub(known, 33) ~= ARGV[2] then
    return 0
end
redis.call('ZADD', KEYS[2], ARGV[3], ARGV[1])
for _, key in ipairs(KEYS) do
    redis.call('PEXPIRE', key, ARGV[4])
end
return 1
