-- Put rows that were counted anew beside the log. KEYS[6] is where; ARGV: positions and rows.
if gone() then
    return false
end
for i = 3, #ARGV, 2 do
    redis.call('HSET', KEYS[6], ARGV[i], ARGV[i + 1])
end
redis.call('PEXPIRE', KEYS[6], 3600000) -- should nobody come back for them
return 1
