-- What all scripts begin with.
--
-- A subject is a hash of packed numbers. It has for each bucket f: f (what was used: us until
-- nothing counts, or units of a month; when that was: us, or the month; units held; the limit by
-- which us count) and f#h (units held by holder h). It has for each holder h: #h (us when h
-- expires). # is us before which no holder expires, and us when the hash expires. What is held does
-- not come back with time. What an expired holder holds does not count.
local call, pack, numbers, max = redis.call, struct.pack, struct.unpack, math.max
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local subjects = {} -- by their hash: what has been read of them

-- The month of now, in UTC.
local function month()
	local floor = math.floor
	local z = floor(now / 86400000000) + 719468
	local e = z % 146097
	local y = floor((e - floor(e / 1460) + floor(e / 36524) - floor(e / 146096)) / 365)
	local d = e - (365 * y + floor(y / 4) - floor(y / 100))
	return (floor(z / 146097) * 400 + y) * 12 + floor((5 * d + 2) / 153) + 2
end

-- Drops holders that have expired, and what they hold.
local function forget(hash)
	local all, is, gone, first = call('HGETALL', hash), {}, {}, math.huge
	for i = 1, #all, 2 do
		local name, value = all[i], all[i + 1]
		is[name] = value
		if string.find(name, '^#.') then
			local at = numbers('<d', value)
			if at <= now then
				gone[name] = true
				call('HDEL', hash, name)
			else
				first = math.min(first, at)
			end
		end
	end
	for name, value in pairs(is) do
		local f, holder = string.match(name, '^([^#]+)(#.+)$')
		if gone[holder] then
			local used, stamp, held, limit = numbers('<dddd', is[f])
			is[f] = pack('<dddd', used, stamp, held - numbers('<d', value), limit)
			call('HSET', hash, f, is[f])
			call('HDEL', hash, name)
		end
	end
	local _, ends = numbers('<dd', is['#'])
	call('HSET', hash, '#', pack('<dd', first, ends))
end

-- Reads fields of a subject, after # and what is known of its holder.
local function get(s)
	local was = call('HMGET', s.hash, unpack(s.fields))
	if was[1] then
		s.first, s.ends = numbers('<dd', was[1])
		if s.first <= now then
			forget(s.hash)
			return get(s)
		end
	end
	s.expires = was[2] and numbers('<d', was[2]) or 0
	return was
end

local function subject(hash, holder)
	local mine = '#' .. holder
	local s = {hash = hash, mine = mine, fields = {'#', mine}, rows = {}, first = math.huge, ends = 0, expires = 0}
	subjects[hash] = s
	return s
end

local debt = 864000000000 -- us: what was used delays later requests by 10 days at most

-- Reads the buckets of a call. Each is three values from ARGV[from] on: f, the holder, and numbers,
-- of which the first three are the place of its hash's key, the limit, and the window in us (0: no
-- time; what is used counts 0. -1: a month).
local function read(from)
	local rows = {}
	for a = from, #ARGV, 3 do
		local f, args = ARGV[a], ARGV[a + 2]
		local place, limit, window = numbers('<ddd', args)
		local hash = KEYS[place]
		local s = subjects[hash] or subject(hash, ARGV[a + 1])
		local b = {field = f, args = args, subject = s, window = window, limit = limit, room = limit, unit = 1,
			used = 0, stamp = now, held = 0, own = 0, changed = false, given = 0}
		rows[#rows + 1], s.rows[#s.rows + 1] = b, b
		local n = #s.fields
		s.fields[n + 1], s.fields[n + 2] = f, f .. s.mine
	end
	for _, s in pairs(subjects) do
		local was = get(s)
		for i, b in ipairs(s.rows) do
			local is, own, used, at = was[2 * i + 1], was[2 * i + 2], 0, 0
			if is then
				used, at, b.held = numbers('<ddd', is)
			end
			if own then
				b.own = numbers('<d', own)
			end
			if b.window > 0 then
				b.room, b.unit = b.window, b.window / b.limit
				b.used = max(0, used - max(0, now - at))
				if is and numbers('<d', is, 25) ~= b.limit then -- the units used stay used, for a window at most
					b.used = math.min(b.used * numbers('<d', is, 25) / b.limit, max(b.window, b.used))
					b.changed = true
				end
			elseif b.window < 0 then
				b.stamp = month()
				if at == b.stamp or at == b.stamp + 1 then -- a clock that goes back begins no month anew
					b.stamp, b.used = at, used
				end
			end
		end
	end
	return rows
end

-- Counts units as used.
local function use(b, units)
	b.used, b.changed = max(0, b.used + units * b.unit), true
	if b.window > 0 then
		b.used = math.min(b.used, b.window + debt)
	end
end

-- Holds units more, or less.
local function hold(b, units)
	b.held, b.own, b.changed, b.holds = b.held + units, b.own + units, true, true
end

-- Writes what has changed. Holders that are heard of are kept for two thirds of life at least. A
-- subject lives until it counts nothing more, and then two lives of a holder.
local function write(life)
	for _, s in pairs(subjects) do
		local puts, n, lasts, meta = {'HSET', s.hash}, 2, 2 * life, false
		for _, b in ipairs(s.rows) do
			if b.changed then
				puts[n + 1], puts[n + 2] = b.field, pack('<dddd', b.used, b.stamp, b.held, b.limit)
				n = n + 2
			end
			if b.holds then
				puts[n + 1], puts[n + 2] = b.field .. s.mine, pack('<d', b.own)
				n = n + 2
			end
			if b.window > 0 then
				lasts = max(lasts, 2 * life + b.used + max(b.held, 0) * b.unit)
			elseif b.window < 0 then
				lasts = max(lasts, 32 * 86400000000)
			end
		end
		if s.heard and (s.expires < now + life * 2 / 3 or s.expires > now + life) then
			puts[n + 1], puts[n + 2] = s.mine, pack('<d', now + life)
			n, meta, s.first = n + 2, now + life < s.first, math.min(s.first, now + life)
		end
		local late = n > 2 and s.ends < now + lasts
		if late then
			s.ends = now + lasts * 1.25 -- so that the next call need not
		end
		if late or meta then
			puts[n + 1], puts[n + 2] = '#', pack('<dd', s.first, s.ends)
		end
		if n > 2 then
			call(unpack(puts))
		end
		if late then
			call('PEXPIRE', s.hash, math.ceil(lasts / 800))
		end
	end
end
