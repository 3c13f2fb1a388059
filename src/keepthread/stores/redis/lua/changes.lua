-- The second part of scripts that change what the feed announces: the last key is the stream of changes
-- of this place, the last two arguments are the period that was announced for it, and the change. The
-- period 0 announces nothing.
--
-- A period is a second. Once it is over, readers take its changes as complete; so a script that comes
-- later changes nothing and answers LATE, with the period to announce instead.
local KEPT = 8 * 86400 -- seconds: a day longer than the feed promises
local stream = table.remove(KEYS)
local change = table.remove(ARGV)
local period = tonumber(table.remove(ARGV))
local clock = redis.call('TIME')
local last_period, last_number = 0, 0

if period > 0 then
    local last = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1]
    if last then
        local first, second = string.match(last[1], '^(%d+)-(%d+)$')
        last_period, last_number = tonumber(first), tonumber(second)
    end
    local earliest = math.max(tonumber(clock[1]), last_period)
    if period < earliest then
        return redis.error_reply('LATE ' .. string.format('%.0f', earliest))
    end
end

-- Add the change to the stream; the script has written something else before.
local function announce()
    if period == 0 then
        return
    end
    local number = period == last_period and last_number + 1 or 1
    local id = string.format('%.0f-%.0f', period, number)
    local oldest = string.format('%.0f', period - KEPT)
    redis.call('XADD', stream, 'MINID', '~', oldest, id, 'change', change, 'at', clock[1] .. '.' .. string.format('%06d', clock[2]))
    redis.call('EXPIRE', stream, KEPT)
end

