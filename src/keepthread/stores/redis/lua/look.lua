-- Return the head, the positions of ids, and the rows at these and at further positions.
-- ARGV: 3 how many ids follow, then ids, then positions.
if gone() then
    return false
end
local known, rows = {}, {}
local upto = 3 + tonumber(ARGV[3])
for i = 4, #ARGV do
    local seq = ARGV[i]
    if i <= upto then
        seq = redis.call('HGET', ids, seq) or ''
        known[#known + 1] = seq
    end
    rows[#rows + 1] = seq ~= '' and redis.call('HGET', messages, seq) or ''
end
return { redis.call('HGET', session, 'head') or '', known, rows }
