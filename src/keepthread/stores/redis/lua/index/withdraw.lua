-- Remove the entries that lead to a place. KEYS: the entries; ARGV: beginnings of places, each up to a NUL.
for i = 1, #ARGV do
    local start = '<' .. ARGV[i]
    local members = redis.call('ZRANGEBYLEX', KEYS[1], '[' .. start .. '\0', '(' .. start .. '\1')
    for _, member in ipairs(members) do
        local place, from = string.match(member, '^<(.*)%z([^%z]*)$')
        redis.call('ZREM', KEYS[1], member)
        if place then
            redis.call('ZREM', KEYS[1], '>' .. from .. '\0' .. place)
        end
    end
end
return 1
