-- Confirm a waiting record, or revert it. ARGV: 3 name, 4 version, 5 the rest of the confirmed
-- record, or empty to revert. Returns whether the waiting record still existed.
if gone() then
    return false
end
local name = ARGV[3]
local present = redis.call('HGET', records, name)
if not present or struct.unpack('<i8', present) ~= tonumber(ARGV[4]) then
    return 0
end
local _, waits = struct.unpack('<I4I4', present, 29)
if waits == 0 then
    return 1
end
if ARGV[5] == '' then
    take_back(name)
else
    redis.call('HSET', records, name, close_record(name, string.sub(present, 1, 8), ARGV[5]))
    redis.call('HDEL', records, former(name))
end
return 1
