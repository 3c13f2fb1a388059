-- Return where something changed, in periods that are over: `period:place` of each, in order; before
-- them whether some after the position were deleted. KEYS: a feed, the state of the feeds. ARGV: 1 `(`
-- or `[` and the position to start after or at, `-` to start at the oldest that is kept, or `+` for the
-- last one alone, 2 for how many seconds changes are kept, 3 how many to return, 4 how many seconds to
-- wait after the end of a period, because clocks differ, 5 the field of what was deleted.
local now = tonumber(redis.call('TIME')[1])
local open = string.format('(%010.0f', now - tonumber(ARGV[4]))
local kept = string.format('%010.0f', now - tonumber(ARGV[2]))
local expired, found = 0, nil
if ARGV[1] == '+' then
    found = redis.call('ZREVRANGEBYLEX', KEYS[1], open, '-', 'LIMIT', 0, 1)
else
    local from = ARGV[1] == '-' and '[' .. kept or ARGV[1]
    found = redis.call('ZRANGEBYLEX', KEYS[1], from, open, 'LIMIT', 0, ARGV[3])
end
local how, after = string.sub(ARGV[1], 1, 1), string.sub(ARGV[1], 2)
if how == '(' or how == '[' then
    local trimmed = redis.call('HGET', KEYS[2], ARGV[5]) or ''
    if after < trimmed or (how == '[' and after == trimmed) or (found[1] and found[1] < kept) then
        expired = 1
    end
end
if found[1] then
    local period = tonumber(string.sub(found[#found], 1, 10))
    if period > (tonumber(redis.call('HGET', KEYS[2], 'closed') or '') or 0) then
        redis.call('HSET', KEYS[2], 'closed', period)
    end
end
return { expired, unpack(found) }
