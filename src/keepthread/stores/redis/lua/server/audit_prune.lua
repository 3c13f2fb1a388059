-- Delete entries of the audit log; return how many. KEYS: the log, the logs of their tenants; ARGV: 1 the
-- number of the first that stays.
local count = redis.call('XLEN', KEYS[1])
for _, key in ipairs(KEYS) do
    redis.call('XTRIM', key, 'MINID', ARGV[1] .. '-0')
end
return count - redis.call('XLEN', KEYS[1])
