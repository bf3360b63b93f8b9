package resp

import (
	"math"
	"strconv"
	"strings"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/purge"
	"github.com/cognitora/dataplane/kvcached/store"
)

func (c *conn) exists() {
	if n, ok := c.countPresent(); ok {
		c.integer(n)
	}
}

// countPresent counts the arguments whose blocks exist. If ok is false, it has replied an error.
func (c *conn) countPresent() (n int64, ok bool) {
	if !c.keysFrom(1, 1) || !c.statAll() {
		return 0, false
	}
	for _, info := range c.infos {
		if info.Tiers != 0 {
			n++
		}
	}
	return n, true
}

func (c *conn) typeOf() {
	if k, ok := c.key(1); ok {
		if _, found, ok := c.stat(k); found {
			c.simple("string")
		} else if ok {
			c.simple("none")
		}
	}
}

func (c *conn) del() {
	if !c.keysFrom(1, 1) {
		return
	}
	n := int64(0)
	for _, k := range c.keys {
		found, err := c.server.o.Store.Delete(c.server.ctx, k.addr)
		if err != nil {
			c.fail(c.storeError(err))
			return
		}
		if found {
			n++
		}
	}
	c.integer(n)
}

// dbsize replies the number of keys of the client's database in all tiers.
func (c *conn) dbsize() {
	blocks, err := c.server.o.Store.Count(c.server.ctx)
	if err != nil {
		c.fail(c.storeError(err))
		return
	}
	c.integer(int64(blocks[c.namespace]))
}

// namespaceOf is the namespace of a database for this client.
func (c *conn) namespaceOf(db int) string {
	n := block.Namespace{Space: space(db)}
	if c.user != nil {
		n.Tenant = c.user.Tenant
	}
	return n.String()
}

func (c *conn) flushdb() { c.flush(c.namespace) }

// flushall clears every database of the client's tenant. Block addresses are in no database.
func (c *conn) flushall() {
	var mine []string
	for db := range Databases {
		mine = append(mine, c.namespaceOf(db))
	}
	c.flush(mine...)
}

func (c *conn) flush(namespaces ...string) {
	if len(c.args) > 2 || len(c.args) == 2 && !c.word(1, "sync") && !c.word(1, "async") {
		c.fail(errSyntax)
		return
	}
	if c.server.o.Purge == nil {
		c.fail("ERR this server purges nothing")
		return
	}
	done, err := c.server.o.Purge(c.server.ctx, purge.Selector{Namespaces: namespaces})
	if err == nil {
		err = purge.Failed(done)
	}
	c.acted(strings.Join(namespaces, " "), err)
	c.done(err)
}

const (
	maxListedBytes = 16 << 20 // of one reply
	maxScanCount   = 50_000   // keys of one reply to SCAN
	maxBuckets     = 10       // parts of the table that SCAN visits per requested key
)

// listing collects the keys of one reply.
type listing struct {
	conn    *conn
	pattern []byte // nil: all
	limit   int
	seen    map[string]bool // of at most limit keys
	n       int
	encoded []byte
}

// visit adds a block if it is a matching key of the client's database. It returns false once the
// listing is too long.
func (l *listing) visit(info store.Info) bool {
	if info.Item.Namespace != l.conn.namespace || l.pattern != nil && !matchGlob(l.pattern, info.Item.Key) {
		return true
	}
	if l.seen[string(info.Item.Key)] { // a block in two tiers is visited twice
		return true
	}
	if l.seen == nil {
		l.seen = map[string]bool{}
	}
	l.seen[string(info.Item.Key)] = true
	l.n++
	l.encoded = strconv.AppendInt(append(l.encoded, '$'), int64(len(info.Item.Key)), 10)
	l.encoded = append(append(l.encoded, crlf...), info.Item.Key...)
	l.encoded = append(l.encoded, crlf...)
	return !l.tooLong()
}

func (l *listing) tooLong() bool { return l.n > l.limit || len(l.encoded) > maxListedBytes }

func (l *listing) reply() {
	c := l.conn
	c.array(l.n)
	c.stream.setBatch(append(c.stream.batch(), l.encoded...))
}

func (c *conn) listKeys() {
	l := &listing{conn: c, pattern: c.args[1], limit: c.server.o.maxKeys}
	for cursor := uint64(0); ; {
		next, err := c.server.o.Store.Scan(c.server.ctx, cursor, l.visit)
		if err != nil {
			c.fail(c.storeError(err))
			return
		}
		if l.tooLong() {
			c.fail("ERR KEYS matches more than one reply may have (" + strconv.Itoa(l.limit) + " keys, 16 MiB); " +
				"use SCAN")
			return
		}
		if cursor = next; cursor == 0 {
			break
		}
	}
	l.reply()
}

// scanOptions reads the arguments of SCAN. If ok is false, it has replied an error.
func (c *conn) scanOptions() (cursor uint64, count int, l *listing, ok bool) {
	cursor, err := strconv.ParseUint(string(c.args[1][:min(len(c.args[1]), 21)]), 10, 64)
	if err != nil {
		c.fail("ERR invalid cursor")
		return 0, 0, nil, false
	}
	l, count = &listing{conn: c, limit: math.MaxInt}, 10
	for i := 2; i < len(c.args); i += 2 {
		more := i+1 < len(c.args)
		switch {
		case more && c.word(i, "match"):
			if l.pattern = c.args[i+1]; string(l.pattern) == "*" {
				l.pattern = nil
			}
		case more && c.word(i, "count"):
			n, ok := parseInteger(c.args[i+1])
			if !ok {
				c.fail(errNotInteger)
				return 0, 0, nil, false
			}
			if n < 1 {
				c.fail(errSyntax)
				return 0, 0, nil, false
			}
			count = int(min(n, maxScanCount))
		case more && c.word(i, "type"):
			if !strings.EqualFold(string(c.args[i+1]), "string") {
				l.pattern = []byte("[]") // all values are strings, so nothing matches
			}
		default:
			c.fail(errSyntax)
			return 0, 0, nil, false
		}
	}
	return cursor, count, l, true
}

func (c *conn) scan() {
	cursor, count, l, ok := c.scanOptions()
	if !ok {
		return
	}
	for range count * maxBuckets {
		next, err := c.server.o.Store.Scan(c.server.ctx, cursor, l.visit)
		if err != nil {
			c.fail(c.storeError(err))
			return
		}
		if cursor = next; cursor == 0 || l.n >= count || len(l.encoded) > maxListedBytes/2 {
			break
		}
	}
	c.array(2)
	c.bulk(strconv.FormatUint(cursor, 10))
	l.reply()
}
