-- Renews a holder of a subject, or a router among the routers.
--
-- KEYS: the subject; or the set of routers.
-- ARGV: the life in us, the holder; or the life in us, the router, 1.
-- Returns how many routers there are; 0 for a subject.
local life, key = tonumber(ARGV[1]), KEYS[1]
if ARGV[3] then
	call('ZREMRANGEBYSCORE', key, '-inf', now)
	call('ZADD', key, now + life, ARGV[2])
	call('PEXPIRE', key, math.ceil(life / 1000))
	return {call('ZCARD', key)}
end
local s = subject(key, ARGV[2])
get(s)
s.heard = true
write(life)
return {0}
