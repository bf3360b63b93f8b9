-- Reserves what a request needs of all its limits, or nothing.
--
-- KEYS: the reservation's mark, then the subjects.
-- ARGV: the mark's time to live in ms (0: no mark), the life of a holder in us; then the buckets,
-- each with units needed, units wanted beyond, and 1 if units count as used at once, else 0.
-- Returns 1, and per bucket what counts and how much was given of the want; or 0, the bucket without
-- room from 0 on, what counts, and us until there is room. What counts is in us until nothing does,
-- or in units.
local ceil, rows = math.ceil, read(3)
for i, b in ipairs(rows) do
	local need, want, once = numbers('<ddd', b.args, 25)
	local counts = b.used + b.held * b.cost
	local over = counts + need * b.cost - b.room
	if need > 0 and over > b.room * 1e-12 then
		write(tonumber(ARGV[2])) -- what counts by another limit now
		return {0, i - 1, ceil(counts), ceil(over)}
	end
	if want > 0 then
		b.given = max(0, math.min(want, math.floor(-over / b.cost / 2)))
	end
	b.need, b.once = need, once
end
if ARGV[1] ~= '0' and not call('SET', KEYS[1], '1', 'NX', 'PX', ARGV[1]) then
	return {0, 0, 0, 0} -- settled before it came: its router has not waited
end
local reply = {1}
for i, b in ipairs(rows) do
	local units = b.need + b.given
	if units > 0 and b.once == 1 then
		use(b, units)
	elseif units > 0 then
		hold(b, units)
		b.subject.heard = true
	end
	reply[2 * i], reply[2 * i + 1] = ceil(b.used + b.held * b.cost), b.given
end
write(tonumber(ARGV[2]))
return reply
