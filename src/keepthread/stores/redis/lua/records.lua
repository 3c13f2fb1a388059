-- Return the names of all records of a session, an owner or the tenant, and their orders by name and by
-- version, of one moment.
return { redis.call('HKEYS', records), redis.call('ZRANGE', order, 0, -1), redis.call('ZRANGE', recent, 0, -1) }
