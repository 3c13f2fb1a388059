-- Remove a session with all it has. ARGV: 3 whether this repeats an attempt of unknown outcome,
-- 4 whether it must not be ready, 5 the time since when it must be idle, or empty.
-- Returns `deleted`, or why not: `damaged`, `ready` or `active`.
if gone() then
    return ARGV[3] == '1' and 'deleted' or false
end
if ARGV[4] == '1' or ARGV[5] ~= '' then
    local state = redis.call('HMGET', session, 'record', 'active')
    local record, active = state[1] or '', state[2] or ''
    if not sound_record(record) or #active ~= 16 or seal(string.sub(active, 1, 8)) ~= string.sub(active, 9) then
        return 'damaged'
    end
    if ARGV[4] == '1' and string.byte(record, 18) ~= 0 then
        return 'ready'
    end
    if ARGV[5] ~= '' and struct.unpack('<d', active) >= struct.unpack('<d', ARGV[5]) then
        return 'active'
    end
end
redis.call('UNLINK', unpack(KEYS))
announce()
return 'deleted'
