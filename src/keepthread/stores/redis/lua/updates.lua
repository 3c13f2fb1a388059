-- Return the number of the last change of an owner's or the tenant's records, whether all records of a
-- kind follow, and those, last first. ARGV: 3 the kind, 4 the number that the reader has.
local number = redis.call('HGET', session, 'version') or '0'
if number == ARGV[4] and number ~= '0' then
    return { number, 0, {} }
end
return { number, 1, between({}, '(' .. ARGV[3] .. '\0', '(' .. ARGV[3] .. '\1', -1) }
