-- Replace a session's record if it is as it was seen. ARGV: 3 the revision seen, 4 the next one,
-- 5 record, 6 active, or empty. Returns whether it did.
if gone() then
    return false
end
local state = redis.call('HMGET', session, 'revision', 'active', 'head')
if state[1] ~= ARGV[3] then
    return 0
end
redis.call('HSET', session, 'revision', ARGV[4], 'record', ARGV[5])
local active = state[2]
if ARGV[6] ~= '' and (not active or #active ~= 16 or struct.unpack('<d', active) < struct.unpack('<d', ARGV[6])) then
    redis.call('HSET', session, 'active', ARGV[6])
end
local _, _, _, ttl = open_head(state[3])
keep(ttl)
announce()
return 1
