package resp

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"
)

const errClientName = "ERR Client names cannot contain spaces, newlines or special characters."

// maxClientText is the longest name, library name or version that a client may give itself.
const maxClientText = 256

// isName tells whether a client may be called so.
func isName(name []byte) bool {
	for _, b := range name {
		if b < '!' || b > '~' {
			return false
		}
	}
	return len(name) <= maxClientText
}

// subcommand is a row of the table of a command that has some.
type subcommand struct {
	name  string
	arity int // with both names; negative: at least so many
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

// help lists the subcommands, in lines as redis has them.
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
	{"info", 2, func(c *conn) { c.verbatim(c.describe()) }},
	{"list", -2, (*conn).clientList},
	{"no-evict", 3, (*conn).clientNoEvict},
	{"setinfo", 4, (*conn).clientSetInfo},
	{"setname", 3, (*conn).clientSetName},
}

func (c *conn) client() { c.dispatch(clientTable) }

func (c *conn) clientGetName() {
	if c.seen.name == "" {
		c.null()
		return
	}
	c.bulk(c.seen.name)
}

func (c *conn) clientSetName() {
	name := c.args[2]
	if !isName(name) {
		c.fail(errClientName)
		return
	}
	c.update(func(i *clientInfo) { i.name = string(name) })
	c.ok()
}

// clientSetInfo is of redis 7.2: newer clients send it and log when it is refused.
func (c *conn) clientSetInfo() {
	text := c.args[3]
	lib, version := c.word(2, "lib-name"), c.word(2, "lib-ver")
	switch {
	case !lib && !version:
		c.fail("ERR Unrecognized option '" + string(c.args[2][:min(len(c.args[2]), maxName)]) + "'")
	case !isName(text):
		c.fail("ERR " + strings.ToLower(string(c.args[2])) + " cannot contain spaces, newlines or special characters.")
	default:
		c.update(func(i *clientInfo) {
			if lib {
				i.lib = string(text)
			} else {
				i.libVersion = string(text)
			}
		})
		c.ok()
	}
}

// clientNoEvict changes nothing: connections are not evicted.
func (c *conn) clientNoEvict() {
	if !c.word(2, "on") && !c.word(2, "off") {
		c.fail(errSyntax)
		return
	}
	c.ok()
}

// maxClientList is how many connections CLIENT LIST tells of.
const maxClientList = 16_384

func (c *conn) clientList() {
	if len(c.args) > 2 {
		if len(c.args) != 4 || !c.word(2, "type") || !c.word(3, "normal") {
			c.fail(errSyntax)
			return
		}
	}
	s := c.server
	s.mu.Lock()
	all := make([]*conn, 0, len(s.conns))
	for other := range s.conns {
		if c.user == nil || other == c || c.sameTenant(other) {
			all = append(all, other)
		}
	}
	s.mu.Unlock()
	slices.SortFunc(all, func(a, b *conn) int { return int(int64(a.id) - int64(b.id)) })
	var text strings.Builder
	for _, other := range all[:min(len(all), maxClientList)] {
		text.WriteString(other.describe())
	}
	c.verbatim(text.String())
}

// sameTenant tells whether another connection is of the same tenant's users. It holds Server.mu.
func (c *conn) sameTenant(other *conn) bool {
	other.mu.Lock()
	defer other.mu.Unlock()
	a := c.server.accounts[other.seen.user]
	return a != nil && a.Tenant == c.user.Tenant
}

// describe is the connection's line of CLIENT LIST. Others may call it.
func (c *conn) describe() string {
	c.mu.Lock()
	i := c.seen
	c.mu.Unlock()
	return fmt.Sprintf("id=%d addr=%s laddr=%s name=%s age=%d flags=N db=%d user=%s resp=%d lib-name=%s lib-ver=%s\n",
		c.id, c.stream.conn.RemoteAddr(), c.stream.conn.LocalAddr(), i.name, int(time.Since(c.began).Seconds()),
		i.db, i.user, i.proto, i.lib, i.libVersion)
}

var configTable = []subcommand{
	{"get", -3, (*conn).configGet},
	{"set", -4, (*conn).configSet},
}

func (c *conn) config() { c.dispatch(configTable) }

// settings are what CONFIG GET tells: what clients and redis-benchmark ask for.
func (c *conn) settings() [][2]string {
	o := &c.server.options
	_, limit := o.Memory()
	value := int64(MaxValue)
	if limit > 0 {
		value = min(value, limit)
	}
	return [][2]string{
		{"appendonly", "no"},
		{"databases", fmt.Sprint(Databases)},
		{"maxclients", fmt.Sprint(o.MaxClients)},
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

// configSet is refused: the daemon's configuration is a file.
func (c *conn) configSet() {
	name := c.args[2][:min(len(c.args[2]), maxName)]
	if slices.ContainsFunc(c.settings(), func(s [2]string) bool { return bytes.EqualFold([]byte(s[0]), name) }) {
		c.fail("ERR CONFIG SET failed (possibly related to argument '" + string(name) + "') - can't set " +
			"immutable config")
		return
	}
	c.fail("ERR Unknown option or number of arguments for CONFIG SET - '" + string(name) + "'")
}
