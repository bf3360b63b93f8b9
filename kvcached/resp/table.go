package resp

// flags of a command, as COMMAND INFO names them.
type flags uint8

const (
	write  flags = 1 << iota // refused to read-only users
	read                     // of keys
	noAuth                   // allowed before AUTH
	fast
	immediate // run at once between MULTI and EXEC
)

// valueAt says which arguments of a command are values, that may be long.
type valueAt int8

const (
	noValue   valueAt = 0
	everyTwo  valueAt = -1 // key value key value …
	valueIs2  valueAt = 2
	valueIs3  valueAt = 3
	firstArgs         = 1
)

// command is a row of the table.
type command struct {
	name  string
	run   func(*conn)
	arity int // with the name; negative: at least so many
	flags flags
	value valueAt
	// keys, as COMMAND INFO tells them: the first, the last (-1: the last argument), and the step.
	first, last, step int
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

// keyOf is the argument that has the key of the value in argument i.
func (c *command) keyOf(i int) int {
	if c.value == everyTwo {
		return i - 1
	}
	return firstArgs
}

// commands are what the server knows, by lower-case name.
var commands map[string]command

func init() { // not a literal: COMMAND reads it
	commands = make(map[string]command, len(table()))
	for _, c := range table() {
		commands[c.name] = c
	}
}

func table() []command {
	return []command{
		{"auth", (*conn).auth, -2, noAuth | fast, noValue, 0, 0, 0},
		{"client", (*conn).client, -2, 0, noValue, 0, 0, 0},
		{"command", (*conn).commandInfo, -1, 0, noValue, 0, 0, 0},
		{"config", (*conn).config, -2, 0, noValue, 0, 0, 0},
		{"discard", (*conn).discard, 1, fast | immediate, noValue, 0, 0, 0},
		{"dbsize", (*conn).dbsize, 1, read | fast, noValue, 0, 0, 0},
		{"del", (*conn).del, -2, write, noValue, 1, -1, 1},
		{"echo", (*conn).echo, 2, fast, noValue, 0, 0, 0},
		{"exec", (*conn).exec, 1, immediate, noValue, 0, 0, 0},
		{"exists", (*conn).exists, -2, read | fast, noValue, 1, -1, 1},
		{"expire", (*conn).expire, -3, write | fast, noValue, 1, 1, 1},
		{"expireat", (*conn).expireat, -3, write | fast, noValue, 1, 1, 1},
		{"expiretime", (*conn).expiretime, 2, read | fast, noValue, 1, 1, 1},
		{"flushall", (*conn).flushall, -1, write, noValue, 0, 0, 0},
		{"flushdb", (*conn).flushdb, -1, write, noValue, 0, 0, 0},
		{"get", (*conn).get, 2, read | fast, noValue, 1, 1, 1},
		{"getdel", (*conn).getdel, 2, write | fast, noValue, 1, 1, 1},
		{"getex", (*conn).getex, -2, write | fast, noValue, 1, 1, 1},
		{"getrange", (*conn).getrange, 4, read, noValue, 1, 1, 1},
		{"getset", (*conn).getset, 3, write | fast, valueIs2, 1, 1, 1},
		{"hello", (*conn).hello, -1, noAuth | fast, noValue, 0, 0, 0},
		{"info", (*conn).info, -1, 0, noValue, 0, 0, 0},
		{"keys", (*conn).listKeys, 2, read, noValue, 0, 0, 0},
		{"mget", (*conn).mget, -2, read | fast, noValue, 1, -1, 1},
		{"mset", (*conn).mset, -3, write, everyTwo, 1, -1, 2},
		{"msetnx", (*conn).msetnx, -3, write, everyTwo, 1, -1, 2},
		{"multi", (*conn).multi, 1, fast | immediate, noValue, 0, 0, 0},
		{"persist", (*conn).persist, 2, write | fast, noValue, 1, 1, 1},
		{"pexpire", (*conn).pexpire, -3, write | fast, noValue, 1, 1, 1},
		{"pexpireat", (*conn).pexpireat, -3, write | fast, noValue, 1, 1, 1},
		{"pexpiretime", (*conn).pexpiretime, 2, read | fast, noValue, 1, 1, 1},
		{"ping", (*conn).ping, -1, fast, noValue, 0, 0, 0},
		{"psetex", (*conn).psetex, 4, write, valueIs3, 1, 1, 1},
		{"pttl", (*conn).pttl, 2, read | fast, noValue, 1, 1, 1},
		{"quit", (*conn).quit, -1, noAuth | fast | immediate, noValue, 0, 0, 0},
		{"reset", (*conn).resetCommand, 1, noAuth | fast | immediate, noValue, 0, 0, 0},
		{"scan", (*conn).scan, -2, read, noValue, 0, 0, 0},
		{"select", (*conn).selectCommand, 2, fast, noValue, 0, 0, 0},
		{"set", (*conn).setCommand, -3, write, valueIs2, 1, 1, 1},
		{"setex", (*conn).setex, 4, write, valueIs3, 1, 1, 1},
		{"setnx", (*conn).setnx, 3, write | fast, valueIs2, 1, 1, 1},
		{"strlen", (*conn).strlen, 2, read | fast, noValue, 1, 1, 1},
		{"time", (*conn).time, 1, fast, noValue, 0, 0, 0},
		{"touch", (*conn).touch, -2, read | fast, noValue, 1, -1, 1},
		{"ttl", (*conn).ttl, 2, read | fast, noValue, 1, 1, 1},
		{"type", (*conn).typeOf, 2, read | fast, noValue, 1, 1, 1},
		{"unlink", (*conn).del, -2, write | fast, noValue, 1, -1, 1},
	}
}
