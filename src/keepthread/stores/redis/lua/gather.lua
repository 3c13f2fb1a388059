-- Return the material of a context: record, head, newest rows, records, the sources of some, and which
-- kinds have more records than the limit.
-- ARGV: 3 tokens, 4 least, 5 the session's key, 6 how many kinds follow, 7 how many records of each
-- followed kind are read, or -1, then kinds, then kinds whose records are followed.
if gone() then
    return false
end
local state = redis.call('HMGET', session, 'record', 'head')
local record, head = state[1] or '', state[2] or ''
local seq = open_head(head)
if not seq then
    return { record, head }
end
local limit = tonumber(ARGV[7])

-- Return the records of a kind that were put last, and whether there are more.
local function last_put(kind)
    local found, more, listed = {}, 0, {}
    local count = limit < 0 and -1 or limit + 1
    local members = redis.call('ZREVRANGEBYLEX', recent, '(' .. kind .. '\1', '(' .. kind .. '\0', 'LIMIT', 0, count)
    for i, member in ipairs(members) do
        if limit >= 0 and i > limit then
            more = 1
            break
        end
        local name = kind .. '\0' .. string.sub(member, #kind + 19)
        if not listed[name] then -- damage may leave an earlier version in the order
            listed[name] = true
            found[#found + 1] = name
            found[#found + 1] = redis.call('HGET', records, name) or ''
        end
    end
    return found, more
end

local plain, followed, more, sources, seen = {}, {}, {}, {}, {}
for i = 8, #ARGV do
    if i <= 7 + tonumber(ARGV[6]) then
        plain[#plain + 1] = between({}, '(' .. ARGV[i] .. '\0', '(' .. ARGV[i] .. '\1', -1)
    else
        followed[#followed + 1], more[#more + 1] = last_put(ARGV[i])
    end
end
for _, list in ipairs(followed) do
    for i = 1, #list, 2 do
        for _, span in ipairs((spans_of(list[i], list[i + 1]))) do
            for at = math.max(1, span[2]), span[1] == ARGV[5] and math.min(seq, span[3]) or 0 do
                if not seen[at] then
                    seen[at] = true
                    sources[#sources + 1] = at
                    sources[#sources + 1] = redis.call('HGET', messages, at) or ''
                end
            end
        end
    end
end
local rows = newest(seq, 0, tonumber(ARGV[3]), nil, tonumber(ARGV[4]))
return { record, head, rows, plain, followed, sources, more }
