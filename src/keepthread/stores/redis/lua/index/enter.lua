-- Add entries that lead from a session to what may have been made of it. KEYS: the entries, whose order
-- is by name; ARGV: for each, what it leads from, and where. The second member is for removing the first.
for i = 1, #ARGV, 2 do
    redis.call('ZADD', KEYS[1], 0, '>' .. ARGV[i] .. '\0' .. ARGV[i + 1])
    redis.call('ZADD', KEYS[1], 0, '<' .. ARGV[i + 1] .. '\0' .. ARGV[i])
end
return 1
