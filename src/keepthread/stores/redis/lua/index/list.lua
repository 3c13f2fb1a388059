-- Say of a session whether it is listed, and its activity. KEYS: all sessions, the listed ones by
-- activity, those of its owner, and those that are not listed.
-- ARGV: 1 its key, 2 its number, 3 whether it is listed, 4 its activity, which never goes back.
redis.call('ZADD', KEYS[1], ARGV[2], ARGV[1])
for i = 2, 4 do
    if (ARGV[3] == '1') == (i < 4) then
        redis.call('ZADD', KEYS[i], 'GT', ARGV[4], ARGV[1])
    else
        redis.call('ZREM', KEYS[i], ARGV[1])
    end
end
return 1
