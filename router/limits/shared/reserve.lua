-- Reserves what a request needs of all its limits, or nothing.
--
-- KEYS: the reservation's mark, then two per subject.
-- ARGV: the mark's time to live in ms (0: no mark), the life of a holder in us; then 8 per row: a
-- bucket, units needed, units wanted beyond, 1 if units count as used at once, else 0.
-- Returns 1, and per row what counts and how much was given of the want; or 0, the row without room
-- from 0 on, what counts, and us until there is room. What counts is in us until nothing does, or
-- in units.
local rows = read(3, 8)
for i, b in ipairs(rows) do
	b.need = tonumber(ARGV[b.arg + 5])
	local counts = b.used + b.held * b.cost
	local over = counts + b.need * b.cost - b.room
	if b.need > 0 and over > b.room * 1e-12 then
		return {0, i - 1, math.ceil(counts), math.ceil(over)}
	end
	b.given = math.max(0, math.min(tonumber(ARGV[b.arg + 6]), math.floor(-over / b.cost / 2)))
end
if ARGV[1] ~= '0' and not redis.call('SET', KEYS[1], '1', 'NX', 'PX', ARGV[1]) then
	return {0, 0, 0, 0} -- settled before it came: its router has not waited
end
local reply, heard = {1}, {}
for _, b in ipairs(rows) do
	local units = b.need + b.given
	if units > 0 and ARGV[b.arg + 7] == '1' then
		use(b, units)
	elseif units > 0 then
		hold(b, units)
		heard[b.subject.hash] = true
	end
	reply[#reply + 1] = math.ceil(b.used + b.held * b.cost)
	reply[#reply + 1] = b.given
end
write(heard, tonumber(ARGV[2]))
return reply
