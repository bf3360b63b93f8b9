-- What all scripts begin with.
--
-- A subject has a hash and a sorted set, named by two keys in a row. The hash has for each bucket f:
-- f (what was used: us until nothing counts, or units of a month), f@ (when that was: us, or the
-- month), f# (units held) and f#h (units held by holder h). The set has the holders, by the time
-- when they expire. What is held does not come back with time. What an expired holder holds does
-- not count.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local subjects = {} -- by their hash: what has been read of them, and what is to be written

-- The month of now, in UTC.
local function month()
	local z = math.floor(now / 86400000000) + 719468
	local e = z % 146097
	local y = math.floor((e - math.floor(e / 1460) + math.floor(e / 36524) - math.floor(e / 146096)) / 365)
	local d = e - (365 * y + math.floor(y / 4) - math.floor(y / 100))
	return (math.floor(z / 146097) * 400 + y) * 12 + math.floor((5 * d + 2) / 153) + 2
end

local function forget(hash, set)
	for _, holder in ipairs(redis.call('ZRANGEBYSCORE', set, '-inf', now)) do
		for _, name in ipairs(redis.call('HKEYS', hash)) do
			local field, by = string.match(name, '^(.*#)(.+)$')
			if by == holder then
				redis.call('HINCRBY', hash, field, 0 - redis.call('HGET', hash, name))
				redis.call('HDEL', hash, name)
			end
		end
		redis.call('ZREM', set, holder)
	end
end

-- Reads the buckets of a call, each with the place of its hash's key, f, limit, window in us (0: no
-- time; what is used counts 0. -1: a month) and holder, from ARGV[from] on, width for each.
local function read(from, width)
	local rows = {}
	for a = from, #ARGV, width do
		local place, f, holder = tonumber(ARGV[a]), ARGV[a + 1], ARGV[a + 4]
		local b = {
			arg = a, field = f, limit = tonumber(ARGV[a + 2]), window = tonumber(ARGV[a + 3]), used = 0, stamp = now
		}
		local s = subjects[KEYS[place]]
		if not s then
			s = {hash = KEYS[place], set = KEYS[place + 1], holder = holder, rows = {}, fields = {}, puts = {}, ms = 0}
			subjects[s.hash] = s
		end
		b.subject = s
		s.rows[#s.rows + 1], rows[#rows + 1] = b, b
		local n = #s.fields
		s.fields[n + 1], s.fields[n + 2], s.fields[n + 3], s.fields[n + 4] = f, f .. '@', f .. '#', f .. '#' .. holder
	end
	for hash, s in pairs(subjects) do
		forget(hash, s.set)
		local was = redis.call('HMGET', hash, unpack(s.fields))
		for i, b in ipairs(s.rows) do
			local used, at = tonumber(was[4 * i - 3] or '0'), tonumber(was[4 * i - 2] or '0')
			b.held, b.own = tonumber(was[4 * i - 1] or '0'), tonumber(was[4 * i] or '0')
			b.room, b.cost = b.limit, 1
			if b.window > 0 then
				b.room, b.cost = b.window, b.window / b.limit
				b.used = math.max(0, used - math.max(0, now - at))
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

local function put(s, field, value)
	local n = #s.puts
	s.puts[n + 1], s.puts[n + 2] = field, value
end

-- Counts units as used.
local function use(b, units)
	local debt = 864000000000 -- us: what was used delays later requests by 10 days at most
	b.used = math.max(0, b.used + units * b.cost)
	if b.window > 0 then
		b.used = math.min(b.used, b.window + debt)
	end
	put(b.subject, b.field, b.used)
	put(b.subject, b.field .. '@', b.stamp)
end

-- Holds units more, or less.
local function hold(b, units)
	b.held, b.own = b.held + units, b.own + units
	put(b.subject, b.field .. '#', b.held)
	put(b.subject, b.field .. '#' .. b.subject.holder, b.own)
end

-- Writes what has changed. heard says which subjects' holders are known until life has passed. A
-- subject lives until it counts nothing more, and then a while. Its set lives longer than its hash,
-- so that what holders hold is never left without them.
local function write(heard, life)
	for hash, s in pairs(subjects) do
		local ms = 2 * life / 1000
		for _, b in ipairs(s.rows) do
			if b.window > 0 then
				ms = math.max(ms, 2 * life / 1000 + (b.used + math.max(b.held, 0) * b.cost) / 1000)
			elseif b.window < 0 then
				ms = math.max(ms, 32 * 86400000)
			end
		end
		if #s.puts > 0 then
			redis.call('HSET', hash, unpack(s.puts))
		end
		local is = redis.call('PTTL', hash)
		if is ~= -2 and is < ms then
			is = math.ceil(ms * 1.25) -- so that the next call need not
			redis.call('PEXPIRE', hash, is)
			redis.call('PEXPIRE', s.set, is + 1000)
		end
		if heard[hash] and redis.call('ZADD', s.set, now + life, s.holder) == 1 then
			redis.call('PEXPIRE', s.set, math.max(is, 2 * life / 1000) + 1000)
		end
	end
end
