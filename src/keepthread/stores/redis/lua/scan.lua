-- Return names and records between two bounds, last first. ARGV: 3 first, 4 last, 5 how many.
if gone() then
    return false
end
return between({}, ARGV[3], ARGV[4], ARGV[5])
