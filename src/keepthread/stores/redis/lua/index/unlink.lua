-- Delete keys of one slot; the server frees their memory in the background. KEYS: the keys; ARGV: 1 how
-- many of them are deleted, 2 in how many milliseconds the others end.
for i, key in ipairs(KEYS) do
    if i <= tonumber(ARGV[1]) then
        redis.call('UNLINK', key)
    else
        redis.call('PEXPIRE', key, ARGV[2])
    end
end
return 1
