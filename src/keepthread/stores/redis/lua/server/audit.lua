-- Append an entry to the audit log and return its number. KEYS: the last number, the log, the log of the
-- entry's tenant; ARGV: 1 the entry.
local number = redis.call('INCR', KEYS[1])
redis.call('XADD', KEYS[2], string.format('%.0f-0', number), 'data', ARGV[1])
redis.call('XADD', KEYS[3], string.format('%.0f-0', number), 'data', ARGV[1])
return number
