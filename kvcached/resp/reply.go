package resp

import (
	"strconv"
	"strings"
)

// The functions in this file append a reply to the batch.

func (c *conn) simple(text string) {
	b := append(c.stream.batch(), '+')
	c.stream.setBatch(append(append(b, text...), crlf...))
}

func (c *conn) ok() { c.stream.setBatch(append(c.stream.batch(), "+OK\r\n"...)) }

// done replies OK, or the error of the store.
func (c *conn) done(err error) {
	if err != nil {
		c.fail(c.storeError(err))
		return
	}
	c.ok()
}

// oneLine replaces the line ends in an error reply, which must be one line.
var oneLine = strings.NewReplacer("\r", " ", "\n", " ")

// fail replies an error. text begins with a code, such as ERR.
func (c *conn) fail(text string) {
	c.server.counters.errors.Add(1)
	b := append(c.stream.batch(), '-')
	c.stream.setBatch(append(append(b, oneLine.Replace(text)...), crlf...))
}

func (c *conn) number(prefix byte, n int64) {
	b := strconv.AppendInt(append(c.stream.batch(), prefix), n, 10)
	c.stream.setBatch(append(b, crlf...))
}

func (c *conn) integer(n int64) { c.number(':', n) }
func (c *conn) array(n int)     { c.number('*', int64(n)) }

// boolean replies 1 or 0, as redis does even in RESP3.
func (c *conn) boolean(b bool) {
	if b {
		c.integer(1)
	} else {
		c.integer(0)
	}
}

// mapping begins n pairs: a map in RESP3, an array of 2n elements in RESP2.
func (c *conn) mapping(n int) {
	if c.proto == 3 {
		c.number('%', int64(n))
	} else {
		c.array(2 * n)
	}
}

// null replies a miss: RESP3's null, or RESP2's bulk string of length -1.
func (c *conn) null() {
	if c.proto == 3 {
		c.stream.setBatch(append(c.stream.batch(), "_\r\n"...))
	} else {
		c.stream.setBatch(append(c.stream.batch(), "$-1\r\n"...))
	}
}

func (c *conn) bulk(text string) {
	b := strconv.AppendInt(append(c.stream.batch(), '$'), int64(len(text)), 10)
	b = append(append(b, crlf...), text...)
	c.stream.setBatch(append(b, crlf...))
}

// verbatim replies a text for people: a verbatim string in RESP3, a bulk string in RESP2.
func (c *conn) verbatim(text string) {
	if c.proto != 3 {
		c.bulk(text)
		return
	}
	b := strconv.AppendInt(append(c.stream.batch(), '='), int64(len(text)+4), 10)
	b = append(append(append(b, crlf...), "txt:"...), text...)
	c.stream.setBatch(append(b, crlf...))
}

// payload replies a bulk string. It copies a short p and writes a long p at once, so the caller may
// free p afterwards.
func (c *conn) payload(p []byte) {
	c.server.counters.bytesOut.Add(uint64(len(p)))
	b := append(strconv.AppendInt(append(c.stream.batch(), '$'), int64(len(p)), 10), crlf...)
	if len(p) <= copyMax {
		c.stream.setBatch(append(append(b, p...), crlf...))
		return
	}
	*c.stream.out = b
	c.stream.flushWith(p)
}
