-- Counts what was used in place of what was held.
--
-- KEYS: the marks of reservations that settle; without reservations the key of the holder's serials.
-- Then the subjects.
-- ARGV: how many reservations settle, all with the same buckets; 0 if a holder says what it holds.
-- The life of a holder in us. The serial of the holder's use, which counts once; 0: nothing was used.
-- Then the buckets, each with units that are held no more, and units used, of all reservations
-- together and of each; or all units that the holder holds, and units used.
-- Returns for each reservation 1, or 0 if its mark is gone: it has settled before, or its server has
-- lost it.
local n, serial = tonumber(ARGV[1]), tonumber(ARGV[3])
local known, here, fresh = {}, {}, false
if serial > 0 and serial > tonumber(call('GET', KEYS[1]) or '0') then
	call('SET', KEYS[1], ARGV[3], 'PX', 86400000)
	fresh = true
end
if n > 0 then
	for i, mark in ipairs(call('MGET', unpack(KEYS, 1, n))) do
		local key = KEYS[i]
		known[i] = 0
		if mark == '1' and not here[key] then
			known[i], here[key], here[#here + 1] = 1, true, key
		end
	end
	if #here > 0 then
		call('DEL', unpack(here))
	end
	for i = 1, n do
		if known[i] == 0 then
			call('SET', KEYS[i], '0', 'PX', 60000) -- a reservation that comes late counts nothing
		end
	end
	if #here == 0 then
		return known
	end
end
for _, b in ipairs(read(4)) do
	local held, used = numbers('<dd', b.args, 25)
	for i = 1, n do
		if known[i] == 0 then
			local back, units = numbers('<dd', b.args, 25 + 16 * i)
			held, used = held - back, used - units
		end
	end
	local more = 0 - math.min(held, b.own)
	if n == 0 then
		more, b.subject.heard = held - b.own, b.subject.heard or held > 0
		used = fresh and used or 0
	end
	if more ~= 0 then
		hold(b, more)
	end
	if used ~= 0 then
		use(b, used)
	end
end
write(tonumber(ARGV[2]))
return known
