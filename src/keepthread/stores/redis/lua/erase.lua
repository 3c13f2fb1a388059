-- Put tombstones in the place of messages, and drop the session's records made of them.
-- ARGV: 3 the revision seen, 4 the next one, 5 record, 6 the session's key, then positions,
-- ascending, and tombstones. Returns whether the session was as it was seen.
if gone() then
    return false
end
if redis.call('HGET', session, 'revision') ~= ARGV[3] then
    return 0
end
local seqs = {}
for i = 7, #ARGV, 2 do
    redis.call('HDEL', messages, ARGV[i])
    redis.call('HSET', messages, ARGV[i], ARGV[i + 1])
    seqs[#seqs + 1] = tonumber(ARGV[i])
end
redis.call('HSET', session, 'revision', ARGV[4], 'record', ARGV[5])
-- Removing the only row of a log also removes its time to live.
local left = redis.call('PTTL', session)
if left > 0 then
    redis.call('PEXPIRE', messages, left)
end

local function erased_between(first, last)
    local low, high = 1, #seqs + 1
    while low < high do
        local middle = math.floor((low + high) / 2)
        if seqs[middle] < first then
            low = middle + 1
        else
            high = middle
        end
    end
    return seqs[low] and seqs[low] <= last
end

-- The sources of a damaged record are unknown, so it is deleted too: nobody can read it, but its
-- bytes may still contain erased text.
local function touched(name, record)
    local spans, sound = spans_of(name, record)
    for _, span in ipairs(spans) do
        if span[1] == ARGV[6] and erased_between(span[2], span[3]) then
            return true
        end
    end
    return not sound
end

local all = redis.call('HGETALL', records)
for i = 1, #all, 2 do -- saved versions first, so that no erased text is restored
    if string.byte(all[i], 1) == 0 and touched(string.sub(all[i], 2), all[i + 1]) then
        redis.call('HDEL', records, all[i])
    end
end
for i = 1, #all, 2 do
    if string.byte(all[i], 1) ~= 0 and touched(all[i], all[i + 1]) then
        take_back(all[i])
    end
end
announce()
return 1
