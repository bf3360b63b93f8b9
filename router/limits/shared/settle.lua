-- Counts what was used in place of what was held.
--
-- KEYS: the marks of reservations that settle; without reservations the key of the holder's serials.
-- Then two per subject.
-- ARGV: how many reservations settle, all with the same buckets; 0 if a holder says what it holds.
-- The life of a holder in us. The serial of the holder's use, which counts once; 0: nothing was used.
-- Then per row a bucket, and for each reservation units that are held
-- no more, and units used; or all units that the holder holds, and units used.
-- Returns for each reservation 1, or 0 if its mark is gone: it has settled before, or its server has
-- lost it.
local n, heard = tonumber(ARGV[1]), {}
local known, some = {}, n == 0
local serial, fresh = tonumber(ARGV[3]), false
if serial > 0 and serial > tonumber(redis.call('GET', KEYS[1]) or '0') then
	redis.call('SET', KEYS[1], ARGV[3], 'PX', 86400000)
	fresh = true
end
for i = 1, n do
	if redis.call('GET', KEYS[i]) == '1' then
		redis.call('DEL', KEYS[i])
		known[i], some = 1, true
	else
		redis.call('SET', KEYS[i], '0', 'PX', 60000) -- a reservation that comes late counts nothing
		known[i] = 0
	end
end
if not some then
	return known
end
for _, b in ipairs(read(4, 5 + 2 * math.max(n, 1))) do
	local held, used = 0, 0
	for i = 1, n do
		held = held + known[i] * ARGV[b.arg + 3 + 2 * i]
		used = used + known[i] * ARGV[b.arg + 4 + 2 * i]
	end
	local more = 0 - math.min(held, b.own)
	if n == 0 then
		held, used = tonumber(ARGV[b.arg + 5]), fresh and tonumber(ARGV[b.arg + 6]) or 0
		more = held - b.own
		if held > 0 then
			heard[b.subject.hash] = true
		end
	end
	if more ~= 0 then
		hold(b, more)
	end
	if used ~= 0 then
		use(b, used)
	end
end
write(heard, tonumber(ARGV[2]))
return known
