-- Return the head and the newest rows that fit, newest first.
-- ARGV: 3 the last position, or empty, 4 the one before the first, 5 tokens, 6 limit, 7 least.
if gone() then
    return false
end
local head = redis.call('HGET', session, 'head') or ''
local seq = open_head(head)
if not seq then
    return { head, {} }
end
local last = math.min(seq, tonumber(ARGV[3]) or seq)
return { head, newest(last, tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])) }
