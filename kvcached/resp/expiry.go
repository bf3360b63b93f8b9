package resp

import (
	"math"
	"time"

	"bytes"
)

const (
	errNotInteger = "ERR value is not an integer or out of range"
	errSyntax     = "ERR syntax error"
)

// word tells whether argument i is the option called name, in either case.
func (c *conn) word(i int, name string) bool { return bytes.EqualFold(c.args[i], []byte(name)) }

func nowMS() int64 { return time.Now().UnixMilli() }

// moment turns seconds or milliseconds, from now or absolute, into Unix ms. ok is false if n is too
// large.
func moment(n int64, milliseconds, absolute bool) (at int64, ok bool) {
	if !milliseconds {
		if n > math.MaxInt64/1000 || n < math.MinInt64/1000 {
			return 0, false
		}
		n *= 1000
	}
	if absolute {
		return n, true
	}
	now := nowMS()
	if n > math.MaxInt64-now {
		return 0, false
	}
	return n + now, true
}

// expiry reads the expiry of a value that is being stored. If ok is false, it has replied an error.
func (c *conn) expiry(arg []byte, milliseconds, absolute bool) (at int64, ok bool) {
	n, ok := parseInteger(arg)
	if !ok {
		c.fail(errNotInteger)
		return 0, false
	}
	if n > 0 {
		at, ok = moment(n, milliseconds, absolute)
	}
	if n <= 0 || !ok {
		c.fail("ERR invalid expire time in '" + c.command.name + "' command")
		return 0, false
	}
	return at, true
}

// setOptions are the options of SET.
type setOptions struct {
	nx      bool
	expires int64 // Unix ms; 0: never
}

// setOptions reads the options of SET. If ok is false, it has replied an error.
func (c *conn) setOptions() (o setOptions, ok bool) {
	timeArg, milliseconds, absolute := 0, false, false
	for i := 3; i < len(c.args); i++ {
		timed := timeArg == 0 && i+1 < len(c.args)
		switch {
		case c.word(i, "nx"):
			o.nx = true
			continue
		case c.word(i, "ex") && timed:
		case c.word(i, "px") && timed:
			milliseconds = true
		case c.word(i, "exat") && timed:
			absolute = true
		case c.word(i, "pxat") && timed:
			milliseconds, absolute = true, true
		default:
			c.fail(errSyntax)
			return o, false
		}
		i++
		timeArg = i
	}
	if timeArg == 0 {
		return o, true
	}
	o.expires, ok = c.expiry(c.args[timeArg], milliseconds, absolute)
	return o, ok
}

func (c *conn) expire()    { c.expireAt(false, false) }
func (c *conn) pexpire()   { c.expireAt(true, false) }
func (c *conn) expireat()  { c.expireAt(false, true) }
func (c *conn) pexpireat() { c.expireAt(true, true) }

func (c *conn) expireAt(milliseconds, absolute bool) {
	if len(c.args) > 3 {
		c.fail("ERR Unsupported option " + string(c.args[3][:min(len(c.args[3]), maxName)]))
		return
	}
	n, ok := parseInteger(c.args[2])
	if !ok {
		c.fail(errNotInteger)
		return
	}
	at, ok := moment(n, milliseconds, absolute)
	if !ok {
		c.fail("ERR invalid expire time in '" + c.command.name + "' command")
		return
	}
	k, ok := c.key(1)
	if !ok {
		return
	}
	_, found, ok := c.stat(k)
	if !ok {
		return
	}
	if !found {
		c.integer(0)
		return
	}
	var err error
	if at <= nowMS() {
		found, err = c.server.o.Store.Delete(c.server.ctx, k.addr)
	} else {
		found, err = c.server.o.Store.SetExpiry(c.server.ctx, k.addr, at)
	}
	if err != nil {
		c.fail(c.storeError(err))
		return
	}
	c.boolean(found)
}

func (c *conn) persist() {
	k, ok := c.key(1)
	if !ok {
		return
	}
	info, _, ok := c.stat(k)
	if !ok {
		return
	}
	if info.Item.Expires == 0 {
		c.integer(0)
		return
	}
	found, err := c.server.o.Store.SetExpiry(c.server.ctx, k.addr, 0)
	if err != nil {
		c.fail(c.storeError(err))
		return
	}
	c.boolean(found)
}

func (c *conn) ttl()  { c.remaining(func(at int64) int64 { return seconds(max(at-nowMS(), 0)) }) }
func (c *conn) pttl() { c.remaining(func(at int64) int64 { return max(at-nowMS(), 0) }) }

func (c *conn) expiretime()  { c.remaining(seconds) }
func (c *conn) pexpiretime() { c.remaining(func(at int64) int64 { return at }) }

// seconds rounds milliseconds to seconds, without overflow.
func seconds(ms int64) int64 { return ms/1000 + (ms%1000+500)/1000 }

// remaining replies the expiry of a key: -2 if there is no key, -1 if it never expires.
func (c *conn) remaining(tell func(at int64) int64) {
	k, ok := c.key(1)
	if !ok {
		return
	}
	info, found, ok := c.stat(k)
	switch {
	case !ok:
	case !found:
		c.integer(-2)
	case info.Item.Expires == 0:
		c.integer(-1)
	default:
		c.integer(tell(info.Item.Expires))
	}
}
