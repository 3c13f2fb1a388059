-- Return the head and the rows from one position to another, or to the end.
-- ARGV: 3 the first, 4 the last.
if gone() then
    return false
end
local head = redis.call('HGET', session, 'head') or ''
local rows = {}
for seq = tonumber(ARGV[3]), math.min(open_head(head) or 0, tonumber(ARGV[4])) do
    rows[#rows + 1] = redis.call('HGET', messages, seq) or ''
end
return { head, rows }
