-- Put a head that was found from the rows in the place of a damaged one. ARGV: 3 that one, 4 the new.
if gone() then
    return false
end
if (redis.call('HGET', session, 'head') or '') == ARGV[3] then
    redis.call('HSET', session, 'head', ARGV[4])
end
return 1
