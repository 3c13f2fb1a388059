-- Put a record, if it and the session it is made of are as the caller saw them.
-- ARGV: 3 name, 4 the version seen, or empty, 5 the epoch seen of this session, or empty, 6 rest.
-- Returns 1 and the new version, 0 and the present one, or -1 and the present epoch.
if gone() then
    return false
end
local name, rest = ARGV[3], ARGV[6]
local present = redis.call('HGET', records, name)
local version = present and struct.unpack('<i8', present) or 0
if present and string.sub(present, 17, 24) == string.sub(rest, 1, 8) then
    return { 1, version } -- a repeated attempt finds its own
end
if ARGV[4] ~= '' and tonumber(ARGV[4]) ~= version then
    return { 0, version }
end
local state = redis.call('HMGET', session, 'record', 'head')
if ARGV[5] ~= '' then
    local epoch = state[1] and #state[1] >= 16 and struct.unpack('<i8', state[1], 9) or -1
    if epoch ~= tonumber(ARGV[5]) then
        return { -1, epoch }
    end
end

local number = next_version()
local _, waits = struct.unpack('<I4I4', rest, 13)
if waits > 0 then
    local _, present_waits = struct.unpack('<I4I4', present or string.rep('\0', 36), 29)
    if present and present_waits == 0 then
        redis.call('HSET', records, former(name), present)
    end
else
    redis.call('HDEL', records, former(name))
end
local record = close_record(name, struct.pack('<i8', number), rest)
redis.call('HSET', records, name, record)
redis.call('ZADD', order, 0, name)
reorder(name, present, record)
local _, _, _, ttl = open_head(state[2])
keep(ttl)
announce()
return { 1, number }
