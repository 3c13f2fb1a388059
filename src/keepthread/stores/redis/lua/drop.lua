-- Delete a record. ARGV: 3 name, 4 the version seen, or empty, 5 whether this repeats
-- an attempt of unknown outcome. Returns 1 and whether it existed, or 0 and the present version.
if gone() then
    return false
end
local name = ARGV[3]
local present = redis.call('HGET', records, name)
local version = present and #present >= 8 and struct.unpack('<i8', present) or 0
if not present and ARGV[5] == '1' then
    return { 1, 1 }
end
if ARGV[4] ~= '' and tonumber(ARGV[4]) ~= version then
    return { 0, version }
end
remove(name)
if present then
    announce()
end
return { 1, present and 1 or 0 }
