-- Stage rows with new counts beside the log, at KEYS[7]; ARGV: positions and rows.
if gone() then
    return false
end
for i = 3, #ARGV, 2 do
    redis.call('HSET', KEYS[7], ARGV[i], ARGV[i + 1])
end
redis.call('PEXPIRE', KEYS[7], 3600000) -- in case the recount is never finished
return 1
