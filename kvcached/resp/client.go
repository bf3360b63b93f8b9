package resp

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
)

const errClientName = "ERR Client names cannot contain spaces, newlines or special characters."

// maxClientText is the longest name, library name or version that a client may give itself.
const maxClientText = 256

// isName tells whether a client may give itself this name.
func isName(name []byte) bool {
	for _, b := range name {
		if b < '!' || b > '~' {
			return false
		}
	}
	return len(name) <= maxClientText
}

// subcommand is a row in a command's table of subcommands.
type subcommand struct {
	name  string
	arity int // number of arguments, with both names; negative: the least number
	run   func(*conn)
}

// dispatch runs the subcommand in argument 1.
func (c *conn) dispatch(table []subcommand) {
	for _, s := range table {
		if !c.word(1, s.name) {
			continue
		}
		if s.arity >= 0 && len(c.args) != s.arity || len(c.args) < -s.arity {
			c.fail("ERR wrong number of arguments for '" + c.command.name + "|" + s.name + "' command")
			return
		}
		s.run(c)
		return
	}
	if c.word(1, "help") && len(c.args) == 2 {
		c.help(table)
		return
	}
	c.fail(fmt.Sprintf("ERR unknown subcommand '%.128s'. Try %s HELP.", c.args[1], strings.ToUpper(c.command.name)))
}

// help lists the subcommands in redis' form.
func (c *conn) help(table []subcommand) {
	c.array(len(table) + 3)
	c.simple(strings.ToUpper(c.command.name) + " <subcommand> [<arg> [value] [opt] ...]. Subcommands are:")
	for _, s := range table {
		c.simple(strings.ToUpper(s.name))
	}
	c.simple("HELP")
	c.simple("    Print this help.")
}

var clientTable = []subcommand{
	{"getname", 2, (*conn).clientGetName},
	{"id", 2, func(c *conn) { c.integer(int64(c.id)) }},
	{"setinfo", 4, (*conn).clientSetInfo},
	{"setname", 3, (*conn).clientSetName},
}

func (c *conn) client() { c.dispatch(clientTable) }

func (c *conn) clientGetName() {
	if c.name == "" {
		c.null()
		return
	}
	c.bulk(c.name)
}

func (c *conn) clientSetName() {
	name := c.args[2]
	if !isName(name) {
		c.fail(errClientName)
		return
	}
	c.name = string(name)
	c.ok()
}

// clientSetInfo checks the names and keeps nothing. Clients since redis 7.2 log a refusal.
func (c *conn) clientSetInfo() {
	text := c.args[3]
	lib, version := c.word(2, "lib-name"), c.word(2, "lib-ver")
	switch {
	case !lib && !version:
		c.fail("ERR Unrecognized option '" + string(c.args[2][:min(len(c.args[2]), maxName)]) + "'")
	case !isName(text):
		c.fail("ERR " + strings.ToLower(string(c.args[2])) + " cannot contain spaces, newlines or special characters.")
	default:
		c.ok()
	}
}

var configTable = []subcommand{
	{"get", -3, (*conn).configGet},
}

func (c *conn) config() { c.dispatch(configTable) }

// settings are the answers of CONFIG GET. Clients and redis-benchmark ask for them.
func (c *conn) settings() [][2]string {
	o := &c.server.o
	_, limit := o.Memory()
	value := int64(MaxValue)
	if limit > 0 {
		value = min(value, limit)
	}
	return [][2]string{
		{"appendonly", "no"},
		{"databases", fmt.Sprint(Databases)},
		{"maxclients", fmt.Sprint(o.maxClients)},
		{"maxmemory", fmt.Sprint(limit)},
		{"maxmemory-policy", "allkeys-lru"},
		{"proto-max-bulk-len", fmt.Sprint(value)},
		{"save", ""},
		{"timeout", "0"},
	}
}

func (c *conn) configGet() {
	var found [][2]string
	for _, s := range c.settings() {
		if slices.ContainsFunc(c.args[2:], func(p []byte) bool { return matchGlob(bytes.ToLower(p), []byte(s[0])) }) {
			found = append(found, s)
		}
	}
	c.mapping(len(found))
	for _, s := range found {
		c.bulk(s[0])
		c.bulk(s[1])
	}
}
