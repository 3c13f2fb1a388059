-- Remove a session with all it has. ARGV: 3 whether this repeats an attempt of unknown outcome.
if gone() then
    return ARGV[3] == '1' and 1 or false
end
redis.call('UNLINK', unpack(KEYS))
return 1
