-- Return where entries lead to. KEYS: the entries; ARGV: pairs of bounds of their names.
local found = {}
for i = 1, #ARGV, 2 do
    for _, member in ipairs(redis.call('ZRANGEBYLEX', KEYS[1], ARGV[i], ARGV[i + 1])) do
        found[#found + 1] = string.match(member, '^[^%z]*%z(.*)$')
    end
end
return found
