package transport

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/wire"
)

// stripeAbove is the length from which a whole block is pulled over several connections, unless
// many blocks are pulled like that already.
const stripeAbove = 1 << 20

// stripeAlign divides the length of every part of a striped block but the last.
const stripeAlign = 64 << 10

// errChanged says that the parts of a block come from two versions of it.
var errChanged = fmt.Errorf("%w: the block changed while it was read", wire.Busy)

// mostParts bounds the parts of striped blocks that come from one peer at a time. Beyond it, each
// block comes in one part. A server allows a host 256 operations.
const mostParts = 128

// pull is a running Get, in one part or several.
type pull struct {
	g       *Get
	l       *streams
	whole   bool // the whole block is requested, so its checksum applies
	stripes uint64
	first   int    // connection of the first part
	parts   []part // never reallocated; once adds the parts behind the first answer
	planned uint64 // end of the parts that are requested before the first answer
	got     atomic.Int64

	more   func(parts []part) // requests further parts
	others sync.WaitGroup     // goroutines of all parts but the first

	once  sync.Once
	found Found  // written in once
	buf   []byte // written in once
	err   error  // of Alloc; written in once
}

// part is a range of the block, with a request of its own.
type part struct {
	stripe         int        // counted from the first part's connection
	offset, length uint64     // length 0: to the end
	n              uint64     // bytes that came
	stamp          wire.Stamp // of the answer
	crc            uint32     // CRC32C of those bytes
}

// get also returns how many bytes came, even if not all.
func (l *streams) get(ctx context.Context, g *Get) (Found, int64, error) {
	if err := checkItem(&Item{Namespace: g.Namespace}, max(g.Offset, g.Length, g.Hint)); err != nil {
		return Found{}, 0, err
	}
	if min(g.Offset, g.Length, g.Hint) < 0 {
		return Found{}, 0, fmt.Errorf("%w: a range of negative numbers", wire.BadFrame)
	}
	stripes := 1
	if l.parts.Add(int64(l.stripes)) <= mostParts {
		stripes = l.stripes
	}
	defer l.parts.Add(int64(-l.stripes))
	p := newPull(l, g, stripes)
	if err := p.run(ctx); err != nil {
		return Found{}, p.got.Load(), err
	}
	l.count.received.Add(uint64(len(p.buf)))
	if len(p.parts) > 1 {
		l.count.striped.Add(1)
	}
	err := p.check()
	return p.found, p.got.Load(), err
}

// newPull plans the first requests. For a large block of known length they cover all parts.
// Otherwise there is one request, whose answer has the length. A part of a block is one request,
// because the answers to several would not show whether they come from two versions of the block.
func newPull(l *streams, g *Get, stripes int) *pull {
	p := &pull{g: g, l: l, whole: g.Offset == 0 && g.Length == 0, stripes: uint64(stripes),
		first: int(l.request.Load())}
	if !p.whole || stripes == 1 {
		p.parts = []part{{offset: uint64(g.Offset), length: uint64(g.Length)}}
		return p
	}
	p.parts = make([]part, 0, 2*stripes+1)
	p.planned = uint64(g.Hint)
	if g.Hint >= stripeAbove {
		p.spread(0, 0, p.planned, p.share(p.planned))
		return p
	}
	p.planned = max(p.planned, p.share(stripeAbove))
	p.parts = append(p.parts, part{length: p.planned})
	return p
}

// share returns how many of n bytes one connection carries.
func (p *pull) share(n uint64) uint64 {
	return ((n+p.stripes-1)/p.stripes + stripeAlign - 1) / stripeAlign * stripeAlign
}

// spread plans parts of size bytes from at to end, one for each connection.
func (p *pull) spread(stripe int, at, end, size uint64) {
	for ; at < end; at += size {
		p.parts = append(p.parts, part{stripe: stripe, offset: at, length: min(size, end-at)})
		stripe++
	}
}

