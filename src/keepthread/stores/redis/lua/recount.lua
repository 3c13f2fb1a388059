-- Replace the log by the staged rows with new counts, if only appends changed it in the meantime:
-- appended rows keep their counts, and their totals continue from the new ones.
-- ARGV: 3 the revision seen, 4 the next one, 5 how many rows are staged at KEYS[7], 6 the last
-- position among them, 7 by how much its total moved, 8 whether this repeats an attempt of unknown
-- outcome. Returns whether it did; -1 if the log would count too many tokens.
if gone() then
    return false
end
local state = redis.call('HMGET', session, 'revision', 'head')
local seq, turns, total, ttl = open_head(state[2])
if ARGV[8] == '1' and state[1] == ARGV[4] then
    return 1
end
if state[1] ~= ARGV[3] or not seq or redis.call('HLEN', KEYS[7]) ~= tonumber(ARGV[5]) then
    return 0
end
if number(add(total, ARGV[7])) > MOST then
    return -1
end
for at = tonumber(ARGV[6]) + 1, seq do
    local row = redis.call('HGET', messages, at)
    if row and sound_row(at, row) then
        local turn, all = struct.unpack('<i8i8', row, 9)
        local sum = add(string.sub(row, 25, 32), ARGV[7])
        row = close_row(at, turn, all, sum, string.sub(row, 33))
    end
    if row then
        redis.call('HSET', KEYS[7], at, row)
    end
end
if redis.call('EXISTS', KEYS[7]) == 1 then
    redis.call('PERSIST', KEYS[7])
    redis.call('RENAME', KEYS[7], messages)
end
redis.call('HSET', session, 'revision', ARGV[4], 'head', close_head(seq, turns, add(total, ARGV[7]), ttl))
if ttl > 0 then
    redis.call('PEXPIRE', messages, redis.call('PTTL', session))
end
return 1
