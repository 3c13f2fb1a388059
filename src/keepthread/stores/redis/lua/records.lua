-- Return the names of all records of a session, an owner or the tenant, and the names in their order, of one moment.
return { redis.call('HKEYS', records), redis.call('ZRANGE', order, 0, -1) }
