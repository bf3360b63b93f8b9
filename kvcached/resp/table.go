package resp

// flags of a command.
type flags uint8

const (
	write     flags = 1 << iota // refused to read-only users
	noAuth                      // allowed before AUTH
	immediate                   // run at once between MULTI and EXEC
)

// valueAt tells which arguments of a command are values. Values may be long.
type valueAt int8

const (
	noValue  valueAt = 0
	everyTwo valueAt = -1 // keys and values alternate
	valueIs2 valueAt = 2
	valueIs3 valueAt = 3
)

// command is a row of the table.
type command struct {
	name  string
	run   func(*conn)
	arity int // number of arguments, with the name; negative: the least number
	flags flags
	value valueAt
}

// isValue tells whether argument i of n is a value.
func (c *command) isValue(i, n int) bool {
	switch c.value {
	case noValue:
		return false
	case everyTwo:
		return i%2 == 0 && n%2 == 1
	}
	return i == int(c.value)
}

// keyOf returns the argument with the key of the value in argument i.
func (c *command) keyOf(i int) int {
	if c.value == everyTwo {
		return i - 1
	}
	return 1
}

// commands has the server's commands by their lower-case names.
var commands = byName(table())

func byName(all []command) map[string]command {
	m := make(map[string]command, len(all))
	for _, c := range all {
		m[c.name] = c
	}
	return m
}

func table() []command {
	return []command{
		{"auth", (*conn).auth, -2, noAuth, noValue},
		{"client", (*conn).client, -2, 0, noValue},
		{"config", (*conn).config, -2, 0, noValue},
		{"discard", (*conn).discard, 1, immediate, noValue},
		{"dbsize", (*conn).dbsize, 1, 0, noValue},
		{"del", (*conn).del, -2, write, noValue},
		{"echo", (*conn).echo, 2, 0, noValue},
		{"exec", (*conn).exec, 1, immediate, noValue},
		{"exists", (*conn).exists, -2, 0, noValue},
		{"expire", (*conn).expire, -3, write, noValue},
		{"expireat", (*conn).expireat, -3, write, noValue},
		{"expiretime", (*conn).expiretime, 2, 0, noValue},
		{"flushall", (*conn).flushall, -1, write, noValue},
		{"flushdb", (*conn).flushdb, -1, write, noValue},
		{"get", (*conn).get, 2, 0, noValue},
		{"hello", (*conn).hello, -1, noAuth, noValue},
		{"info", (*conn).info, -1, 0, noValue},
		{"keys", (*conn).listKeys, 2, 0, noValue},
		{"mget", (*conn).mget, -2, 0, noValue},
		{"mset", (*conn).mset, -3, write, everyTwo},
		{"multi", (*conn).multi, 1, immediate, noValue},
		{"persist", (*conn).persist, 2, write, noValue},
		{"pexpire", (*conn).pexpire, -3, write, noValue},
		{"pexpireat", (*conn).pexpireat, -3, write, noValue},
		{"pexpiretime", (*conn).pexpiretime, 2, 0, noValue},
		{"ping", (*conn).ping, -1, 0, noValue},
		{"psetex", (*conn).psetex, 4, write, valueIs3},
		{"pttl", (*conn).pttl, 2, 0, noValue},
		{"quit", (*conn).quit, -1, noAuth | immediate, noValue},
		{"scan", (*conn).scan, -2, 0, noValue},
		{"select", (*conn).selectCommand, 2, 0, noValue},
		{"set", (*conn).setCommand, -3, write, valueIs2},
		{"setex", (*conn).setex, 4, write, valueIs3},
		{"setnx", (*conn).setnx, 3, write, valueIs2},
		{"strlen", (*conn).strlen, 2, 0, noValue},
		{"ttl", (*conn).ttl, 2, 0, noValue},
		{"type", (*conn).typeOf, 2, 0, noValue},
		{"unlink", (*conn).del, -2, write, noValue},
	}
}
