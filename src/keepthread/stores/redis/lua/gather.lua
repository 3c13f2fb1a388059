-- Return the material of a context: record, head, newest rows, records, and the sources of some.
-- ARGV: 3 tokens, 4 least, 5 the session's key, 6 how many kinds follow, then kinds, then kinds
-- whose records are followed.
if gone() then
    return false
end
local state = redis.call('HMGET', session, 'record', 'head')
local record, head = state[1] or '', state[2] or ''
local seq = open_head(head)
if not seq then
    return { record, head }
end
local plain, followed, sources, seen = {}, {}, {}, {}
for i = 7, #ARGV do
    local list = i <= 6 + tonumber(ARGV[6]) and plain or followed
    list[#list + 1] = between({}, '(' .. ARGV[i] .. '\0', '(' .. ARGV[i] .. '\1', -1)
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
return { record, head, newest(seq, 0, tonumber(ARGV[3]), nil, tonumber(ARGV[4])), plain, followed, sources }
