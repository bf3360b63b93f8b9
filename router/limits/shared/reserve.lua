-- Reserves what requests for the same limits need of all of them. Each request gets that, or
-- nothing. The first has the first room.
--
-- KEYS: the marks of the reservations, then the subjects.
-- ARGV: how many requests; the marks' time to live in ms (0: no marks), the life of a holder in us;
-- then the buckets, each with units wanted beyond the need of a single request, 1 if units count as
-- used at once, else 0, and the units that each request needs.
-- Returns for each request 1; or 0, the bucket without room from 0 on, what counts, and us until
-- there is room. Then per bucket what counts at the end, and how much was given of the want. What
-- counts is in us until nothing does, or in units.
local ceil, n, life, reply, rows = math.ceil, tonumber(ARGV[1]), ARGV[2], {}, read(4)
local each = '<' .. string.rep('d', n)
for i = 1, #rows do
	local b = rows[i]
	b.want, b.once = numbers('<dd', b.args, 25)
	b.needs = {numbers(each, b.args, 41)}
end

-- Reserves for the r-th request, or returns why it does not.
local function reserve(r)
	for i = 1, #rows do
		local b = rows[i]
		local need, counts = b.needs[r], b.used + b.held * b.unit
		local over = counts + need * b.unit - b.room
		if need > 0 and over > b.room * 1e-12 then
			return i - 1, ceil(counts), ceil(over)
		end
		if b.want > 0 then
			b.given = max(0, math.min(b.want, math.floor(-over / b.unit / 2)))
		end
	end
	if life ~= '0' and not call('SET', KEYS[r], '1', 'NX', 'PX', life) then
		return 0, 0, 0 -- settled before it came: its router has not waited
	end
	for i = 1, #rows do
		local b = rows[i]
		local units = b.needs[r] + b.given
		if units > 0 and b.once == 1 then
			use(b, units)
		elseif units > 0 then
			hold(b, units)
			b.subject.heard = true
		end
	end
end

for r = 1, n do
	local at, counts, over = reserve(r)
	local to = #reply
	if at then
		reply[to + 1], reply[to + 2], reply[to + 3], reply[to + 4] = 0, at, counts, over
	else
		reply[to + 1] = 1
	end
end
for i = 1, #rows do
	local b, to = rows[i], #reply
	reply[to + 1], reply[to + 2] = ceil(b.used + b.held * b.unit), b.given
end
write(tonumber(ARGV[3]))
return reply
