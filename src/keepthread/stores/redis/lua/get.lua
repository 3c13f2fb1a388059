-- Return one record, or an empty text. ARGV: 3 name.
if gone() then
    return false
end
return redis.call('HGET', records, ARGV[3]) or ''
