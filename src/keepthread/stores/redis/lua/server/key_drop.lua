-- Delete the API keys of a tenant; return how many there were. KEYS: the keys, all ids, the ids of the
-- tenant.
local ids = redis.call('ZRANGE', KEYS[3], 0, -1)
for _, id in ipairs(ids) do
    redis.call('HDEL', KEYS[1], id)
    redis.call('ZREM', KEYS[2], id)
end
redis.call('DEL', KEYS[3])
return #ids
