-- Create a session, unless its id is taken. ARGV: 3 head, 4 active, 5 record.
-- Returns whether this session exists now: a repeated attempt finds its own.
local now = redis.call('HGET', session, 'life')
if now then
    return now == life and 1 or 0
end
redis.call('HSET', session, 'life', life, 'head', ARGV[3], 'active', ARGV[4], 'record', ARGV[5])
redis.call('HSET', session, 'revision', 0)
redis.call('UNLINK', messages, ids, records, order)
local _, _, _, ttl = open_head(ARGV[3])
keep(ttl)
announce()
return 1
