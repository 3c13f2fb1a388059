-- Put whole rows at the end of a log if it still ends where it was seen to.
-- ARGV: 3 the head seen, 4 the next one, then id, position and row of each message.
if gone() then
    return false
end
if redis.call('HGET', session, 'head') ~= ARGV[3] then
    return 0
end
for i = 5, #ARGV, 3 do
    redis.call('HSET', messages, ARGV[i + 1], ARGV[i + 2])
    redis.call('HSET', ids, ARGV[i], ARGV[i + 1])
end
redis.call('HSET', session, 'head', ARGV[4])
local _, _, _, ttl = open_head(ARGV[4])
keep(ttl)
if #ARGV > 4 then
    announce()
end
return 1
