-- Store messages at the end of a log, all or none.
-- ARGV: 3 the position expected, 4 the turn, 5 whether to store (2: also as the first of the log, which
-- the index of copies has by now), 6 the time of activity, sealed,
-- 7 whether the session's record is wanted, then an id and a row's rest for each message.
-- Returns the head before, 1 if it stored, 2 if the session was forgotten and takes no new messages, or 3 if
-- the index of copies must have its first message first, the record, and id, position and row of what is known.
if gone() then
    return false
end
local state = redis.call('HMGET', session, 'head', 'active', 'record')
local seq, turns, total, ttl = open_head(state[1])
local reply = { state[1] or '', 0, ARGV[7] == '1' and state[3] or '' }
if not seq then
    return reply
end

local record = state[3] or ''
if string.byte(record, 18) == 0 and string.find(record, '"forgotten":true', 1, true) then
    reply[2] = 2
end

local turn = tonumber(ARGV[4])
local fits = ARGV[5] ~= '0' and (ARGV[3] == '' or tonumber(ARGV[3]) == seq)
if turn and (turn < 1 or turn > turns) then
    fits = false
end
local sum = number(total)
for i = 8, #ARGV, 2 do
    sum = sum + number(ARGV[i + 1])
    local at = redis.call('HGET', ids, ARGV[i])
    if at then
        fits = false
        reply[#reply + 1] = ARGV[i]
        reply[#reply + 1] = at
        reply[#reply + 1] = redis.call('HGET', messages, at) or ''
    end
end
if not fits or sum > MOST or reply[2] == 2 then
    return reply
end
if seq == 0 and ARGV[5] == '1' and #ARGV > 7 then
    reply[2] = 3
    return reply
end

for i = 8, #ARGV, 2 do
    local rest = ARGV[i + 1]
    if not turn and string.byte(rest, 49) % 4 == 1 then
        turns = turns + 1
    end
    seq = seq + 1
    total = add(total, string.sub(rest, 1, 8))
    local row = close_row(seq, turn or turns, turns, total, rest)
    redis.call('HSET', messages, seq, row)
    redis.call('HSET', ids, ARGV[i], seq)
end
if #ARGV > 7 then
    local active = state[2]
    if not active or #active ~= 16 or struct.unpack('<d', active) < struct.unpack('<d', ARGV[6]) then
        active = ARGV[6]
    end
    redis.call('HSET', session, 'head', close_head(seq, turns, total, ttl), 'active', active)
    keep(ttl)
    announce()
end
reply[2] = 1
return reply
