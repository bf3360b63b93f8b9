-- Renews a holder of a subject, or a router among the routers.
--
-- KEYS: the subject's hash and set; or the set of routers alone.
-- ARGV: the life of the holder in us, the holder.
-- Returns how many holders there are.
local life, set = tonumber(ARGV[1]), KEYS[2]
if set then
	forget(KEYS[1], set)
	subjects[KEYS[1]] = {set = set, holder = ARGV[2], rows = {}, puts = {}}
	write({[KEYS[1]] = true}, life)
else
	set = KEYS[1]
	redis.call('ZREMRANGEBYSCORE', set, '-inf', now)
	redis.call('ZADD', set, now + life, ARGV[2])
	redis.call('PEXPIRE', set, math.ceil(life / 1000))
end
return {redis.call('ZCARD', set)}
