package sse

// keptBytes is the largest buffer kept between streams and after a long event.
const keptBytes = 16 << 10

// blockKind is the kind of a block from cutter.next.
type blockKind uint8

const (
	partial   blockKind = iota // no block yet; the bytes are held
	complete                   // one whole event with its closing blank line
	oversized                  // the event has just exceeded MaxEventBytes; the block has its bytes so far
	continued                  // more bytes of an oversized event
	lastPiece                  // the last bytes of an oversized event
	lineFeed                   // the LF of a CRLF whose CR closed the previous event
)

// cutter cuts a stream into blocks that end with a blank line. cutter copies only bytes of a block
// that is incomplete at the end of a call.
type cutter struct {
	held    []byte // bytes of the unfinished block from earlier calls
	inLine  bool   // the current line has bytes
	afterCR bool   // the last byte was a CR that ended a line
	closed  bool   // this CR ended a block
	over    bool   // inside an oversized block
}

func (c *cutter) reset() { *c = cutter{held: keepSmall(c.held)} }

// next takes bytes from the front of p and returns the rest. A complete or oversized block is valid
// until the next call of next. The caller calls taken before that call.
func (c *cutter) next(p []byte) (block []byte, kind blockKind, rest []byte) {
	if c.afterCR {
		feed := p[0] == '\n'
		c.afterCR = false
		if feed && c.closed {
			c.closed = false
			return p[:1], lineFeed, p[1:]
		}
		if feed {
			return c.emit(p[:1], p[1:], false)
		}
	}
	c.closed = false
	n, ended := c.find(p)
	return c.emit(p[:n], p[n:], ended)
}

// find returns how many bytes of p belong to the current block, and whether the block ends there.
func (c *cutter) find(p []byte) (n int, ended bool) {
	for n < len(p) {
		i := lineEnd(p[n:])
		if i < 0 {
			c.inLine = true
			return len(p), false
		}
		blank := i == 0 && !c.inLine
		cr := p[n+i] == '\r'
		c.inLine = false
		n += i + 1
		if cr && n < len(p) && p[n] == '\n' {
			n++
		} else if cr && n == len(p) {
			c.afterCR, c.closed = true, blank
		}
		if blank {
			return n, true
		}
	}
	return n, false
}

// emit adds piece to the held bytes and returns the resulting block.
func (c *cutter) emit(piece, rest []byte, ended bool) ([]byte, blockKind, []byte) {
	switch {
	case c.over && ended:
		c.over = false
		return piece, lastPiece, rest
	case c.over:
		return piece, continued, rest
	case len(c.held)+len(piece) > MaxEventBytes:
		c.over = !ended
		if len(c.held) == 0 {
			return piece, oversized, rest
		}
		c.held = append(c.held, piece...)
		return c.held, oversized, rest
	case ended && len(c.held) == 0:
		return piece, complete, rest
	}
	c.held = append(c.held, piece...)
	if ended {
		return c.held, complete, rest
	}
	return nil, partial, rest
}

// last parses the held bytes as an event, unless they end inside a line.
func (c *cutter) last(p *parser) (e Event, ok bool) {
	if c.over || c.inLine {
		return Event{}, false
	}
	return p.event(c.held)
}

// taken forgets the block that next returned.
func (c *cutter) taken() { c.held = keepSmall(c.held) }

// keepSmall empties b, and releases it if it has grown large.
func keepSmall(b []byte) []byte {
	if cap(b) > keptBytes {
		return nil
	}
	return b[:0]
}
