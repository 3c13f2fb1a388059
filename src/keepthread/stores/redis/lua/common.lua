-- The beginning of every script on a session or on records.
--
-- KEYS are those of one hash tag, and so of one slot: the session's hash, its messages, the
-- positions of their ids, its records, their order by name, and by version. An owner's or the tenant's
-- records have the same, without messages and without an order by version.
-- ARGV[1] is the session's life, or empty for other records; ARGV[2] is the mark of the place.
--
-- A server whose memory is full rejects a script's first write if it adds data, but no later write.
-- So scripts that add data start by adding, and scripts that free memory start by removing.

local session, messages, ids, records, order, recent = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local life, mark = ARGV[1], ARGV[2]

local function gone()
    return life ~= '' and redis.call('HGET', session, 'life') ~= life
end

-- SHA-1 is the only checksum that the server can compute. Python computes the same.
local function seal(text)
    return string.sub(redis.sha1hex(mark .. text), 1, 8)
end

-- Add two numbers of 64 bits: one of Lua's own is exact up to 2^53 only, and totals go beyond.
local function add(a, b)
    local low_a, high_a = struct.unpack('<I4I4', a)
    local low_b, high_b = struct.unpack('<I4I4', b)
    local low, high = low_a + low_b, high_a + high_b
    if low >= 4294967296 then
        low, high = low - 4294967296, high + 1
    end
    return struct.pack('<I4I4', low, high % 4294967296)
end

-- Return a number of 64 bits as one of Lua's own, to compare it with the limit of a log.
local MOST = 9007199254740991

local function number(bytes)
    local low, high = struct.unpack('<I4I4', bytes)
    return high * 4294967296 + low
end

-- A head is 8 bytes each of position, turns, total and time to live, and their checksum.
local function open_head(head)
    if head and #head == 40 and seal(string.sub(head, 1, 32)) == string.sub(head, 33) then
        return struct.unpack('<i8i8c8i8', head)
    end
end

local function close_head(seq, turns, total, ttl)
    local numbers = struct.pack('<i8i8', seq, turns) .. total .. struct.pack('<i8', ttl)
    return numbers .. seal(numbers)
end

-- A session's record is a checksum, then the epoch (8 bytes), the kind, whether it is ready, and the rest.
local function sound_record(record)
    return #record > 18 and seal(string.sub(record, 9)) == string.sub(record, 1, 8)
end

-- Set the same time to live for all keys of a session.
local function keep(ttl)
    if ttl and ttl > 0 then
        for _, key in ipairs(KEYS) do
            redis.call('PEXPIRE', key, ttl)
        end
    end
end

-- Return a row: its guard, the numbers given here, and the rest, which came from Python. The rest
-- begins with tokens, time and digest (48 bytes); 9 more bytes are the types and lengths of the
-- fields that follow, of which the counter's name is the first.
local function close_row(seq, turn, turns, total, rest)
    local numbers = struct.pack('<i8i8', turn, turns) .. total
    local counter = string.sub(rest, 58, 57 + struct.unpack('<I2', rest, 50))
    local guarded = struct.pack('<i8', seq) .. numbers .. string.sub(rest, 1, 48) .. counter
    return seal(guarded) .. numbers .. rest
end

local function sound_row(seq, row)
    if #row < 89 then
        return false
    end
    local turn, turns = struct.unpack('<i8i8', row, 9)
    local total, rest = string.sub(row, 25, 32), string.sub(row, 33)
    return close_row(seq, turn, turns, total, rest) == row
end

-- Return rows from a position back to another, as long as they fit. Damaged rows cost nothing, but
-- only a row that would end the loop is checked here: Python checks all of them, and asks again if
-- more would fit.
local function newest(last, after, tokens, limit, least)
    local rows, used = {}, 0
    for seq = last, after + 1, -1 do
        if limit and #rows >= limit then
            break
        end
        local row = redis.call('HGET', messages, seq) or ''
        local cost = #row >= 40 and math.max(0, (struct.unpack('<i8', row, 33))) or 0
        if tokens and used + cost > tokens and #rows >= least then
            if used > tokens or sound_row(seq, row) then
                break
            end
            cost = 0
        end
        used = used + cost
        rows[#rows + 1] = row
    end
    return rows
end

-- Append the records between two bounds to a list, as names and values, last first.
local function between(list, first, last, count)
    local names = redis.call('ZREVRANGEBYLEX', order, last, first, 'LIMIT', 0, count)
    for _, name in ipairs(names) do
        list[#list + 1] = name
        list[#list + 1] = redis.call('HGET', records, name) or ''
    end
    return list
end

-- A record is its version, a checksum, and the rest, which came from Python: 8 bytes that identify
-- the put, 4 of a checksum of the value, 4 each for the lengths of its sources and of the epochs
-- that must still be confirmed, then these two, then the value.
local function close_record(name, version, rest)
    local made_of, waits = struct.unpack('<I4I4', rest, 13)
    return version .. seal(name .. version .. string.sub(rest, 1, 20 + made_of + waits)) .. rest
end

-- Return the spans of a sound record, and whether it is sound.
local function spans_of(name, record)
    if #record < 36 then
        return {}, false
    end
    local made_of, waits = struct.unpack('<I4I4', record, 29)
    local version, rest = string.sub(record, 1, 8), string.sub(record, 17, 36 + made_of + waits)
    if seal(name .. version .. rest) ~= string.sub(record, 9, 16) then
        return {}, false
    end
    if made_of == 0 then
        return {}, true
    end
    return cjson.decode(string.sub(rest, 21, 20 + made_of)), true
end

-- The record that a waiting one will replace is stored under its name followed by NUL.
local function former(name)
    return '\0' .. name
end

-- Versions never return: they count on from the last, which outlives every record, and where even
-- that was lost with its server, from the time. Of an owner's records the last one is the number of the
-- last change, so a record that is dropped takes one as well.
local function next_version()
    local time = redis.call('TIME')
    local last = tonumber(redis.call('HGET', session, 'version') or '') or 0
    local version = math.max(last + 1, time[1] * 1000000 + time[2])
    redis.call('HSET', session, 'version', string.format('%.0f', version))
    return version
end

-- The member of a session's record in the order by version: kind, version and key.
local function by_version(name, record)
    local kind, key = string.match(name, '^(%Z*)%z(.*)$')
    return kind .. '\0' .. string.format('%016.0f', (struct.unpack('<i8', record))) .. '\0' .. key
end

-- Keep the order by version when a record takes the place of another; either may be missing.
local function reorder(name, before, after)
    if life == '' then
        return
    end
    if before and #before >= 8 then
        redis.call('ZREM', recent, by_version(name, before))
    end
    if after and #after >= 8 then
        redis.call('ZADD', recent, 0, by_version(name, after))
    end
end

local function remove(name)
    local present = redis.call('HGET', records, name)
    redis.call('HDEL', records, name, former(name))
    redis.call('ZREM', order, name)
    reorder(name, present, nil)
    if present and life == '' then
        next_version()
    end
end

-- Revert a waiting record: restore the one it was to replace.
local function take_back(name)
    local before = redis.call('HGET', records, former(name))
    if before then
        reorder(name, redis.call('HGET', records, name), before)
        redis.call('HSET', records, name, before)
        redis.call('HDEL', records, former(name))
        if life == '' then
            next_version()
        end
    else
        remove(name)
    end
end
