-- Return all records of a session, an owner or the tenant by name, and the names in their order, of one moment.
return { redis.call('HGETALL', records), redis.call('ZRANGE', order, 0, -1) }