// rest plans the parts of a block that are not requested yet. If one part is requested already, its
// connection gets that much less.
func (p *pull) rest(total uint64) []part {
	asked, at, size := len(p.parts), p.planned, p.share(total)
	switch {
	case !p.whole || p.stripes == 1 || total <= at:
		return nil
	case total < stripeAbove:
		p.spread(1, at, total, total)
	case asked == 1 && at < size:
		p.spread(0, at, size, size)
		p.spread(1, size, total, size)
	default:
		p.spread(1, at, total, p.share(total-at))
	}
	return p.parts[asked:]
}

func (p *pull) run(ctx context.Context) error {
	if p.stripes == 1 {
		return p.fetch(ctx, &p.parts[0])
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	fetch := func(q *part) {
		if err := p.fetch(ctx, q); err != nil {
			cancel(err)
		}
	}
	p.more = func(parts []part) {
		for i := range parts {
			p.others.Go(func() { fetch(&parts[i]) })
		}
	}
	first := &p.parts[0]
	p.more(p.parts[1:])
	fetch(first)
	p.others.Wait()
	return context.Cause(ctx)
}

// fetch requests one part and reads it into its place.
func (p *pull) fetch(ctx context.Context, q *part) error {
	f := wire.Frame{Op: wire.Get, Digest: p.g.Addr.Digest, Layer: p.g.Addr.Layer, Namespace: []byte(p.g.Namespace),
		Offset: q.offset, Len: q.length}
	if !p.whole {
		f.Flags = wire.RangeSum
	}
	return p.l.ask(ctx, p.first+q.stripe, &f, nil, func(w flow, a *wire.Frame, r *wire.Reader) error {
		into, err := p.place(a)
		if err != nil {
			return err
		}
		q.n, q.crc, q.stamp = a.Len, 0, a.Answered(&f)
		if p.g.paid {
			w.caps = nil // bandwidth has counted these bytes already
		}
		err = w.receive(ctx, r, into, func(b []byte) {
			p.got.Add(int64(len(b)))
			if p.g.Progress != nil {
				p.g.Progress()
			}
			q.crc = block.Extend(q.crc, b)
		})
		if err == nil && !p.whole && (a.Flags&wire.RangeSum == 0 || q.crc != a.CRC) {
			return wire.Corrupt
		}
		return err
	})
}

// place returns the memory for a part. The first answer decides how much memory the block needs,
// and requests the other parts.
func (p *pull) place(a *wire.Frame) ([]byte, error) {
	p.once.Do(func() {
		p.found = Found{Length: int(a.Total), CRC: a.CRC, Item: Item{Addr: p.g.Addr, Namespace: p.g.Namespace,
			Parent: a.Parent, Expires: a.Expires, Key: clone(a.Key), Attr: clone(a.Attr)}}
		n := max(0, p.found.Length-p.g.Offset)
		if p.g.Length != 0 {
			n = min(n, p.g.Length)
		}
		if p.buf, p.err = p.g.Alloc(p.found, n); p.err == nil && len(p.buf) != n {
			p.err = fmt.Errorf("transport: memory of %d bytes for %d", len(p.buf), n)
		}
		if p.err == nil {
			if rest := p.rest(a.Total); len(rest) > 0 {
				p.more(rest)
			}
		}
	})
	switch {
	case p.err != nil:
		return nil, fmt.Errorf("%w: %w", errCaller, p.err)
	case int(a.Total) != p.found.Length, p.whole && a.CRC != p.found.CRC:
		return nil, errChanged
	case a.Len == 0:
		return nil, nil
	}
	return p.buf[a.Offset-uint64(p.g.Offset):][:a.Len], nil
}

// check compares the checksum of all parts together with the block's. The block counts as older
// than every purge if the stamps of the parts differ.
func (p *pull) check() error {
	var crc uint32
	var n uint64
	p.found.Stamp = p.parts[0].stamp
	for _, q := range p.parts {
		crc, n = block.Combine(crc, q.crc, q.n), n+q.n
		if q.stamp != p.found.Stamp {
			p.found.Stamp = wire.Stamp{}
		}
	}
	if n != uint64(len(p.buf)) || p.whole && crc != p.found.CRC {
		return wire.Corrupt
	}
	p.found.CRC = crc
	return nil
}
